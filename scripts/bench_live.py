"""What does a setting cost in a live job, and what in a job of its own?

Runs by hand, on the machine that it is about. Takes a sweep file, evaluates the same settings of
its training-side knobs, with --rollout of the rollout's too, live (one job, restarted in place) and
cold (a job for each), and prints rank-seconds a setting: ranks x seconds, start-up included. Writes
one JSON file with every number.

    python scripts/bench_live.py search_spaces/quickstart_cpu.yaml --settings 6 --out live.json

The settings are the base job's own and changes of one or two knobs that a live job can follow, in
an order drawn from a seed. The live figure is given twice: with the first start, and without it, as
in a sweep long enough not to notice it.
"""

import argparse
import contextlib
import dataclasses
import json
import platform
import random
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median

from autotune.config import Sweep, load_sweep
from autotune.in_order import Setting, SettingRun, run_cold, run_live
from autotune.knobs import KNOBS, Transition
from autotune.objective import Start
from autotune.store import write_atomic
from autotune.tuning import cluster
from autotune.verl_bridge.startup_times import PREFIX
from autotune.versions import versions

PARTS = ("engines", "model_load", "fsdp", "servers")
"""Parts of a start that workers report, see :mod:`autotune.verl_bridge.workers`."""
RESTART_PARTS = ("rollout_end", "rollout_memory", "rollout_start")
"""Parts of a restart of the rollout, see :mod:`autotune.verl_bridge.trainer`."""

OF_TRAINING = (Transition.HOT, Transition.ENGINE)
"""Changes that a live job follows with the rollout's servers as they are."""


def pick_settings(
    sweep: Sweep, count: int, seed: int, followed: Collection[Transition] = OF_TRAINING
) -> list[Setting]:
    """Return the base job's setting and ``count - 1`` different ones that a live job follows by
    these changes."""
    rng = random.Random(seed)
    baseline = sweep.space.baseline()
    turned = [name for name in sweep.config.knobs if KNOBS[name].transition in followed]
    picked: list[Setting] = [baseline]
    for _ in range(1000):
        if len(picked) == count:
            return picked
        setting = dict(baseline)
        for name in rng.sample(turned, min(2, len(turned))):
            setting[name] = rng.choice(sweep.config.knobs[name].choices or [baseline[name]])
        if setting not in picked and sweep.space.is_valid(setting):
            picked.append(setting)
    raise SystemExit(f"The sweep has fewer than {count} settings that a live job can follow.")


def cost(runs: Sequence[SettingRun]) -> dict[str, float]:
    """Return the figures of some runs; times are those of one setting."""
    return {
        "settings": len(runs),
        "rank_seconds_a_setting": sum(run.rank_seconds for run in runs) / len(runs),
        "startup_s": median(measured(run, "startup_s") for run in runs),
        "step_s": median(measured(run, "step_s") for run in runs),
    }


def measured(run: SettingRun, metric: str) -> float:
    """Return a metric that every completed trial has."""
    value = run.record.metrics[metric]
    assert value is not None, (metric, run.record.absent)
    return value


def table(live: Sequence[SettingRun], cold: Sequence[SettingRun]) -> str:
    """Return the comparison as text."""
    rows = {"cold": cost(cold), "live": cost(live), "live after the first": cost(live[1:])}
    for start, runs in by_start(live[1:]).items():
        rows[f"  start {start} ({len(runs)})"] = cost(runs)
    lines = [f"{'':24}{'rank-s a setting':>18}{'start-up s':>12}{'step s':>10}{'ratio':>8}"]
    base = rows["cold"]["rank_seconds_a_setting"]
    for name, row in rows.items():
        each = row["rank_seconds_a_setting"]
        lines.append(
            f"{name:24}{each:>18.1f}{row['startup_s']:>12.1f}{row['step_s']:>10.2f}"
            f"{base / each:>8.1f}"
        )
    return "\n".join(lines)


def by_start(runs: Sequence[SettingRun]) -> dict[str, list[SettingRun]]:
    """Return the runs of each kind of start that occurs."""
    found = {start.value: [run for run in runs if run.record.start is start] for start in Start}
    return {start: own for start, own in found.items() if own}


def startup(runs: Sequence[SettingRun]) -> str:
    """Return how a start is split up, as text; medians over runs of each part's slowest rank."""
    parts = {name: [first_metric(run, f"{PREFIX}{name}_s") for run in runs] for name in PARTS}
    whole = [measured(run, "startup_s") for run in runs]
    steps = [first_metric(run, "timing_s/step") - measured(run, "step_s") for run in runs]
    restart = {
        name: [first_metric(run, f"{PREFIX}{name}_s") for run in runs] for name in RESTART_PARTS
    }
    timed = [parts["engines"], parts["servers"], restart["rollout_end"], restart["rollout_memory"]]
    before = [total - sum(others) for total, *others in zip(whole, *timed, strict=True)]
    rows = {
        "processes, imports": before,
        "old rollout ended": restart["rollout_end"],
        "its memory back": restart["rollout_memory"],
        "engines": parts["engines"],
        "  loading models": parts["model_load"],
        "  FSDP": parts["fsdp"],
        "rollout, first weights": parts["servers"],
        "  restarted servers": restart["rollout_start"],
        "first step over later": steps,
    }
    return "\n".join(
        f"  {name:24}{median(values):>8.1f} s"
        for name, values in rows.items()
        if values not in restart.values() or any(values)
    )


def first_metric(run: SettingRun, key: str) -> float:
    """Return a metric of the first step; a part that a live start leaves out took no time."""
    value = run.steps[0].metrics.get(key, 0.0)
    assert isinstance(value, float | int), (key, value)
    return float(value)


def as_dict(run: SettingRun) -> dict[str, object]:
    """Return one run as plain data."""
    return {
        "setting": dict(run.record.setting),
        "state": run.record.state.value,
        "start": run.record.start.value,
        "rank_seconds": run.rank_seconds,
        "metrics": run.record.metrics,
        "startup": {
            key: value
            for key, value in run.steps[0].metrics.items()
            if key.startswith(PREFIX) or key == "timing_s/step"
        },
    }


def as_json(sweep: Sweep, live: Sequence[SettingRun], cold: Sequence[SettingRun]) -> str:
    """Return every number, with what they were measured on, as a file's text."""
    content = {
        "sweep": sweep.config.name,
        "ranks": sweep.config.resources.num_ranks,
        "protocol": dataclasses.asdict(sweep.config.trial),
        "machine": platform.platform(),
        "versions": dict(versions()),
        "live": [as_dict(run) for run in live],
        "cold": [as_dict(run) for run in cold],
    }
    return json.dumps(content, indent=1) + "\n"


def logs_in(folder: Path | None) -> contextlib.AbstractContextManager[Path | str]:
    """Return the folder for what the jobs print; None drops it at the end."""
    if folder is None:
        return tempfile.TemporaryDirectory()
    return contextlib.nullcontext(folder.absolute())


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare live trials with cold ones.")
    parser.add_argument("file", help="the sweep file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for autotune sweep")
    parser.add_argument("--settings", type=int, default=6, help="how many to evaluate each way")
    parser.add_argument("--seed", type=int, default=1, help="of the settings")
    parser.add_argument("--rollout", action="store_true", help="turn the rollout's knobs too")
    parser.add_argument("--out", type=Path, default=Path("live.json"), help="file for the numbers")
    parser.add_argument("--logs", type=Path, help="folder for what the jobs print; else dropped")
    parser.add_argument("--address", help="Ray cluster to use; without it a local one is started")
    options = parser.parse_args()
    sweep = load_sweep(options.file, options.overrides)
    followed = (*OF_TRAINING, Transition.ROLLOUT) if options.rollout else OF_TRAINING
    settings = pick_settings(sweep, options.settings, options.seed, followed)
    with cluster(sweep, options.address), logs_in(options.logs) as folder:
        live = run_live(sweep, settings, Path(folder) / "live")
        cold = run_cold(sweep, settings, Path(folder) / "cold")
    failed = [run.record.cause for run in [*live, *cold] if run.record.state.value != "complete"]
    if failed:
        raise SystemExit(f"{len(failed)} settings did not complete: {failed[0]}")
    write_atomic(options.out, as_json(sweep, live, cold))
    print(table(live, cold))
    print(f"A cold start, medians:\n{startup(cold)}")
    for start, runs in by_start(live[1:]).items():
        print(f"A live start of kind {start}, medians:\n{startup(runs)}")
    print(f"Every number: {options.out}")


if __name__ == "__main__":
    main()
