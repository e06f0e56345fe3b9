"""Do trials that run at once slow one another down? The base job alone and beside its like.

Runs in the driver, on a Ray cluster or a local one. A round is one job alone and ``--at-once`` jobs
beside one another, each on a placement group of its own with the sweep file's resources; every
other round begins with the latter. A group of jobs counts once, with its mean. Writes one JSON file
after every group and goes on from it when it is started again. Prints what follows:

    python scripts/disturbance.py search_spaces/quickstart_cpu.yaml --at-once 2 --out beside.json
"""

import argparse
import dataclasses
import json
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from autotune.config import Sweep, load_sweep
from autotune.in_order import SettingRun, run_at_once
from autotune.measure.at_once import disturbance
from autotune.objective import TrialState, is_maximised
from autotune.report.beside import disturbance_text
from autotune.store import write_atomic
from autotune.tuning import cluster
from autotune.versions import versions

SHOWN = ("step_s", "phase_update_actor_s", "phase_gen_s", "startup_s", "exposed_comm_ratio")
"""Metrics that are kept beside the objective."""


def schedule(rounds: int, at_once: int) -> list[int]:
    """Return how many jobs each group has, in the order in which the groups run."""
    sizes = [[1, at_once] if index % 2 == 0 else [at_once, 1] for index in range(rounds)]
    return [size for both in sizes for size in both]


def conclusion(groups: Sequence[dict[str, Any]], objective: str) -> dict[str, Any]:
    """Return what the groups so far say; without a group of each kind only their number."""
    sign = 1 if is_maximised(objective) else -1
    means = [(len(g["jobs"]), fmean(job[objective] for job in g["jobs"]) ** sign) for g in groups]
    alone = [mean for size, mean in means if size == 1]
    beside = [mean for size, mean in means if size > 1]
    found = disturbance([(alone, beside)])
    if found is None:
        return {"text": f"Groups so far: {len(groups)}; one of each kind is needed."}
    return {
        "text": f"Jobs at once: {disturbance_text(found)}.",
        "times_as_fast_as_alone": found.ratio,
        "interval": [found.low, found.high],
        "num_alone": found.num_alone,
        "num_beside": found.num_beside,
    }


def run_group(sweep: Sweep, size: int) -> dict[str, Any]:
    """Run some jobs of the base job's own setting at once; return what they measured."""
    with tempfile.TemporaryDirectory(prefix="autotune_disturbance_") as folder:
        runs = run_at_once(sweep, [sweep.space.baseline()] * size, Path(folder) / "logs")
    broken = [run.record for run in runs if run.record.state is not TrialState.COMPLETE]
    if broken:
        raise SystemExit(f"A job did not complete ({broken[0].state.value}): {broken[0].cause}")
    return {"jobs": [_job(run, sweep.config.objective.metric) for run in runs]}


def _job(run: SettingRun, objective: str) -> dict[str, Any]:
    record = run.record
    metrics = {name: record.metrics.get(name) for name in (objective, *SHOWN)}
    return {"started_at": record.started_at, "ended_at": record.ended_at, **metrics}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", help="the sweep file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for autotune sweep")
    parser.add_argument("--at-once", type=int, default=2, help="jobs beside one another")
    parser.add_argument("--rounds", type=int, default=3, help="of one group of each kind")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--address", help="Ray cluster to use; without it a local one is started")
    options = parser.parse_args()
    if options.at_once < 2:
        parser.error("--at-once must be at least 2")
    at_once = f"search.max_concurrent={options.at_once}"
    sweep = load_sweep(options.file, [*options.overrides, at_once])
    content: dict[str, Any] = {
        "sweep": sweep.config.name,
        "overrides": options.overrides,
        "at_once": options.at_once,
        "ranks_of_a_job": sweep.config.resources.num_ranks,
        "protocol": dataclasses.asdict(sweep.config.trial),
        "objective": sweep.config.objective.metric,
        "machine": platform.platform(),
        "versions": dict(versions()),
        "groups": _groups_in(options.out, options.at_once),
    }
    left = schedule(options.rounds, options.at_once)[len(content["groups"]) :]
    if left:
        with cluster(sweep, options.address):
            for size in left:
                content["groups"].append(run_group(sweep, size))
                content["conclusion"] = conclusion(content["groups"], content["objective"])
                write_atomic(options.out, json.dumps(content, indent=1) + "\n")
                print(f"{size} at once: {content['conclusion']['text']}", flush=True)
    print(conclusion(content["groups"], content["objective"])["text"])


def _groups_in(out: Path, at_once: int) -> list[dict[str, Any]]:
    if not out.exists():
        return []
    found = json.loads(out.read_text(encoding="utf-8"))
    if found["at_once"] != at_once:
        raise SystemExit(f"{out} holds groups of {found['at_once']}: give another --out.")
    groups: list[dict[str, Any]] = found["groups"]
    return groups


if __name__ == "__main__":
    main()
