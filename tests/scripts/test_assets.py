"""The quickstart's assets: made once for all tests, by the script itself."""

import json
import math
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from transformers import AutoTokenizer

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_demo_assets.py"

IS_MADE = """
import sys
from pathlib import Path

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
import make_smollm2

print(make_smollm2.is_made(folder / "smollm2", make_smollm2.made_from()))
"""

pytestmark = pytest.mark.slow


def make(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "tiny"
    done = make(out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def compute_score(assets: Path) -> Callable[[str, str, str], float]:
    function: Callable[[str, str, str], float] = runpy.run_path(str(assets / "reward.py"))[
        "compute_score"
    ]
    return function


def test_model_and_tokenizer_have_one_vocabulary(assets: Path) -> None:
    vocabulary = json.loads((assets / "model/tokenizer.json").read_text())["model"]["vocab"]
    config = json.loads((assets / "model/config.json").read_text())
    assert config["vocab_size"] == len(vocabulary) == 260


def test_questions_have_the_right_answer_and_none_is_negative(assets: Path) -> None:
    rows = pandas.read_parquet(assets / "train.parquet").to_dict("records")
    assert len(rows) == 256
    for row in rows:
        left, sign, right = row["prompt"][0]["content"].removesuffix(" = ?").split()
        answer = int(left) + int(right) if sign == "+" else int(left) - int(right)
        assert int(row["reward_model"]["ground_truth"]) == answer >= 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("", 0.0), ("abcd", 0.0), ("ab12", 0.5), ("a 7b", 1.25), ("7", 2.0), ("77", 1.0)],
)
def test_reward_is_the_share_of_digits_and_one_for_the_right_number(
    compute_score: Callable[[str, str, str], float], answer: str, expected: float
) -> None:
    assert compute_score("demo/sums", answer, "7") == expected


def test_an_unchanged_folder_is_left_as_it_is(assets: Path) -> None:
    before = os.stat(assets / "model/model-00000.safetensors").st_mtime_ns
    assert "up to date" in make(assets).stdout
    assert os.stat(assets / "model/model-00000.safetensors").st_mtime_ns == before


def test_the_same_script_makes_the_same_files(assets: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "again").returncode == 0
    for name in ("model/model-00000.safetensors", "train.parquet", "test.parquet", "manifest.json"):
        assert (tmp_path / "again" / name).read_bytes() == (assets / name).read_bytes()


def test_a_folder_that_it_did_not_make_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    done = make(tmp_path)
    assert done.returncode == 1
    assert "was not made by this script" in done.stderr
    assert (tmp_path / "mine.txt").read_text() == "keep"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize(
    ("size", "num_parameters"),
    # As the models' cards say, embeddings included once where they are tied.
    [("0.5B", 494_032_768), ("1.5B", 1_543_714_304), ("7B", 7_615_616_512)],
)
def test_large_sizes_have_the_shapes_of_qwen(
    script: dict[str, Any], size: str, num_parameters: int
) -> None:
    shape = script["SIZES"][size]
    files = script["_parameters"](shape, shape.vocabulary)
    counts = [math.prod(tensor) for file in files for tensor in file.values()]
    assert sum(counts) == num_parameters


def test_a_large_vocabulary_is_full_and_text_is_still_cut_into_bytes(
    script: dict[str, Any], tmp_path: Path
) -> None:
    vocabulary = script["_vocabulary"](151936)
    assert sorted(vocabulary.values()) == list(range(151936))
    script["_write_tokenizer"](tmp_path, vocabulary)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 151936
    assert len(tokenizer("7 + 5\n")["input_ids"]) == 6
    assert all(tokenizer.decode([index]) for index in (0, 259, 260, 151935))


def test_questions_with_their_chat_template_fit_the_prompts_of_the_search_spaces(
    script: dict[str, Any], tmp_path: Path
) -> None:
    script["_write_tokenizer"](tmp_path, script["_vocabulary"](None))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    longest = script["SIZES"]["0.5B"].question.format(sum="9 + 9")
    messages = [{"role": "user", "content": longest}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert len(tokenizer(text)["input_ids"]) <= 128


def test_smollm2_is_made_again_when_the_code_that_it_shares_changes(tmp_path: Path) -> None:
    for name in ("make_smollm2.py", "make_demo_assets.py"):
        (tmp_path / name).write_text((SCRIPT.parent / name).read_text())
    out = tmp_path / "smollm2"
    out.mkdir()
    scripts = [tmp_path / "make_smollm2.py", tmp_path / "make_demo_assets.py"]
    module = runpy.run_path(str(SCRIPT))
    made_from = module["digest"](scripts, module["DemoSettings"]())
    (out / "manifest.json").write_text(json.dumps({"made_from": made_from}))
    command = [sys.executable, str(scripts[0]), "--out", str(out)]
    before = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert "is up to date" in before.stdout
    with scripts[1].open("a") as file:
        file.write("# another question\n")
    after = subprocess.run(
        [sys.executable, "-c", IS_MADE, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert after.stdout.strip() == "False", after.stderr
