"""Secrets: masked wherever a text repeats one, and found where a job writes one down."""

from pathlib import Path

import pytest

from autotune.config import load_config, load_sweep
from autotune.errors import BadInputError
from autotune.redaction import (
    holds_secret,
    is_secret_name,
    mask,
    redact,
    without_userinfo,
    written_secrets,
)
from autotune.verl_bridge.overrides import leaves, written_value

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


def found_in(override: str) -> list[str]:
    return written_secrets(dict([written_value(override)]))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        (f"{ENVIRONMENT}.WANDB_API_KEY=0123456789", "WANDB_API_KEY"),
        (f"{ENVIRONMENT}.AWS_SECRET_ACCESS_KEY='abc/def'", "AWS_SECRET_ACCESS_KEY"),
        (f"{ENVIRONMENT}.HF_TOKEN=hf_abcdef", "HF_TOKEN"),
        ("+reward.reward_kwargs.api_key=sk-abcdef", "reward.reward_kwargs.api_key"),
        ("+reward.reward_kwargs.api_key=12345", "reward.reward_kwargs.api_key"),
        ("+data.storage.password=hunter2", "data.storage.password"),
        ("+data.password=a,b", "data.password"),
        ("+data.password={broken", "data.password"),
        # In the value: a mapping, a list, a mapping that is a text, a header.
        (f"{ENVIRONMENT}={{WANDB_API_KEY: sk-abc}}", "env_vars.WANDB_API_KEY"),
        ("++ray_kwargs={a: {env: [{HF_TOKEN: hf_abc}]}}", "ray_kwargs.a.env[0].HF_TOKEN"),
        ("+reward.args=[--model, 'OPENAI_API_KEY=sk-abc']", "reward.args[1]"),
        (f"{ENVIRONMENT}='{{WANDB_API_KEY: sk-abc}}'", "runtime_env.env_vars"),
        ("+reward.headers={Authorization: 'Bearer sk-abc'}", "reward.headers.Authorization"),
        ("+reward.login.credentials={user: a, pass: b}", "reward.login.credentials.user"),
        # In a URL.
        ("+trainer.url=https://user:pass@host", "trainer.url"),
        ("+trainer.url=https://ghp_abcdef@github.com/a", "trainer.url"),
        ("+trainer.urls=['http://a', 'redis://:pw@host']", "trainer.urls[1]"),
        ("+trainer.url='postgresql://h/db?user=a&password=b'", "trainer.url"),
        ("+trainer.url='https://bucket/file?X-Amz-Signature=abc'", "trainer.url"),
    ],
)
def test_a_secret_that_is_written_out_is_found(override: str, key: str) -> None:
    found = found_in(override)
    assert len(found) >= 1 and found[0].endswith(key)


@pytest.mark.parametrize(
    "override",
    [
        "data.prompt_key=prompt",
        "actor_rollout_ref.rollout.max_num_batched_tokens=8192",
        f"{ENVIRONMENT}.HF_TOKEN=null",
        f"{ENVIRONMENT}.HF_TOKEN='${{oc.env:HF_TOKEN}}'",
        f"{ENVIRONMENT}={{HF_TOKEN: null, OMP_NUM_THREADS: '1'}}",
        f"{ENVIRONMENT}={{HF_TOKEN: '<HF_TOKEN removed>'}}",
        "~data.api_key",
        "+data.use_auth_token=true",
        "+actor_rollout_ref.model.override_config={pad_token: '<pad>'}",
        "+trainer.url=https://host:8080/path/a@b",
        "+trainer.url='postgresql://user@host/db?sslmode=require'",
        "+trainer.note='the token: a word'",
    ],
)
def test_what_only_looks_like_a_secret_is_none(override: str) -> None:
    assert found_in(override) == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("output_uri=s3://ACCESS:verysecret@bucket/a", "output_uri"),
        ("output_uri=s3://bucket?secret_key=verysecret", "output_uri"),
        ("search.storage=postgresql://user:verysecret@host/db", "search.storage"),
        ("search.storage=postgresql://h/db?password=verysecret", "search.storage"),
        ("wandb.entity=https://verysecret@host", "wandb.entity"),
        # Keys and places that a sweep file does not have: the value is not repeated either.
        ("wandb.api_key=verysecret", "wandb.api_key"),
        ("base=postgresql://u:verysecret@h", "base"),
        (
            "base.overrides=['+ray_kwargs.ray_init.env_vars={HF_TOKEN: verysecret}']",
            "base.overrides: ray_kwargs.ray_init.env_vars.HF_TOKEN",
        ),
    ],
)
def test_a_sweep_file_with_a_secret_is_refused_by_its_key(change: str, key: str) -> None:
    with pytest.raises(BadInputError) as caught:
        load_config(QUICKSTART, [change])
    assert caught.value.message == f"{key} holds a secret."
    assert "verysecret" not in str(caught.value)


def test_what_a_mask_left_of_a_url_is_no_secret() -> None:
    text = without_userinfo("git clone https://user:pass@host/a http://tok@b")
    assert text == "git clone https://<removed>@host/a http://<removed>@b"
    assert not holds_secret(text)


def test_no_setting_of_verl_has_the_name_of_a_secret() -> None:
    job = load_sweep(QUICKSTART).base_config
    names = {part for key in leaves(job) for part in key.split(".")}
    assert [name for name in names if is_secret_name(name)] == []
