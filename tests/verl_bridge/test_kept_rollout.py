"""A rollout that is kept: what is written is what is read, whole or not at all, and no pickle."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from tensordict import NonTensorStack, TensorDict

from autotune.errors import BadInputError
from autotune.verl_bridge.kept_rollout import KeptRollout, RolloutBatch, read_batch, write_batch

KEYS = ["b_0_0", "a_1_0", "a_0_0"]
TAGS = [{"status": "success", "seq_len": n, "min_global_steps": 0} for n in (5, 3, 4)]
RESPONSES = [torch.tensor([7, 8, 9]), torch.tensor([1]), torch.tensor([4, 5])]
LOG_PROBS = [torch.tensor([-0.1, -0.2, -0.3]), torch.tensor([-1.0]), torch.tensor([-2.0, 0.0])]
EXPERTS = [torch.arange(2 * n, dtype=torch.int16).reshape(n, 2) for n in (3, 1, 2)]


def fields(**more: Any) -> TensorDict:
    """What verl's TransferQueue returns of three answers."""
    return TensorDict(
        {
            "responses": torch.nested.as_nested_tensor(RESPONSES, layout=torch.jagged),
            "rollout_log_probs": torch.nested.as_nested_tensor(LOG_PROBS, layout=torch.jagged),
            "routed_experts": torch.nested.as_nested_tensor(EXPERTS, layout=torch.jagged),
            "index": torch.tensor([11, 12, 13]),
            "uid": NonTensorStack("b", "a", "a"),
            "num_turns": NonTensorStack(2, 2, 4),
            "raw_prompt": NonTensorStack(*[[{"role": "user"}]] * 3),
            "multi_modal_inputs": NonTensorStack({}, {}, {}),
            **more,
        },
        batch_size=[3],
    )


def batch() -> RolloutBatch:
    return RolloutBatch.of(KEYS, TAGS, fields())


def rows_of(value: Any) -> list[list[Any]]:
    return [row.tolist() for row in value.unbind()]


def test_a_batch_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_batch(tmp_path / "step", batch())
    found = read_batch(tmp_path / "step")
    assert (found.keys, found.tags, found.texts) == (KEYS, TAGS, batch().texts)
    assert found.tensors.keys() == batch().tensors.keys()
    for name, rows in batch().tensors.items():
        assert all(torch.equal(a, b) for a, b in zip(rows, found.tensors[name], strict=True))
        assert [row.dtype for row in rows] == [row.dtype for row in found.tensors[name]]


def test_transfer_queue_gets_back_what_it_gave_but_for_what_nobody_reads(tmp_path: Path) -> None:
    write_batch(tmp_path / "step", batch())
    found = read_batch(tmp_path / "step").to_fields()
    assert set(fields().keys()) - set(found.keys()) == {"raw_prompt", "multi_modal_inputs"}
    for name in ("responses", "rollout_log_probs", "routed_experts"):
        assert found[name].layout == torch.jagged
        assert rows_of(found[name]) == rows_of(fields()[name])
    assert found["index"].tolist() == [11, 12, 13]
    assert [*found["uid"]] == ["b", "a", "a"] and [*found["num_turns"]] == [2, 2, 4]


def test_a_rollout_with_images_is_refused() -> None:
    images = NonTensorStack({"pixel_values": torch.ones(2)}, {}, {})
    with pytest.raises(BadInputError, match="holds images, audio or video.*fidelity: full"):
        RolloutBatch.of(KEYS, TAGS, fields(multi_modal_inputs=images))


def test_a_pickle_in_the_place_of_a_batch_is_refused_and_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "mark",))

    (tmp_path / "step").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(SafetensorError):
        read_batch(tmp_path / "step")
    assert not (tmp_path / "mark").exists()


def test_the_rollout_is_there_once_all_steps_are_written(tmp_path: Path) -> None:
    kept = KeptRollout(tmp_path)
    with kept.written() as draft:
        draft.write(1, batch())
        assert not kept.is_there
        draft.write(2, batch())
    assert kept.is_there
    assert kept.read(2).keys == KEYS


def test_a_job_that_breaks_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    kept = KeptRollout(tmp_path)
    with pytest.raises(RuntimeError, match="no answer"), kept.written() as draft:
        draft.write(1, batch())
        raise RuntimeError("no answer")
    assert not kept.is_there and list(tmp_path.iterdir()) == []


def test_of_two_jobs_the_first_ones_rollout_counts(tmp_path: Path) -> None:
    kept = KeptRollout(tmp_path)
    late = RolloutBatch(keys=["z_0_0"], tags=[{}], tensors={"a": [torch.ones(1)]}, texts={})
    with kept.written() as other:
        with kept.written() as first:
            first.write(1, batch())
        other.write(1, late)
    assert kept.read(1).keys == KEYS
    assert [path.name for path in tmp_path.iterdir()] == ["batches"]


def test_the_header_is_plain_json(tmp_path: Path) -> None:
    write_batch(tmp_path / "step", batch())
    content = (tmp_path / "step").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["rollout"])["texts"]["num_turns"] == [2, 2, 4]
