"""The probe of a node, with faults planted for real: each in the environment of a process."""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.doctor.node_probe import NodeFacts, ProbeRequest, probe

PROGRAM = """
import pickle, sys
from autotune.doctor.node_probe import probe
request = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(b"FACTS" + pickle.dumps(probe(request)))
"""

pytestmark = pytest.mark.timeout(300)


def request(**changes: Any) -> ProbeRequest:
    values: dict[str, Any] = {
        "packages": ("transformers",),
        "paths": {},
        "device": "cpu",
        "rollout_module": "",
        "environment": {"VERL_PLATFORM": "cpu"},
    }
    return ProbeRequest(**{**values, **changes})


def probe_elsewhere(
    asked: ProbeRequest, environment: Mapping[str, str] | None = None, open_files: int | None = None
) -> NodeFacts:
    """Probe from a process with its own environment and limits."""
    import pickle

    def limit() -> None:
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=pickle.dumps(asked),
        capture_output=True,
        # Not in the checkout, whose own metadata would come first.
        cwd=Path(__file__).parent,
        env={**os.environ, **(environment or {})},
        preexec_fn=limit,
        timeout=280,
        check=True,
    )
    facts: NodeFacts = pickle.loads(done.stdout.partition(b"FACTS")[2])
    return facts


def on_path(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def fake_distribution(folder: Path, name: str, version: str) -> None:
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.nightly
def test_a_node_without_faults_has_none(tmp_path: Path) -> None:
    facts = probe_elsewhere(request(paths={"here": str(tmp_path)}), open_files=8192)
    assert facts.verl_problems == []
    assert facts.missing_paths == {}
    assert facts.open_files == 8192
    assert 1 <= facts.num_cores <= (os.cpu_count() or 1)
    assert facts.temp_free_gib > 0


LOST = "verl does not know plug-in autotune.verl_bridge.plugin, an entry point of verl.plugins"


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_wrong_version_and_a_lost_plug_in_are_seen(tmp_path: Path, device: str) -> None:
    fake_distribution(tmp_path, "transformers", "4.0.0")
    fake_distribution(tmp_path, "verl_autotune", "0.0.1")  # Has no entry points.
    environment = {"VERL_PLATFORM": "cpu"} if device == "cpu" else {}
    facts = probe_elsewhere(request(device=device, environment=environment), on_path(tmp_path))
    assert facts.versions == {"transformers": "4.0.0"}
    assert facts.verl_problems is not None and LOST in facts.verl_problems


@pytest.mark.nightly
def test_a_plug_in_that_verl_is_told_to_pass_over_is_seen() -> None:
    facts = probe_elsewhere(request(), {"VERL_USE_EXTERNAL_PLUGINS": "none"})
    assert facts.verl_problems is not None and LOST in facts.verl_problems


@pytest.mark.nightly
def test_a_rollout_engine_that_cannot_be_imported_is_seen(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('libcudart.so.13 is missing')")
    facts = probe_elsewhere(request(rollout_module="vllm"), on_path(tmp_path))
    assert facts.verl_problems == ["vllm: ImportError: libcudart.so.13 is missing"]


@pytest.fixture
def without_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the probe, without the seconds that importing verl takes."""
    monkeypatch.setattr("autotune.doctor.node_probe._IMPORT_VERL", "print('PROBE []')")


@pytest.mark.usefixtures("without_verl")
def test_files_that_a_node_lacks_are_named(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    paths = {"there": str(tmp_path / "there"), "gone": str(tmp_path / "gone")}
    assert probe(request(paths=paths)).missing_paths == {"gone": str(tmp_path / "gone")}


@pytest.mark.usefixtures("without_verl")
def test_variables_of_the_node_and_of_the_job_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    facts = probe(request(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}))
    assert facts.environment["NCCL_P2P_DISABLE"] == "1"
    assert facts.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert (facts.wandb_mode, facts.has_wandb_key) == ("online", False)


@pytest.mark.usefixtures("without_verl")
def test_a_node_without_the_drivers_tool_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = probe(request())
    assert facts.gpus is None
    assert facts.absent["gpus"] == "there is no nvidia-smi"


@pytest.mark.usefixtures("without_verl")
def test_gpus_and_their_free_memory_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 71885'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    gpus = probe(request()).gpus
    assert gpus is not None
    assert [(gpu.name, round(gpu.total_gib), round(gpu.free_gib)) for gpu in gpus] == [
        ("NVIDIA H200", 140, 70)
    ]
