"""Secrets: masked wherever a text repeats one, and found where a job writes one down."""

import dataclasses
import time
from pathlib import Path

import pytest
import yaml

from autotune.config import load_config, load_sweep, to_yaml
from autotune.errors import BadInputError
from autotune.redaction import (
    holds_secret,
    is_secret_name,
    mask,
    redact,
    without_userinfo,
    written_secrets,
)
from autotune.store import write_atomic
from autotune.sweep import identity
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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1", "step 1 of 10"),
        ("postgres", "storage: postgresql://postgres@db/optuna"),
        ("20000000", "bucket_size: 20000000"),
        ("train_batch_size", "data.train_batch_size=8"),
        ("hunter2", "the word hunter2"),
    ],
)
def test_a_word_or_number_is_masked_only_where_it_is_given_as_a_secret(
    value: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", value)
    assert redact(text) == text
    for before, after in (
        ("DB_PASSWORD=", ""),
        ("{'password': '", "'}"),
        ("api_key: ", ", x"),
        ("postgresql://postgres:", "@db"),
    ):
        assert redact(f"{before}{value}{after}") == f"{before}<DB_PASSWORD removed>{after}"


@pytest.mark.parametrize("value", ["hunter22", "abcdefghijklmnop", "0123456789abcdef", "a b c d e"])
def test_what_nobody_writes_by_chance_is_masked_everywhere(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", value)
    assert redact(f"x{value}y") == "x<SOME_TOKEN removed>y"


def test_a_secret_inside_another_leaves_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdef12")
    monkeypatch.setenv("B_TOKEN", "abcdef12-ghi")
    assert redact("abcdef12-ghi") == "<B_TOKEN removed>"


def test_a_line_without_end_is_masked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "x")
    begin_s = time.monotonic()
    redact("x" * 100_000)
    assert time.monotonic() - begin_s < 2


def test_the_place_of_a_secret_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD_FILE", "/run/secrets/db1")
    assert redact("reading /run/secrets/db1") == "reading /run/secrets/db1"


def test_every_text_of_nested_data_is_masked_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abcdef12")
    monkeypatch.setenv("DB_PASSWORD", "word")
    assert mask({"abcdef12": ["x abcdef12", 1, None], "word": "word", "password": "word"}) == {
        "abcdef12": ["x <MY_TOKEN removed>", 1, None],
        "word": "word",
        "password": "<DB_PASSWORD removed>",
    }


def test_a_secret_is_masked_however_yaml_quotes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "it's: \"1\"")
    config = load_config(QUICKSTART)
    config = dataclasses.replace(config, output_uri="it's: \"1\"/a")
    assert yaml.safe_load(to_yaml(config))["output_uri"] == "<MY_TOKEN removed>/a"


@pytest.mark.parametrize("value", ["postgres", "p0stgres-user"])
def test_a_sweep_whose_file_repeats_a_secret_is_the_same_when_it_goes_on(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTGRES_PASSWORD", value)
    config = load_config(QUICKSTART, [f"search.storage=postgresql://{value}@db/optuna"])
    write_atomic(tmp_path / "config.yaml", to_yaml(config))
    stored = (tmp_path / "config.yaml").read_text()
    assert identity(stored) == identity(to_yaml(config))
    assert load_config(tmp_path / "config.yaml").name == config.name


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
