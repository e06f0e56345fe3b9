"""Names that verl looks up when a job runs, read from its source."""

import subprocess
import sys

import pytest

from autotune.errors import BadInputError
from autotune.verl_bridge.job import ROLLOUT
from autotune.verl_bridge.overrides import JobLeaves, compose_base, leaves
from autotune.verl_bridge.registries import advantage_estimators, check_names, rollouts

ESTIMATOR, NAME = "algorithm.adv_estimator", f"{ROLLOUT}.name"


@pytest.fixture(scope="module")
def base() -> JobLeaves:
    return leaves(compose_base("ppo_trainer", [f"{ESTIMATOR}=grpo", f"{NAME}=hf"]))


@pytest.mark.slow
def test_they_are_those_of_the_running_verl() -> None:
    code = (
        "from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as e;"
        "from verl.workers.rollout.base import _ROLLOUT_REGISTRY as r;"
        "print(sorted(e), sorted(name for name, _ in r))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = f"{sorted(advantage_estimators())} {sorted(rollouts())}"
    assert done.stdout.splitlines()[-1] == expected


def test_gae_and_grpo_and_both_kinds_of_rollout_are_among_them() -> None:
    assert {"gae", "grpo", "rloo", "reinforce_plus_plus_baseline"} <= advantage_estimators()
    assert {"vllm", "sglang", "hf"} <= rollouts()


@pytest.mark.parametrize(
    ("key", "value", "device", "message"),
    [
        (ESTIMATOR, "grppo", "gpu", f"{ESTIMATOR} is 'grppo': .*estimator. Did you mean 'grpo'"),
        (ESTIMATOR, "nonsense", "cpu", "no such advantage estimator. It has: gae, gdpo, gpg"),
        (ESTIMATOR, None, "cpu", f"{ESTIMATOR} is None"),
        (NAME, "hff", "cpu", f"{NAME} is 'hff': verl has no such rollout. Did you mean 'hf'"),
        (NAME, "vlm", "gpu", "Did you mean 'vllm'"),
        (NAME, "vllm", "cpu", "'vllm', but resources.device is cpu. Only .*name=hf runs without"),
    ],
)
def test_a_name_that_no_job_finds_is_refused(
    base: JobLeaves, key: str, value: object, device: str, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        check_names(JobLeaves(base | {key: value}), device)


def test_names_that_verl_has_are_accepted(base: JobLeaves) -> None:
    check_names(base, "cpu")
    check_names(JobLeaves(base | {ESTIMATOR: "gae", NAME: "vllm"}), "gpu")


@pytest.mark.parametrize(
    "key",
    [
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES",
        "actor_rollout_ref.model.external_lib",
    ],
)
def test_a_job_with_modules_of_its_own_may_name_its_own(base: JobLeaves, key: str) -> None:
    check_names(JobLeaves(base | {key: "own", ESTIMATOR: "own"}), "cpu")
