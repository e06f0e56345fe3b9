"""The exposed share a second time, from Chrome traces: another reader and another method.

Nothing of the package is used to compute it. The package merges intervals and subtracts them; this
counts open intervals between neighbouring edges with pandas. Definitions are those of
``metrics.py``. Run as a script, it compares both on folders with the traces of each rank, as
``scripts/overlap_landscape.py --traces`` leaves them:

    python tests/measure/chrome_trace.py traces/*
"""

import gzip
import json
import sys
from pathlib import Path

import pandas as pd

# Spans around other operators, which hold the waiting of FSDP's hooks.
AROUND_OTHERS = ("autograd::", "torch::autograd::")
NO_COMPUTE = ("c10d::", "_c10d_functional::")
NCCL = r"^nccl\w*?Kernel_([A-Za-z]+)"
WITHIN = 0.02


def read(path: Path) -> pd.DataFrame:
    """Return a trace's complete events: name, cat, tid, start and end in microseconds since the
    epoch."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    events = pd.DataFrame([event for event in content["traceEvents"] if event["ph"] == "X"])
    start = events["ts"].astype(float) + content["baseTimeNanoseconds"] / 1e3
    return pd.DataFrame(
        {
            "name": events["name"].astype(str),
            "cat": events["cat"].astype(str),
            "tid": events["tid"].astype(str),
            "start": start,
            "end": start + events["dur"].astype(float),
        }
    )


def exposed_comm_ratio(
    ranks: list[pd.DataFrame], windows: list[tuple[float, float]], step_us: float
) -> float:
    """Return the largest exposed share of a rank; what it waits for a later rank is left out."""
    collectives = [_collectives(events) for events in ranks]
    arrivals = pd.concat([c["start"] for c in collectives], axis=1).max(axis=1)
    shares = []
    for events, own, (first, last) in zip(ranks, collectives, windows, strict=True):
        transfer = own.assign(start=arrivals.clip(upper=own["end"]))
        compute, hidden = _compute(events)
        edges = pd.concat(
            [
                _edges(transfer, "transfer"),
                _edges(compute, "compute"),
                _edges(hidden, "hidden"),
                pd.DataFrame({"time": [first, last], "what": "window", "change": [1, -1]}),
            ]
        )
        shares.append(_exposed_us(edges) / step_us)
    return max(shares)


def _collectives(events: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives; the same row label is the same collective on every rank."""
    own = events[_is_nccl(events) | events["name"].str.startswith("gloo:")].sort_values("start")
    kinds = own["name"].str.extract(NCCL)[0].fillna(own["name"])
    order = own.groupby(kinds).cumcount().astype(str)
    return own.set_index(kinds + "#" + order)


def _is_nccl(events: pd.DataFrame) -> pd.Series:
    return (events["cat"] == "kernel") & events["name"].str.match(NCCL)


def _compute(events: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what computes, and the spans in which an operator only waits or enqueues."""
    kernels = events[events["cat"] == "kernel"]
    if len(kernels):
        return kernels[~_is_nccl(kernels)], kernels.iloc[:0]
    gloo_threads = events.loc[events["name"].str.startswith("gloo:"), "tid"].unique()
    operators = events[
        (events["cat"] == "cpu_op")
        & events["name"].str.contains("::", regex=False)
        & ~events["name"].str.startswith(AROUND_OTHERS)
        & ~events["tid"].isin(gloo_threads)
    ]
    no_compute = operators["name"].str.startswith(NO_COMPUTE)
    return operators[~no_compute], operators[no_compute]


def _edges(spans: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return +1 where a span opens and -1 where it closes."""
    opened = pd.DataFrame({"time": spans["start"], "what": what, "change": 1})
    closed = pd.DataFrame({"time": spans["end"], "what": what, "change": -1})
    return pd.concat([opened, closed])


def _exposed_us(edges: pd.DataFrame) -> float:
    """Return for how long a transfer is open in the window and no operator computes."""
    changes = edges.pivot_table(index="time", columns="what", values="change", aggfunc="sum")
    open_spans = changes.fillna(0).cumsum()
    for what in ("transfer", "compute", "hidden", "window"):
        if what not in open_spans:
            open_spans[what] = 0
    lengths = pd.Series(open_spans.index[1:], open_spans.index[:-1]) - open_spans.index[:-1]
    computes = (open_spans["compute"] > 0) & (open_spans["hidden"] == 0)
    exposed = (open_spans["transfer"] > 0) & ~computes & (open_spans["window"] > 0)
    return float(lengths[exposed.loc[lengths.index]].sum())


def compare(folder: Path) -> tuple[float, float]:
    """Return the package's exposed share and the one computed here."""
    from autotune.measure.communication import step_communication
    from autotune.measure.traces import RankTrace

    own = sorted(folder.glob("rank_*[0-9].json"))
    traces = [RankTrace.from_dict(json.loads(path.read_text())) for path in own]
    step_us = max(end - start for start, end in (trace.window_us for trace in traces))
    values, _ = step_communication(traces, step_s=step_us / 1e6, weight_sync_s=0.0)
    first = values["exposed_comm_ratio"]
    assert first is not None
    second = exposed_comm_ratio(
        [read(path.with_suffix(".chrome.json.gz")) for path in own],
        [trace.window_us for trace in traces],
        step_us,
    )
    return first, second


def main(folders: list[str]) -> int:
    """Print both shares of every folder; 1 where they differ by more than two points."""
    worst = 0.0
    for name in folders:
        first, second = compare(Path(name))
        worst = max(worst, abs(first - second))
        print(f"{name}: {100 * first:.2f} %, a second time {100 * second:.2f} %")
    print(f"Largest difference: {100 * worst:.3f} percentage points")
    return int(worst > WITHIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
