"""verl's workers on the CPU, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

FLASH_ATTN = """
def cross_entropy_loss(*arguments, **keywords):
    raise RuntimeError("needs a device")
"""
SCORE = """
import torch
from autotune.verl_bridge.workers import _init_gloo
from verl.utils import torch_functional

_init_gloo()
assert torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE
logits = torch.tensor([[0.0, 0.0], [0.0, torch.log(torch.tensor(3.0))]])
scores = torch_functional.logprobs_from_logits(logits, torch.tensor([0, 1]))
print([round(value, 4) for value in scores.exp().tolist()])
"""


def test_where_flash_attn_is_installed_the_cpu_scores_without_it(tmp_path: Path) -> None:
    # As on a GPU host that runs a job on its CPU.
    package = tmp_path / "flash_attn" / "ops" / "triton"
    package.mkdir(parents=True)
    (package / "cross_entropy.py").write_text(FLASH_ATTN)
    for folder in (package, *list(package.parents)[:2]):
        (folder / "__init__.py").touch()
    metadata = tmp_path / "flash_attn-2.8.3.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n")
    (metadata / "top_level.txt").write_text("flash_attn\n")
    environment = {
        **os.environ,
        "VERL_PLATFORM": "cpu",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "DIST_INIT_METHOD": f"file://{tmp_path / 'group'}",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCORE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0.5, 0.75]"
