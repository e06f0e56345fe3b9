"""Files and folders that a verl job names: whether they exist, and where.

Runs in the driver. verl's workers run in other folders and on other nodes than the command line, so
that a relative path becomes absolute here. Names on the Hugging Face hub (``org/name``) and URLs
stay as they are; nothing is loaded.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.errors import BadInputError
from autotune.verl_bridge import job

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")

_MODELS = ("path", "tokenizer_path", "hf_config_path", "lora_adapter_path")
_FILES = {
    "data.train_files": "data file",
    "data.val_files": "data file",
    "reward.custom_reward_function.path": "reward file",
    "custom_reward_function.path": "reward file",
}


def absolute_paths(leaves: Mapping[str, object], base_dir: Path) -> dict[str, object]:
    """Check that the files and folders of a job exist, and return its relative ones as absolute
    paths.

    Args:
        leaves: The job's configuration, flattened.
        base_dir: Folder that relative paths start from.

    Returns:
        Key -> absolute value, for the keys that change.

    Raises:
        BadInputError: A file or folder does not exist.
    """
    found: dict[str, object] = {}
    for key in _model_keys(leaves):
        found[key] = _model_path(key, leaves.get(key), base_dir)
    for key, what in _FILES.items():
        found[key] = _file_paths(key, leaves.get(key), base_dir, what)
    return {key: value for key, value in found.items() if value != leaves.get(key)}


def relative_files(leaves: Mapping[str, object], base_dir: Path) -> dict[str, Path]:
    """Return the files and folders that a job names by relative paths: key -> where it is here.

    Nothing is said about absolute paths: the job may run where they exist.

    Raises:
        BadInputError: One of them does not exist.
    """
    found: dict[str, Path] = {}
    for key, value in _named_paths(leaves):
        if Path(value).expanduser().is_absolute():
            continue
        what = _FILES.get(key.partition("[")[0])
        located = (
            _model_path(key, value, base_dir)
            if what is None
            else _file_paths(key, value, base_dir, what)
        )
        if located != value:
            found[key] = Path(str(located))
    return found


def needed_paths(leaves: Mapping[str, object], base_dir: Path) -> dict[str, str]:
    """Return where a job looks for its files and folders, there or not: key -> absolute path.

    A model's name on the hub is none.
    """
    found = {}
    for key, value in _named_paths(leaves):
        is_model = key.partition("[")[0] not in _FILES
        path = _locate(value, base_dir)
        if not (is_model and _HUB_ID.fullmatch(value) and not path.exists()):
            found[key] = str(path)
    return found


def _named_paths(leaves: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield what a job names on disk or on the hub, each entry of a list by itself."""
    for key in (*_model_keys(leaves), *_FILES):
        value = leaves.get(key)
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, str) and not _is_url(item):
                yield f"{key}[{index}]" if isinstance(value, list) else key, item


def _model_keys(leaves: Mapping[str, object]) -> list[str]:
    sections = [job.MODEL, "critic.model"] if job.has_critic(leaves) else [job.MODEL]
    return [f"{section}.{name}" for section in sections for name in _MODELS]


def _model_path(key: str, value: object, base_dir: Path) -> object:
    if not isinstance(value, str) or _is_url(value):
        return value
    path = _locate(value, base_dir)
    if path.exists():
        return str(path)
    is_hub_id = (
        _HUB_ID.fullmatch(value) is not None and not (base_dir / value.split("/")[0]).is_dir()
    )
    if is_hub_id:
        return value
    raise BadInputError(
        f"{key}: model folder '{value}' does not exist (looked at {path}).",
        "Give the folder of a model, or the name of one on the Hugging Face hub as org/name.",
    )


def _file_paths(key: str, value: object, base_dir: Path, what: str) -> object:
    if isinstance(value, list):
        return [
            _file_paths(f"{key}[{index}]", item, base_dir, what) for index, item in enumerate(value)
        ]
    if not isinstance(value, str) or _is_url(value):
        return value
    path = _locate(value, base_dir)
    if not path.exists():
        raise BadInputError(
            f"{key}: {what} '{value}' does not exist (looked at {path}).",
            "Relative paths start from the folder in which the command runs.",
        )
    return str(path)


def _locate(value: str, base_dir: Path) -> Path:
    return (base_dir / Path(value).expanduser()).absolute()


def _is_url(value: str) -> bool:
    return "://" in value
