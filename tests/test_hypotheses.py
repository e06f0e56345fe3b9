"""What a sweep file asks to try first is tried as written, or refused with its key."""

from pathlib import Path

import pytest
from test_config import SweepFile

from autotune.errors import BadInputError

MICRO, SCORING = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
RESHARD, DEPTH = "reshard_after_forward", "backward_prefetch_depth"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFile:
    monkeypatch.chdir(tmp_path)
    # The base job's own micro-batch, 2, lies outside the domain.
    knobs = {
        MICRO: {"choices": [1, 3, 4]},
        RESHARD: {"choices": [True, False]},
        "bucket_size": {"low": 0, "high": 100, "step": 10},
        DEPTH: {"choices": [0, 2], "when": {RESHARD: True}},
    }
    return SweepFile(tmp_path).set("knobs", knobs)


@pytest.mark.parametrize(
    "hypothesis",
    [
        {},
        {MICRO: 4},
        {MICRO: 4.0},
        {RESHARD: False},  # the micro-batch, left out, is brought into its domain
        {"bucket_size": 1e1},
        {RESHARD: True, DEPTH: 2},
        {RESHARD: False, DEPTH: 0},
    ],
)
def test_settings_of_the_space_may_be_tried_first(file: SweepFile, hypothesis: object) -> None:
    assert file.set("search.first", [hypothesis]).load().config.search.first == [hypothesis]


@pytest.mark.parametrize(
    ("hypothesis", "message"),
    [
        ({"nope": 1}, r"search.first\[1\].nope: there is no such knob. The sweep's knobs are: "),
        ({"bucket_sise": 1}, "bucket_sise: there is no such knob. Did you mean 'bucket_size'"),
        ({SCORING: 4}, f"{SCORING}: it is not a knob of this sweep"),
        ({MICRO: "abc"}, rf"search.first\[1\].{MICRO} is 'abc' \(str\). .*takes an integer"),
        ({MICRO: None}, f"{MICRO} is None"),
        ({MICRO: 0}, f"{MICRO} is 0, outside what the knob may take"),
        ({MICRO: 5}, f"{MICRO} is 5, which is not in the knob's domain. .*choices 1, 3, 4"),
        ({MICRO: 2}, f"{MICRO} is 2, which is not in the knob's domain"),
        ({"bucket_size": 15}, "bucket_size is 15, which .* from 0 to 100 in steps of 10"),
        ({"bucket_size": 110}, "bucket_size is 110, which is not in"),
        ({RESHARD: 5}, rf"{RESHARD} is 5 \(int\)"),
        ({RESHARD: False, DEPTH: 2}, f"{DEPTH} is 2, but the knob does not act"),
        ({MICRO: 3}, r"search.first\[1\]: verl refuses it: micro_batch_in_mini_batch"),
    ],
)
def test_anything_else_is_refused_when_the_file_is_loaded(
    file: SweepFile, hypothesis: object, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        file.set("search.first", [{}, hypothesis]).load()
