"""Make a model, data and a reward for the search spaces: random weights, without a download.

Runs by hand or from scripts/quickstart.sh. Writes one folder::

    model/        Qwen2 with random weights (``--size``), byte-level tokenizer, chat template
    train.parquet, test.parquet   small sums, in verl's format
    reward.py     verl's custom reward function
    manifest.json what the folder was made from; an unchanged folder is left as it is

The model cannot calculate. It is there to run every part of a PPO step, and its reward varies.
``tiny`` is the quickstart's; the other sizes have the shapes of Qwen2.5, and its speed and memory.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
class ModelShape:
    """A Qwen2 model; all of its heads have ``hidden_size / num_heads`` dimensions."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    tied: bool
    """Whether the embedding is the output layer too."""
    vocabulary: int | None
    """Tokens; None: bytes and special tokens only."""
    dtype: str
    question: str
    """Text around a sum."""


_SHOP = "A shop counts what it has sold today. What is {sum}? Give the number only."
SIZES = {
    "tiny": ModelShape(
        hidden_size=64,
        intermediate_size=128,
        num_layers=4,
        num_heads=4,
        num_key_value_heads=2,
        tied=False,
        vocabulary=None,
        dtype="float32",
        question="{sum} = ?",
    ),
    "0.5B": ModelShape(
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_key_value_heads=2,
        tied=True,
        vocabulary=151936,
        dtype="bfloat16",
        question=_SHOP,
    ),
    "1.5B": ModelShape(
        hidden_size=1536,
        intermediate_size=8960,
        num_layers=28,
        num_heads=12,
        num_key_value_heads=2,
        tied=True,
        vocabulary=151936,
        dtype="bfloat16",
        question=_SHOP,
    ),
    "7B": ModelShape(
        hidden_size=3584,
        intermediate_size=18944,
        num_layers=28,
        num_heads=28,
        num_key_value_heads=4,
        tied=False,
        vocabulary=152064,
        dtype="bfloat16",
        question=_SHOP,
    ),
}
"""``--size`` -> shape; all but ``tiny`` as in Qwen2.5's configurations."""

_MAX_POSITIONS = {"tiny": 512}
_WEIGHT_SCALE = 0.02


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    num_train: int = 256
    """Rows of train.parquet."""
    num_test: int = 16
    """Rows of test.parquet."""
    size: str = "tiny"
    """Key of :data:`SIZES`."""
    seed: int = 0
    """Seed of the weights and the questions."""
    with_weights: bool = True
    """Whether the model has its weights; without them a sweep file can be checked, not run."""


def digest(scripts: Sequence[Path], settings: object) -> str:
    """Return the hash of scripts and their settings: what a folder of assets was made from.

    Args:
        scripts: The script that makes the assets, and those that it takes code from.
        settings: What else decides the assets' content.
    """
    content = b"".join(script.read_bytes() for script in scripts) + repr(settings).encode()
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
    """Write tokenizer, configuration and random weights; all have the same vocabulary."""
    shape = SIZES[settings.size]
    vocabulary = _vocabulary(shape.vocabulary)
    _write_tokenizer(folder, vocabulary)
    _write_config(folder, shape, vocabulary, _MAX_POSITIONS.get(settings.size, 32768))
    if settings.with_weights:
        _write_weights(folder, shape, len(vocabulary), settings.seed)


def _vocabulary(num_tokens: int | None) -> dict[str, int]:
    """Return special tokens, all bytes, and fillers that no text is ever cut into.

    Every token that the model can emit must have a text: engines that disagree on the vocabulary
    disagree on probabilities. Fillers are spelled in letters and digits, so that the reward varies.
    """
    from tokenizers import pre_tokenizers

    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    missing = 0 if num_tokens is None else num_tokens - len(tokens)
    # The first character stands for a space in front of the word.
    tokens += [f"\u0120{index:x}" for index in range(0x100000, 0x100000 + missing)]
    return {token: index for index, token in enumerate(tokens)}


def _write_tokenizer(folder: Path, vocabulary: Mapping[str, int]) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Byte-level without merges: transformers gives qwen2 models a byte-level tokenizer class.
    raw = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=[]))
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


def _write_config(
    folder: Path, shape: ModelShape, vocabulary: Mapping[str, int], max_positions: int
) -> None:
    from transformers import GenerationConfig, Qwen2Config

    special: dict[str, Any] = {
        "pad_token_id": vocabulary["<pad>"],
        "eos_token_id": vocabulary["<|im_end|>"],
        "bos_token_id": None,
    }
    Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        dtype=shape.dtype,
        vocab_size=len(vocabulary),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=shape.tied,
        **special,
    ).save_pretrained(folder)
    GenerationConfig(**special).save_pretrained(folder)


def _write_weights(folder: Path, shape: ModelShape, num_tokens: int, seed: int) -> None:
    """Write one file a layer, so that no more than one is ever in memory."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    dtype: torch.dtype = getattr(torch, shape.dtype)
    files: dict[str, str] = {}
    num_bytes = 0
    for number, sizes in enumerate(_parameters(shape, num_tokens)):
        tensors = {
            name: _random(name, size, generator).to(dtype) for name, size in sizes.items()
        }
        file = f"model-{number:05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, file)
        num_bytes += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": num_bytes}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _parameters(shape: ModelShape, num_tokens: int) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield the names and sizes of the embeddings and of each layer, as transformers names them."""
    hidden, mlp = shape.hidden_size, shape.intermediate_size
    key_value = hidden // shape.num_heads * shape.num_key_value_heads
    outer: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (num_tokens, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape.tied:
        outer["lm_head.weight"] = (num_tokens, hidden)
    yield outer
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.q_proj.bias": (hidden,),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.k_proj.bias": (key_value,),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.v_proj.bias": (key_value,),
        "self_attn.o_proj.weight": (hidden, hidden),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden),
        "mlp.down_proj.weight": (hidden, mlp),
    }
    for index in range(shape.num_layers):
        yield {f"model.layers.{index}.{name}": size for name, size in layer.items()}


def _random(name: str, size: tuple[int, ...], generator: Any) -> Any:
    """Return a parameter as transformers initialises it: norms 1, biases 0, the rest normal."""
    import torch

    if "norm" in name:
        return torch.ones(size)
    if name.endswith(".bias"):
        return torch.zeros(size)
    return torch.empty(size).normal_(0.0, _WEIGHT_SCALE, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a random model, data and a reward.")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="shape of the model")
    parser.add_argument("--out", type=Path, default=Path("demo/tiny"), help="folder to make")
    parser.add_argument(
        "--without-weights", action="store_true", help="enough to check a sweep file"
    )
    options = parser.parse_args()
    out: Path = options.out
    settings = DemoSettings(size=options.size, with_weights=not options.without_weights)
    made_from = digest([Path(__file__)], settings)
    if is_made(out, made_from):
        print(f"{out} is up to date")
        return

    def write(folder: Path) -> None:
        write_model(folder / "model", settings)
        write_questions(folder, settings, source="demo/sums", text=SIZES[settings.size].question)
        (folder / "reward.py").write_text(REWARD)

    build(out, made_from, asdict(settings), write)
    print(f"made {out}")


if __name__ == "__main__":
    main()
