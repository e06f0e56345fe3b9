"""A rank's trace on its way between processes and into files."""

import json
import pickle

from autotune.measure.traces import Collective, Kind, RankTrace

TRACE = RankTrace(
    rank=1,
    window_us=(0.0, 1e6),
    collectives=(
        Collective(
            kind=Kind.ALL_GATHER, start_us=0.0, end_us=2.0, group="0", group_size=2, num_bytes=8
        ),
    ),
    compute_us=((1.0, 3.0),),
    clock_offset_us=0.5,
)


def test_a_trace_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(TRACE)) == TRACE


def test_a_trace_survives_json() -> None:
    assert RankTrace.from_dict(json.loads(json.dumps(TRACE.to_dict()))) == TRACE
