"""Reads wandb's offline runs back: LevelDB's log format around wandb's own protobuf records."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as wire

BLOCK_BYTES, HEADER_BYTES, FILE_HEADER_BYTES = 32 * 1024, 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """One run as its `.wandb` file holds it."""

    id: str = ""
    name: str = ""
    group: str = ""
    project: str = ""
    job_type: str = ""
    tags: tuple[str, ...] = ()
    exit_code: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    artifacts: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """Name -> type and aliases."""


def read_runs(sweep_folder: Path) -> list[OfflineRun]:
    """All runs of a sweep, by id."""
    paths = sweep_folder.glob("wandb/offline-run-*/run-*.wandb")
    return sorted((read_run(path) for path in paths), key=lambda run: run.id)


def read_run(path: Path) -> OfflineRun:
    run = OfflineRun()
    for record in records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id, run.name, run.group = (
                record.run.run_id,
                record.run.display_name,
                record.run.run_group,
            )
            run.project, run.job_type = record.run.project, record.run.job_type
            run.tags = tuple(record.run.tags)
            run.config |= _items(record.run.config.update)
        elif kind == "config":
            run.config |= _items(record.config.update)
        elif kind == "summary":
            run.summary |= _items(record.summary.update)
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
        else:
            _note_artifact(record, run)
    return run


def records(data: bytes) -> Iterator[Any]:
    """The records of a log: chunks of at most one block, joined from FIRST to LAST."""
    assert data[:4] == b":W&B"
    position, parts = FILE_HEADER_BYTES, []
    while position + HEADER_BYTES <= len(data):
        if BLOCK_BYTES - position % BLOCK_BYTES < HEADER_BYTES:
            position += BLOCK_BYTES - position % BLOCK_BYTES
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, position)
        position += HEADER_BYTES
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        parts.append(data[position : position + length])
        position += length
        if kind in (FULL, LAST):
            yield wire.Record.FromString(b"".join(parts))  # type: ignore[attr-defined]
            parts = []


def _note_artifact(record: Any, run: OfflineRun) -> None:
    artifact = None
    if record.WhichOneof("record_type") == "artifact":
        artifact = record.artifact
    elif record.WhichOneof("record_type") == "request":
        if record.request.WhichOneof("request_type") == "log_artifact":
            artifact = record.request.log_artifact.artifact
    if artifact is not None:
        run.artifacts[artifact.name] = (artifact.type, tuple(sorted(artifact.aliases)))


def _items(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
