"""What the doctor says about facts; test_node_probe.py plants the faults themselves for real."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from doctor_cases import GOOD_VERSIONS, node

from autotune.config import Sweep, load_sweep
from autotune.doctor.findings import ClusterFacts, Finding, Level, findings
from autotune.doctor.node_probe import Gpu, NodeFacts

QUICKSTART = Path(__file__).parents[2] / "search_spaces" / "quickstart_cpu.yaml"
ROOM = {"CPU": 32.0, "GPU": 2.0}


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    """The quickstart's job, as if it ran on two GPUs."""
    loaded = load_sweep(QUICKSTART, is_elsewhere=True)
    loaded.config.resources.device = "gpu"
    return loaded


def examined(
    sweep: Sweep, *nodes: NodeFacts, room: dict[str, float] | None = None, **changes: Any
) -> list[Finding]:
    values: dict[str, Any] = {
        "nodes": nodes or (node(),),
        "resources": [ROOM if room is None else room] * max(len(nodes), 1),
        "num_storage_units": 1,
        "output_problem": None,
        "output_free_gib": 100.0,
    }
    return findings(sweep, ClusterFacts(**{**values, **changes}))


def bad(found: Sequence[Finding]) -> list[tuple[str, Level, str]]:
    return [(f.check, f.level, f.text) for f in found if f.level is not Level.OK]


def test_a_good_cluster_has_one_line_for_every_check(sweep: Sweep) -> None:
    found = examined(sweep)
    assert bad(found) == []
    assert len({finding.check for finding in found}) == len(found) == 10


@pytest.mark.parametrize(
    ("changes", "check", "level", "text"),
    [
        ({"versions": {**GOOD_VERSIONS, "transformers": "5.20.0"}}, "versions", "error", "outside"),
        ({"versions": {**GOOD_VERSIONS, "vllm": None}}, "versions", "error", "vllm is not inst"),
        ({"gpus": None, "absent": {"gpus": "there is no nvidia-smi"}}, "gpus", "error", "but ther"),
        ({"gpus": [Gpu(name="H100", total_gib=80.0, free_gib=79.0)]}, "gpus", "error", "are 1"),
        (
            {"gpus": [Gpu(name="H100", total_gib=80.0, free_gib=30.0)] * 2},
            *("gpus", "warning", "GPU 0 has 30 of 80 GiB free"),
        ),
        ({"missing_paths": {"data.train_files": "/x"}}, "paths", "error", "/x cannot be read on"),
        ({"verl_problems": ["vllm: ImportError: x"]}, "verl", "error", "vllm: ImportError"),
        (
            {"verl_problems": None, "absent": {"verl_problems": "importing verl took"}},
            *("verl", "warning", "took"),
        ),
        ({"has_flash_attn": False}, "attention", "warning", "flash-attn is missing on node-a"),
        ({"open_files": 1024}, "limits", "error", "at most 1024 open files"),
        ({"shm_free_gib": 0.06}, "limits", "error", "0.1 GiB of shared memory"),
        ({"temp_free_gib": 1.0}, "limits", "warning", "1.0 GiB are free"),
        ({"wandb_mode": "online", "has_wandb_key": False}, "wandb", "error", "there is no key"),
        ({"environment": {"NCCL_P2P_DISABLE": "1"}}, "nccl", "warning", "NCCL_P2P_DISABLE=1"),
        (
            {"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}},
            *("nccl", "warning", "serialises"),
        ),
    ],
)
def test_a_fault_of_a_node_is_found_and_nothing_else(
    sweep: Sweep, changes: dict[str, Any], check: str, level: str, text: str
) -> None:
    [(found_check, found_level, found_text), *more] = bad(examined(sweep, node(**changes)))
    assert {found_check, *(name for name, _, _ in more)} == {check}
    assert found_level.value == level and text in found_text


def test_every_fault_has_a_mend(sweep: Sweep) -> None:
    faulty = node(
        versions={}, missing_paths={"a": "/a"}, verl_problems=["x"], open_files=1, shm_free_gib=0.0
    )
    found = examined(sweep, faulty, room={"CPU": 1.0}, output_problem="no")
    assert len(bad(found)) > 10
    assert all(finding.mend for finding in found if finding.level is not Level.OK)


def test_a_cluster_without_room_is_an_error(sweep: Sweep) -> None:
    [finding] = bad(examined(sweep, room={"CPU": 32.0, "GPU": 1.0}))
    assert finding == ("placement", Level.ERROR, "One trial needs 2 GPU, the cluster has 1.")


def test_fewer_trials_at_once_than_asked_for_is_a_warning(sweep: Sweep) -> None:
    sweep.config.search.max_concurrent = 3
    found = bad(examined(sweep))
    sweep.config.search.max_concurrent = 1
    assert found == [("placement", Level.WARNING, "1 trial at once fit on 1 nodes")]


@pytest.mark.parametrize(
    ("hosts", "is_bad"), [(["a"], True), (["a", "a"], True), (["a", "b"], False)]
)
def test_trials_at_once_that_share_too_few_cores_are_a_warning(
    sweep: Sweep, hosts: list[str], is_bad: bool
) -> None:
    nodes = [node(host=host, num_cores=2) for host in hosts]
    sweep.config.search.max_concurrent = 2
    found = bad(examined(sweep, *nodes, room={"CPU": 32.0, "GPU": 4.0}))
    sweep.config.search.max_concurrent = 1
    texts = [text for check, _, text in found if check == "placement"]
    assert texts == ["4 ranks of trials at once share 2 CPU cores"] * is_bad


def test_nodes_with_different_versions_are_an_error(sweep: Sweep) -> None:
    other = node(host="node-b", versions={**GOOD_VERSIONS, "torch": "2.12.0"}, python="3.11.9")
    texts = [text for _, _, text in bad(examined(sweep, node(), other))]
    assert any("torch differs between nodes" in text for text in texts)
    assert any("Python differs between nodes" in text for text in texts)


def test_nodes_with_different_gpus_are_a_warning(sweep: Sweep) -> None:
    other = node(host="node-b", gpus=[Gpu(name="A100", total_gib=80.0, free_gib=79.0)] * 2)
    assert bad(examined(sweep, node(), other)) == [
        ("gpus", Level.WARNING, "the cluster's GPUs differ: A100, H100")
    ]


def test_nodes_with_different_nccl_variables_are_a_warning(sweep: Sweep) -> None:
    other = node(host="node-b", environment={"NCCL_SOCKET_IFNAME": "eth0"})
    [(check, level, _)] = bad(examined(sweep, node(), other))
    assert (check, level) == ("nccl", Level.WARNING)


def test_the_sweeps_own_wandb_mode_wins(sweep: Sweep) -> None:
    sweep.config.wandb.mode = "online"
    found = bad(examined(sweep, node(wandb_mode="offline", has_wandb_key=False)))
    sweep.config.wandb.mode = "auto"
    assert found == [("wandb", Level.ERROR, "wandb.mode is online, but there is no key")]


def test_a_full_disk_for_the_records_is_a_warning(sweep: Sweep) -> None:
    [(check, level, _)] = bad(examined(sweep, output_free_gib=0.2))
    assert (check, level) == ("output", Level.WARNING)


def test_gpus_are_of_no_concern_without_them(sweep: Sweep) -> None:
    sweep.config.resources.device = "cpu"
    cpu = node(gpus=None, absent={"gpus": "no"}, has_flash_attn=False)
    found = bad(examined(sweep, cpu))
    sweep.config.resources.device = "gpu"
    assert found == []
