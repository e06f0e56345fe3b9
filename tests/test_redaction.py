"""Secrets: masked wherever a text repeats one, and found where a job writes one down."""

from pathlib import Path

import pytest

from autotune.config import load_sweep
from autotune.redaction import is_secret_name, mask, redact, written_secrets
from autotune.verl_bridge.overrides import leaves

QUICKSTART = Path(__file__).parents[1] / "search_spaces" / "quickstart_cpu.yaml"
ENVIRONMENT = "+ray_kwargs.ray_init.runtime_env.env_vars"


@pytest.mark.parametrize(
    "name",
    [
        *("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MY_SECRET", "db_password"),
        "AWS_SECRET_ACCESS_KEY",
    ],
)
def test_secrets_of_the_environment_are_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "s3cr3t-value")
    assert redact("login with s3cr3t-value failed") == f"login with <{name} removed> failed"


def test_a_short_value_is_a_word_rather_than_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "1")
    assert redact("step 1 of 10") == "step 1 of 10"


def test_a_secret_inside_another_leaves_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdef")
    monkeypatch.setenv("B_TOKEN", "abcdef-ghi")
    assert redact("abcdef-ghi") == "<B_TOKEN removed>"


def test_every_text_of_nested_data_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abcdef")
    assert mask({"abcdef": ["x abcdef", 1, None]}) == {
        "<MY_TOKEN removed>": ["x <MY_TOKEN removed>", 1, None]
    }


@pytest.mark.parametrize(
    "override",
    [
        f"{ENVIRONMENT}.WANDB_API_KEY=0123456789",
        f"{ENVIRONMENT}.AWS_SECRET_ACCESS_KEY='abc/def'",
        f"{ENVIRONMENT}.HF_TOKEN=hf_abcdef",
        "+reward.custom_reward_function.reward_kwargs.api_key=sk-abcdef",
        "+data.storage.password=hunter2",
    ],
)
def test_a_secret_that_is_written_out_is_found(override: str) -> None:
    assert written_secrets([override]) == [override.partition("=")[0].lstrip("+")]


@pytest.mark.parametrize(
    "override",
    [
        "data.prompt_key=prompt",
        "actor_rollout_ref.rollout.max_num_batched_tokens=8192",
        f"{ENVIRONMENT}.HF_TOKEN=null",
        f"{ENVIRONMENT}.HF_TOKEN='${{oc.env:HF_TOKEN}}'",
        "~data.api_key",
    ],
)
def test_what_only_looks_like_a_secret_is_none(override: str) -> None:
    assert written_secrets([override]) == []


def test_no_setting_of_verl_has_the_name_of_a_secret() -> None:
    job = load_sweep(QUICKSTART).base_config
    names = {part for key in leaves(job) for part in key.split(".")}
    assert [name for name in names if is_secret_name(name)] == []
