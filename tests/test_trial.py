"""Pure parts of a trial: its protocol, and what its failures mean."""

from pathlib import Path

import pytest

from autotune.objective import StepKind, TrialState
from autotune.settings import TrialConfig
from autotune.trial import classify, kind_of_step, num_steps, protocol_overrides
from autotune.verl_bridge.launcher import EXITED, VerlProcess
from autotune.verl_bridge.overrides import compose_base
from autotune.verl_bridge.process import JobRequest

PROTOCOL = TrialConfig(
    warmup_steps=1,
    measured_steps=2,
    profiled_steps=1,
    seed=7,
    startup_timeout_s=60,
    step_timeout_s=60,
)


def test_steps_are_warmup_then_measured_then_profiled() -> None:
    kinds = [kind_of_step(step, PROTOCOL) for step in range(1, num_steps(PROTOCOL) + 1)]
    assert kinds == [StepKind.WARMUP, StepKind.MEASURED, StepKind.MEASURED, StepKind.PROFILED]


def test_the_protocol_is_valid_for_verl() -> None:
    config = compose_base("ppo_trainer", protocol_overrides(PROTOCOL))
    assert config.trainer.total_training_steps == 4
    assert config.data.seed == 7


@pytest.mark.parametrize(
    ("causes", "state"),
    [
        (["RayTaskError: x", "OutOfMemoryError: CUDA out of memory."], TrialState.OUT_OF_MEMORY),
        (["ActorDiedError: The actor died unexpectedly"], TrialState.INFRASTRUCTURE),
        (["OSError: [Errno 28] No space left on device"], TrialState.INFRASTRUCTURE),
        (["AssertionError: batch_size_per_dp=3"], TrialState.CRASH),
        ([], TrialState.CRASH),
    ],
)
def test_a_broken_job_is_classified_by_its_causes(causes: list[str], state: TrialState) -> None:
    assert classify(causes) is state


def test_a_process_that_cannot_join_a_cluster_says_that_it_is_gone(tmp_path: Path) -> None:
    process = VerlProcess(
        address="127.0.0.1:1", placement_group_id="00", log_path=tmp_path / "job.log"
    )
    process.kill()
    event = process.next_event(10)
    assert event is not None and event["kind"] == EXITED and event["returncode"] == -9


def test_a_request_to_a_dead_process_is_not_an_error(tmp_path: Path) -> None:
    process = VerlProcess(
        address="127.0.0.1:1", placement_group_id="00", log_path=tmp_path / "job.log"
    )
    process.kill()
    process.submit(
        JobRequest(
            config_name="ppo_trainer", overrides=[], device="cpu", profiled_steps=[], probes=False
        )
    )
    assert not process.is_alive()
