"""Files and folders that a verl job names: whether they exist, and where.

Runs in the driver. verl's workers run in other folders and on other nodes than the command line, so
that a relative path becomes absolute here. Names on the Hugging Face hub (``org/name``) and URLs
stay as they are; nothing is loaded, and no hub is asked.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.errors import BadInputError
from autotune.verl_bridge import job

_HUB_ID = re.compile(r"(?!.*(--|\.\.))(\w([\w.-]*\w)?/\w([\w.-]*\w)?)", re.ASCII)
MAX_HUB_ID = 96
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

_MODELS = ("path", "tokenizer_path", "hf_config_path", "lora_adapter_path")
_FILES = {
    "data.train_files": "data file",
    "data.val_files": "data file",
    "reward.custom_reward_function.path": "reward file",
    "custom_reward_function.path": "reward file",
}
_DATA_FORMATS = (".parquet", ".json", ".jsonl")
"""What verl's own dataset reads (utils/dataset/rl_dataset.py)."""


def absolute_paths(leaves: Mapping[str, object], base_dir: Path) -> dict[str, object]:
    """Check that the files and folders of a job exist, and return its relative ones as absolute
    paths.

    Args:
        leaves: The job's configuration, flattened.
        base_dir: Folder that relative paths start from.

    Returns:
        Key -> absolute value, for the keys that change.

    Raises:
        BadInputError: A file or folder is not named, does not exist or is not what it should be;
            or a hub is needed and the environment forbids it.
    """
    _check_named(leaves)
    found: dict[str, object] = {}
    for key in _model_keys(leaves):
        value = leaves.get(key)
        found[key] = _model_path(key, value, base_dir)
        if value is not None and found[key] == value and is_hub_id(value, base_dir):
            _check_online(key, str(value))
    _check_configs(leaves, found)
    for key, what in _FILES.items():
        found[key] = _file_paths(key, leaves.get(key), base_dir, what)
        if "reward" in what and isinstance(found[key], str) and Path(str(found[key])).is_dir():
            raise BadInputError(f"{key}: {found[key]} is a folder.", "Name a file.")
    for key in _read_by_verl(leaves):
        _check_formats(key, found[key])
    return {key: value for key, value in found.items() if value != leaves.get(key)}


def relative_files(leaves: Mapping[str, object], base_dir: Path) -> dict[str, Path]:
    """Return the files and folders that a job names by relative paths: key -> where it is here.

    Nothing is said about absolute paths: the job may run where they exist.

    Raises:
        BadInputError: One of them does not exist, or one that every job has is not named.
    """
    _check_named(leaves)
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


def hub_names(leaves: Mapping[str, object], base_dir: Path) -> dict[str, str]:
    """Return the models that are no folders here and are taken for names on the hub."""
    found = {key: leaves.get(key) for key in _model_keys(leaves)}
    return {key: str(value) for key, value in found.items() if is_hub_id(value, base_dir)}


def is_hub_id(value: object, base_dir: Path) -> bool:
    """Say whether a model can only be on the hub: ``org/name``, and there is no ``org`` here."""
    if not isinstance(value, str) or len(value) > MAX_HUB_ID or not _HUB_ID.fullmatch(value):
        return False
    return not (base_dir / value.split("/")[0]).is_dir()


def _check_named(leaves: Mapping[str, object]) -> None:
    """Refuse null where verl needs a model or a file."""
    models = [key for key in _model_keys(leaves) if key.endswith("model.path")]
    for key in (*models, *_read_by_verl(leaves)):
        if leaves[key] in (None, "", []):
            raise BadInputError(
                f"{key} is {leaves[key]!r}.", "verl does not start without one: name it."
            )


def _read_by_verl(leaves: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keys of data files, unless a dataset of the job's own reads them."""
    if leaves.get("data.custom_cls.path") is not None:
        return ()
    return "data.train_files", "data.val_files"


def _check_formats(key: str, value: object) -> None:
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        if not isinstance(item, str):
            continue
        is_folder = not _is_url(item) and Path(item).is_dir()
        if is_folder or not item.endswith(_DATA_FORMATS):
            where = f"{key}[{index}]" if isinstance(value, list) else key
            raise BadInputError(
                f"{where} is {'the folder ' if is_folder else ''}'{item}'.",
                f"verl reads files that end in {', '.join(_DATA_FORMATS)}.",
            )


def _check_configs(leaves: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Refuse a local model whose ``config.json`` verl would not find."""
    for key in _model_keys(leaves):
        if not key.endswith("model.path"):
            continue
        other = f"{key.removesuffix('path')}hf_config_path"
        source = other if found.get(other) is not None else key
        folder = Path(str(found[source]))
        if folder.is_absolute() and not (folder / "config.json").is_file():
            raise BadInputError(
                f"{source}: {folder} holds no config.json.",
                "Give the folder of a model in Hugging Face's format.",
            )


def _check_online(key: str, name: str) -> None:
    """Refuse a name on the hub that is neither on this machine nor may be downloaded to it."""
    variables = [variable for variable in _OFFLINE if _is_set(os.environ.get(variable, ""))]
    if variables and not (_hub_cache() / f"models--{name.replace('/', '--')}").is_dir():
        raise BadInputError(
            f"{key}: there is no model folder '{name}' here, nor a model of this name in "
            f"{_hub_cache()}, and {variables[0]} forbids to ask the Hugging Face hub.",
            "Give the folder of a model.",
        )


def _hub_cache() -> Path:
    """Return where the hub's models are kept on this machine, as ``huggingface_hub`` finds it."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def _is_set(value: str) -> bool:
    return value.upper() in ("1", "ON", "YES", "TRUE")


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
    if path.is_dir():
        return str(path)
    if path.exists():
        raise BadInputError(f"{key}: {path} is a file.", "Give the folder of a model.")
    if is_hub_id(value, base_dir):
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
