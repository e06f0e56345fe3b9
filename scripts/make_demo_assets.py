"""Make the quickstart's model, data and reward: random, tiny, without a download.

Runs by hand or from scripts/quickstart.sh. Writes one folder::

    model/        Qwen2 of 4 layers with random weights, byte-level tokenizer, chat template
    train.parquet, test.parquet   small sums, in verl's format
    reward.py     verl's custom reward function
    manifest.json what the folder was made from; an unchanged folder is left as it is

The model cannot calculate. It is there to run every part of a PPO step, and its reward varies.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = "manifest.json"

SPECIAL_TOKENS = ("<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

REWARD = '''"""Reward: the share of digits in the answer, plus 1 for the right number."""

import re


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None
) -> float:
    """Return a reward from 0 to 2; a random model gets a little of it, and not always the same."""
    if not solution_str:
        return 0.0
    digits = sum("0" <= character <= "9" for character in solution_str)
    right = ground_truth in re.findall(r"-?[0-9]+", solution_str)
    return digits / len(solution_str) + float(right)
'''


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    num_train: int = 256
    """Rows of train.parquet."""
    num_test: int = 16
    """Rows of test.parquet."""
    num_layers: int = 4
    hidden_size: int = 64
    seed: int = 0
    """Seed of the weights and the questions."""


def digest(script: Path, settings: object) -> str:
    """Return the hash of a script and its settings: what a folder of assets was made from."""
    content = script.read_bytes() + repr(settings).encode()
    return hashlib.sha256(content).hexdigest()


def is_made(out: Path, made_from: str) -> bool:
    """Return whether ``out`` holds complete assets made from the same script and settings."""
    manifest = out / MANIFEST
    return manifest.is_file() and json.loads(manifest.read_text())["made_from"] == made_from


def build(
    out: Path, made_from: str, details: Mapping[str, object], write: Callable[[Path], None]
) -> None:
    """Write a folder beside ``out`` and rename it, so that ``out`` is never half there.

    Args:
        out: Folder to make; an older one is replaced if it was made by :func:`build`.
        made_from: See :func:`digest`.
        details: More lines of the manifest.
        write: Writes the assets into the folder that it is given.
    """
    if out.exists() and not (out / MANIFEST).is_file():
        sys.exit(f"{out} exists and was not made by this script: move it away or give --out.")
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        fresh.chmod(0o755)
        write(fresh)
        manifest = {"made_from": made_from, **details}
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        if out.exists():
            shutil.rmtree(out)
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def question_rows(
    num_rows: int, *, split: str, source: str, text: str, rng: random.Random
) -> list[dict[str, object]]:
    """Return sums and differences of small numbers in verl's format; no answer is negative.

    Args:
        num_rows: Rows to make.
        split: ``train`` or ``test``.
        source: Name of the data set, given to the reward function.
        text: The question; ``{sum}`` stands for the sum, e.g. ``7 + 5``.
        rng: Source of the numbers.
    """
    rows: list[dict[str, object]] = []
    for index in range(num_rows):
        large, small = sorted((rng.randint(0, 9), rng.randint(0, 9)), reverse=True)
        sign = rng.choice("+-")
        answer = str(large + small if sign == "+" else large - small)
        question = text.format(sum=f"{large} {sign} {small}")
        rows.append(
            {
                "data_source": source,
                "prompt": [{"role": "user", "content": question}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": answer},
                "extra_info": {"split": split, "index": index, "question": question},
            }
        )
    return rows


def write_questions(folder: Path, settings: DemoSettings, *, source: str, text: str) -> None:
    """Write train.parquet and test.parquet; for the rest see :func:`question_rows`."""
    import pandas

    rng = random.Random(settings.seed)
    for split, num_rows in (("train", settings.num_train), ("test", settings.num_test)):
        rows = question_rows(num_rows, split=split, source=source, text=text, rng=rng)
        pandas.DataFrame(rows).to_parquet(folder / f"{split}.parquet")


def write_model(folder: Path, settings: DemoSettings) -> None:
    """Write tokenizer and random model; both have the same vocabulary."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    # Byte-level without merges: transformers gives qwen2 models a byte-level tokenizer class.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[-1],
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)

    torch.manual_seed(settings.seed)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=settings.hidden_size,
        intermediate_size=2 * settings.hidden_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=vocabulary["<pad>"],
        eos_token_id=vocabulary["<|im_end|>"],
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the quickstart's model, data and reward.")
    parser.add_argument("--out", type=Path, default=Path("demo/tiny"), help="folder to make")
    out: Path = parser.parse_args().out
    settings = DemoSettings()
    made_from = digest(Path(__file__), settings)
    if is_made(out, made_from):
        print(f"{out} is up to date")
        return

    def write(folder: Path) -> None:
        write_model(folder / "model", settings)
        write_questions(folder, settings, source="demo/sums", text="{sum} = ?")
        (folder / "reward.py").write_text(REWARD)

    build(out, made_from, asdict(settings), write)
    print(f"made {out}")


if __name__ == "__main__":
    main()
