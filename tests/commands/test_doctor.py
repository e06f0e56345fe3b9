"""``autotune doctor`` on a real cluster with faults planted for real, all of them at once."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "search_spaces" / "qwen2.5-0.5b_ppo_2xh200.yaml"
PROGRAM = ROOT / "tests" / "faulty_cluster.py"
FAULTS = {
    "too little room": "One trial needs 14 CPU, the cluster has 2.",
    "another version": "transformers 4.0.0 is outside ",
    "GPUs that are not there": "Ray gives away 4 GPUs, there are 2",
    "a GPU in use": "GPU 1 has 70 of 140 GiB free",
    "data that is not there": "/on_no_node/train.parquet cannot be read on ",
    "a model that is not there": "/on_no_node/model cannot be read on ",
    "a plug-in that is not loaded": "verl does not know ",
    "a broken rollout engine": "vllm: ImportError: libcudart.so.13 is missing",
    "no flash-attn": "flash-attn is missing on ",
    "few open files": "at most 1024 open files a process",
    "records that cannot be written": "sweeps is a file, not a folder",
    "wandb without its key": "WANDB_MODE is online, but there is no key",
    "a slow link": "NCCL_P2P_DISABLE=1: GPUs of one node talk through the host's memory",
    "a serial reduce-scatter": "CUDA_DEVICE_MAX_CONNECTIONS=1 serialises reduce-scatter",
}
"""What is planted -> what the doctor must say."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def plant(folder: Path) -> dict[str, str]:
    """Plant what lies in files; return the environment that finds them, and the other faults."""
    site, tools, home = (folder / name for name in ("site", "tools", "home"))
    for name, version in (("transformers", "4.0.0"), ("verl_autotune", "0.0.1")):
        # Metadata without entry points: verl finds no plug-in.
        metadata = site / f"{name}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    (site / "vllm.py").write_text("raise ImportError('libcudart.so.13 is missing')")
    home.mkdir()
    tools.mkdir()
    tool = tools / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'NVIDIA H200, 143771, 143000'\necho 'NVIDIA H200, 143771, 71885'\n"
    )
    tool.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "NCCL_"))}
    return environment | {
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "WANDB_MODE": "online",
        "NCCL_P2P_DISABLE": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("planted")
    content = yaml.safe_load(SWEEP.read_text())
    content["base"]["overrides"] = [
        one.replace("=demo/qwen2.5-0.5b/", "=/on_no_node/") for one in content["base"]["overrides"]
    ]
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
    (folder / "sweeps").touch()
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=plant(folder),
        preexec_fn=limit_files,
    ) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        words = [sys.executable, "-m", "autotune.cli", "doctor", "sweep.yaml"]
        yield subprocess.run(
            [*words, "--address", address],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=500,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


@pytest.mark.parametrize("fault", FAULTS)
def test_it_finds_each_planted_fault_and_says_the_mend(
    said: subprocess.CompletedProcess[str], fault: str
) -> None:
    lines = [line for line in said.stdout.splitlines() if FAULTS[fault] in line]
    assert lines, said.stdout + said.stderr
    assert lines[0].startswith(("error ", "warning ")) and " -> " in lines[0]


def test_errors_are_a_failure_of_the_command(said: subprocess.CompletedProcess[str]) -> None:
    assert said.returncode == 1
    assert said.stdout.splitlines()[-1].endswith("warnings.")
