"""The quickstart's job on this machine, for tests that run it."""

import contextlib
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from autotune.config import Sweep, load_sweep
from autotune.objective import StepRecord

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "search_spaces" / "quickstart_cpu.yaml"
TINY: dict[str, object] = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "tie_word_embeddings": False,
}
"""The model's configuration, as far as its shape is read from it."""


class Run(Protocol):
    """A setting that ran."""

    @property
    def steps(self) -> Sequence[StepRecord]: ...


@contextlib.contextmanager
def quickstart_files() -> Iterator[None]:
    """Make the tiny model and its data, and stand where the sweep file's paths begin."""
    make_assets = [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"]
    subprocess.run(make_assets, cwd=ROOT, check=True)
    with contextlib.chdir(ROOT):
        yield


def load_quickstart(*overrides: str, file: Path = QUICKSTART) -> Sweep:
    """Load the sweep, or one that was made from it; within :func:`quickstart_files`."""
    return load_sweep(file, overrides)


def values(run: Run, metric: str, steps: Collection[int] | None = None) -> list[float]:
    """Return a metric of every step, or of these."""
    found = [step.metrics[metric] for step in run.steps if steps is None or step.step in steps]
    assert all(isinstance(value, float) for value in found), found
    return found  # type: ignore[return-value]
