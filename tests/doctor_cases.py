"""Facts that the doctor's tests share."""

from typing import Any

from autotune.doctor.node_probe import Gpu, NodeFacts

GOOD_VERSIONS = {
    "verl": "0.9.1",
    "torch": "2.11.0+cu130",
    "ray": "2.60.0",
    "transformers": "5.9.0",
    "tensordict": "0.10.0",
    "TransferQueue": "0.1.11",
    "optuna": "5.0.0",
    "vllm": "0.24.0",
}


def node(**changes: Any) -> NodeFacts:
    """A node on which everything is right."""
    values: dict[str, Any] = {
        "host": "node-a",
        "python": "3.12.4",
        "versions": GOOD_VERSIONS,
        "gpus": [Gpu(name="H100", total_gib=80.0, free_gib=79.5)] * 2,
        "missing_paths": {},
        "verl_problems": [],
        "has_flash_attn": True,
        "shm_free_gib": 64.0,
        "temp_free_gib": 500.0,
        "open_files": 65536,
        "num_cores": 64,
        "environment": {},
        "wandb_mode": None,
        "has_wandb_key": True,
        "absent": {},
    }
    return NodeFacts(**{**values, **changes})
