"""A base job read from a launch script, and the script with other settings."""

import difflib
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.errors import BadInputError
from autotune.launch_script import (
    LaunchScript,
    parse_launch_script,
    quoted,
    read_launch_script,
    script_of,
    with_overrides,
    without_secrets,
)

MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
SCRIPT = f"""#!/usr/bin/env bash
set -x
export VLLM_USE_V1=1
MB=4
DATA=$HOME/data/gsm8k
MODEL=(
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct  # the policy
    actor_rollout_ref.rollout.n=5
)

python3 -u -m verl.trainer.main_ppo --config-name='ppo_trainer.yaml' \\
    algorithm.adv_estimator=grpo \\
    data.train_files="['$DATA/train.parquet']" \\
    {MICRO}=$MB \\
    "${{MODEL[@]}}" \\
    trainer.logger='["console","wandb"]' \\
    +trainer.note='two words' \\
    trainer.nnodes=1 $@ 2>&1 | tee run.log

# trainer.nnodes=8 \\
echo done
"""


def parse(text: str) -> LaunchScript:
    return parse_launch_script(text, "launch.sh")


def test_the_job_is_what_the_script_gives_to_verl() -> None:
    script = parse(SCRIPT)
    assert script.config_name == "ppo_trainer"
    assert script.overrides == [
        "algorithm.adv_estimator=grpo",
        f"data.train_files=['{Path.home()}/data/gsm8k/train.parquet']",
        f"{MICRO}=4",
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
        "actor_rollout_ref.rollout.n=5",
        'trainer.logger=["console","wandb"]',
        "+trainer.note=two words",
        "trainer.nnodes=1",
    ]
    assert script.exported == ("VLLM_USE_V1",)


@pytest.mark.parametrize(
    "command",
    [
        "python -m verl.trainer.main_ppo trainer.nnodes=2",
        "A=1 /usr/bin/python3 -m verl.trainer.main_ppo trainer.nnodes=2",
        "python3 verl/trainer/main_ppo.py trainer.nnodes=2",
        "ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo trainer.nnodes=2",
        "python -m verl.trainer.main_ppo --config-path=config --config-name ppo_trainer "
        "trainer.nnodes=2",
    ],
)
def test_verl_is_found_however_it_is_started(command: str) -> None:
    script = parse(command)
    assert (script.config_name, script.overrides) == ("ppo_trainer", ["trainer.nnodes=2"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo x", "launch.sh does not start verl.trainer.main_ppo"),
        ("python -m verl.trainer.main_ppo a=1\n" * 2, "more than once"),
        ("if x; then python -m verl.trainer.main_ppo a=1; fi", "line 1: .* inside a condition"),
        ("python -m verl.trainer.main_ppo --multirun", "'--multirun' is no argument"),
        ("python -m verl.trainer.main_ppo --config-name", "'--config-name' has no value"),
        ("python -m verl.trainer.main_ppo -cp /my/own a=1", "a folder that is not verl's own"),
        ("python -m verl.trainer.main_ppo a=$UNKNOWN", r"\$UNKNOWN is not set"),
    ],
)
def test_a_script_without_one_readable_job_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        parse(text)


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), (b"\xff\xfe", "UTF-8")])
def test_a_script_that_cannot_be_read_is_refused(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "launch.sh"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInputError, match=message):
        read_launch_script(path)


def changed_lines(script: LaunchScript, overrides: Sequence[str]) -> tuple[list[str], str]:
    text = with_overrides(script, overrides, ())
    lines = difflib.ndiff(script.text.splitlines(), text.splitlines())
    return [line for line in lines if line[0] in "+-"], text


def test_a_setting_is_changed_where_it_stands_and_nothing_else() -> None:
    lines, text = changed_lines(parse(SCRIPT), [f"{MICRO}=16"])
    assert lines == [f"-     {MICRO}=$MB \\", f"+     {MICRO}=16 \\"]
    assert f"{MICRO}=16" in parse(text).overrides


def test_a_setting_of_an_array_is_changed_in_the_array() -> None:
    lines, _ = changed_lines(parse(SCRIPT), ["actor_rollout_ref.rollout.n=8"])
    assert lines == [
        "-     actor_rollout_ref.rollout.n=5",
        "+     actor_rollout_ref.rollout.n=8",
    ]


def test_an_appended_setting_stays_appended() -> None:
    _, text = changed_lines(parse(SCRIPT), ["trainer.note=it's"])
    assert "+trainer.note=it's" in parse(text).overrides


def test_a_new_setting_stands_behind_the_last_one_and_before_the_scripts_arguments() -> None:
    lines, text = changed_lines(parse(SCRIPT), ["++a.b=[1,2]", "c=${d}"])
    assert lines == [
        "-     trainer.nnodes=1 $@ 2>&1 | tee run.log",
        "+     trainer.nnodes=1 \\",
        "+     ++a.b='[1,2]' \\",
        "+     c='${d}' $@ 2>&1 | tee run.log",
    ]
    assert parse(text).overrides == [*parse(SCRIPT).overrides, "++a.b=[1,2]", "c=${d}"]


def test_the_last_of_two_words_decides() -> None:
    script = parse("python -m verl.trainer.main_ppo a=1 b=2 a=3")
    assert parse(with_overrides(script, ["a=4"], ())).overrides == ["a=1", "b=2", "a=4"]


def test_a_word_that_gives_two_settings_is_left_alone() -> None:
    script = parse('X="a=1 b=2"\npython -m verl.trainer.main_ppo $X')
    assert parse(with_overrides(script, ["a=4"], ())).overrides == ["a=1", "b=2", "a=4"]


def test_the_note_stands_below_the_first_line() -> None:
    text = with_overrides(parse(SCRIPT), [], ["tuned"])
    assert text.startswith("#!/usr/bin/env bash\n# tuned\nset -x\n")
    assert with_overrides(parse(SCRIPT), [], ()) == SCRIPT


@pytest.mark.parametrize(
    "overrides",
    [
        ["a=1", "+b.c={x:1,y:'z w'}", "~d", "e=", "f='it\\'s'", "g=${h}", "i=[1,2]"],
        ["trainer.logger=[console]"],
        [],
    ],
)
@pytest.mark.parametrize("config_name", ["ppo_trainer", "ppo_megatron_trainer"])
def test_a_job_without_a_script_gets_one_that_says_the_same(
    overrides: list[str], config_name: str
) -> None:
    script = parse(script_of(config_name, overrides))
    assert (script.config_name, script.overrides) == (config_name, overrides)


def test_a_key_stays_readable_when_its_value_is_quoted() -> None:
    assert quoted("a.b=[1,2]") == "a.b='[1,2]'"
    assert quoted("~a.b") == "'~a.b'"


def test_secrets_of_a_script_are_masked() -> None:
    text = without_secrets("export WANDB_API_KEY=abc123\nHF_TOKEN=\"x y\" run max_tokens=5 a=1")
    assert "abc123" not in text and "x y" not in text
    assert "export WANDB_API_KEY='<removed>'\n" in text and "max_tokens=5 a=1" in text
