"""A sweep's rollout, generated once and replayed in every trial: its files, and verl's way to it.

Runs in the trial's verl process. The first job generates the rollout of each of a trial's steps
with the first weights, before its first step, and writes one safetensors file a step: tensors as
they are, everything else as JSON in the file's header; no pickle is ever read. The folder appears
under its name when it is whole, so that of several jobs the first one counts; each of them replays
what it reads from there. verl then finds the step's batch in TransferQueue, as if it had been
generated.
"""

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from autotune.errors import BadInputError

PARTITION = "train"
"""verl's partition of TransferQueue for what is trained on."""
KEPT_AS_JSON = ("uid", "num_turns")
"""What verl reads of a rollout besides its tensors, after it was sampled."""

_BATCHES, _DRAFT = "batches", ".draft_"
"""The rollout, and the beginning of a draft's name, which no copy of the sweep's folder holds."""
_HEADER = "rollout"
_VALUES, _LENGTHS = ".values", ".lengths"


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """What one step trains on, in the order in which verl sampled it."""

    keys: list[str]
    """TransferQueue's key of each sequence."""
    tags: list[dict[str, Any]]
    """TransferQueue's tag of each sequence."""
    tensors: dict[str, list[torch.Tensor]]
    """Field -> one tensor a sequence."""
    texts: dict[str, list[Any]]
    """Field of KEPT_AS_JSON -> one value a sequence."""

    @staticmethod
    def of(keys: Sequence[str], tags: Sequence[Mapping[str, Any]], fields: Any) -> "RolloutBatch":
        """Return the batch that TransferQueue holds.

        Args:
            keys: Of the sequences.
            tags: Of the sequences.
            fields: All of their fields, a TensorDict in the same order.

        Raises:
            BadInputError: It holds images or the like, which are no tensors of tokens.
        """
        values = {name: fields.get(name) for name in sorted(fields.keys())}
        images = values.get("multi_modal_inputs")
        if images is not None and any(len(entry) for entry in images.tolist()):
            raise BadInputError(
                "trial.fidelity is 'update', but the rollout holds images, audio or video, which "
                "are not kept.",
                "Set trial.fidelity: full.",
            )
        return RolloutBatch(
            keys=list(keys),
            tags=[dict(tag) for tag in tags],
            tensors={
                name: list(value.unbind())
                for name, value in values.items()
                if isinstance(value, torch.Tensor)
            },
            texts={name: values[name].tolist() for name in KEPT_AS_JSON if name in values},
        )

    def to_fields(self) -> Any:
        """Return the fields as TransferQueue takes them."""
        from tensordict import NonTensorStack, TensorDict

        fields = {
            name: torch.stack(rows)
            if rows[0].dim() == 0
            else torch.nested.as_nested_tensor(rows, layout=torch.jagged)
            for name, rows in self.tensors.items()
        }
        texts = {name: NonTensorStack(*entries) for name, entries in self.texts.items()}
        return TensorDict({**fields, **texts}, batch_size=[len(self.keys)])


def write_batch(path: Path, batch: RolloutBatch) -> None:
    """Write one step's batch."""
    columns: dict[str, torch.Tensor] = {}
    for name, rows in batch.tensors.items():
        if rows[0].dim() == 0:
            columns[name + _VALUES] = torch.stack(rows)
        else:
            columns[name + _VALUES] = torch.cat(rows)
            columns[name + _LENGTHS] = torch.tensor([len(row) for row in rows])
    header = {"keys": batch.keys, "tags": batch.tags, "texts": batch.texts}
    save_file(columns, path, metadata={_HEADER: json.dumps(header)})


def read_batch(path: Path) -> RolloutBatch:
    """Read what :func:`write_batch` wrote."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[_HEADER])
        columns = {name: file.get_tensor(name) for name in file.keys()}
    tensors = {}
    for column, values in columns.items():
        if column.endswith(_VALUES):
            name = column.removesuffix(_VALUES)
            lengths = columns.get(name + _LENGTHS)
            rows = values.unbind() if lengths is None else values.split(lengths.tolist())
            tensors[name] = list(rows)
    return RolloutBatch(
        keys=header["keys"], tags=header["tags"], tensors=tensors, texts=header["texts"]
    )


def _file_of(step: int) -> str:
    return f"step_{step:04d}.safetensors"


class KeptRollout:
    """The rollout of one sweep.

    Args:
        folder: Holds it; the driver makes it, see :func:`autotune.tuning.trials_of`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def is_there(self) -> bool:
        """Whether all steps are kept."""
        return (self._folder / _BATCHES).is_dir()

    @contextmanager
    def written(self) -> Iterator["Draft"]:
        """Give a draft to write all steps to; it counts from here on, unless another job was
        first."""
        draft = self._folder / f"{_DRAFT}{uuid.uuid4().hex}"
        draft.mkdir()
        try:
            yield Draft(draft)
            try:
                draft.rename(self._folder / _BATCHES)
            except OSError:
                if not self.is_there:
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def read(self, step: int) -> RolloutBatch:
        """Return the batch of a step."""
        return read_batch(self._folder / _BATCHES / _file_of(step))


class Draft:
    """A rollout that is being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, step: int, batch: RolloutBatch) -> None:
        """Write the batch of a step."""
        write_batch(self._folder / _file_of(step), batch)


class ReplayedRollout:
    """Stands where verl has its replay buffer (trainer_base.py ``_step_once``), and hands out the
    kept batch of each step instead of waiting for answers."""

    failure_keys: Mapping[str, frozenset[str]] = {PARTITION: frozenset()}
    """No prompt ever fails."""

    def __init__(self, kept: KeptRollout) -> None:
        self._kept = kept
        self._ready: Any = None

    def load(self, step: int) -> None:
        """Put a step's batch into TransferQueue; not part of the step's time."""
        import transfer_queue as tq

        batch = self._kept.read(step)
        tq.kv_batch_put(
            keys=batch.keys, partition_id=PARTITION, fields=batch.to_fields(), tags=batch.tags
        )
        self._ready = tq.KVBatchMeta(keys=batch.keys, tags=batch.tags, partition_id=PARTITION)

    def sample(
        self, *, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[Any, dict[str, Any]]:
        """Return the batch that was loaded, once, as verl's replay buffer does."""
        batch, self._ready = self._ready, None
        assert batch is not None, f"step {global_steps} was not loaded"
        return batch, {}
