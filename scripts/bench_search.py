"""How good are searches in landscapes: ours against others, the same noise and budgets for all.

    python scripts/bench_search.py --seeds 100 --out scripts/bench_search.json
    python scripts/bench_search.py --table scripts/bench_search.json

Every method begins with the baseline, sees only what a trial would report, and exports one setting;
the table says how fast that setting is in truth, relative to the best feasible one. Results are
appended to a file of lines beside the output as they come, so that a run that was interrupted goes
on. Each method's module of rules:

model, model_tpe, model_gp: ``SweepSearcher`` with its three samplers.
random: settings at random; exports the best that was measured feasible.
ray_optuna: Ray Tune's own OptunaSearch; a failed trial is an error; exports what
    ``ResultGrid.get_best_result`` would: the largest throughput.
ray_optuna_feasible: the same, exporting the best that was measured feasible.
optuna_tpe, optuna_gp: Optuna used with care: constraints of every trial set, failures told as
    violated, ordinal numbers, a fifth of the budget on the three best again.
deepspeed: the largest micro-batch that a memory model extrapolates to fit, doubling until the
    throughput no longer grows by 5 %, for one group of the other switches after the other.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autotune.knobs import KnobValue
from autotune.landscape import Landscape, LandscapeSpace, key_of, read_landscape
from autotune.objective import TrialRecord, best_feasible, is_maximised
from autotune.replay import ratio_to_optimum, run_directly
from autotune.settings import SearchConfig

ROOT = Path(__file__).resolve().parents[1]
LANDSCAPES = tuple(sorted((ROOT / "landscapes").glob("*.json")))
BUDGETS = (10, 20, 40)
GOOD = 0.95
"""Share of the optimum that "trials to" counts to."""
REPEAT_RATIO, NUM_TOP = 0.2, 3
PLATEAU = 1.05
MICRO_BATCH = "ppo_micro_batch_size_per_gpu"

Setting = dict[str, KnobValue]
Ask = Iterator[Setting]


class Session:
    """Trials of one method: the baseline is trial 0, then whatever is asked for."""

    def __init__(self, landscape: Landscape, budget: int, seed: int) -> None:
        self.landscape, self.budget, self.seed = landscape, budget, seed
        self.space = LandscapeSpace(landscape)
        self.rng = np.random.default_rng([seed, 7])
        self.records: list[TrialRecord] = []
        self.run(landscape.baseline)

    @property
    def is_over(self) -> bool:
        return len(self.records) >= self.budget

    def run(self, setting: Mapping[str, KnobValue]) -> TrialRecord:
        """Measure a setting."""
        suggestion = {
            "number": len(self.records),
            "attempt": 0,
            "setting": dict(setting),
            "params": dict(setting),
            "overrides": [],
        }
        record = self.landscape.trial(suggestion, self.seed)
        self.records.append(record)
        return record

    def repeat_best(self) -> None:
        """Spend what is left on the best settings that were measured feasible, in turn."""
        feasible = [record for record in self.records if record.feasible]
        feasible.sort(key=lambda record: -(record.value(self.landscape.objective) or 0.0))
        unique = list({key_of(record.setting): record.setting for record in feasible}.values())
        for index in range(self.budget - len(self.records)):
            if unique:
                self.run(unique[:NUM_TOP][index % min(len(unique), NUM_TOP)])

    def best_measured(self) -> Setting | None:
        """Return the best setting that was measured feasible once."""
        feasible = [record for record in self.records if record.feasible]
        best = max(
            feasible, key=lambda r: r.value(self.landscape.objective) or 0.0, default=None
        )
        return best.setting if best is not None else None


Method = Callable[[Landscape, int, int], tuple[list[TrialRecord], Setting | None]]


def ours(sampler: str) -> Method:
    """Return the searcher with one of its samplers."""

    def run(
        landscape: Landscape, budget: int, seed: int
    ) -> tuple[list[TrialRecord], Setting | None]:
        settings = SearchConfig(
            sampler=sampler,
            num_trials=budget,
            max_concurrent=1,
            seed=seed,
            num_startup_trials=3 if sampler == "model" else 6,
        )
        found = run_directly(landscape, settings, seed=seed)
        return found.records, found.best.setting if found.best is not None else None

    return run


def random(
    landscape: Landscape, budget: int, seed: int
) -> tuple[list[TrialRecord], Setting | None]:
    session = Session(landscape, budget, seed)
    while not session.is_over:
        taken = {key_of(record.setting) for record in session.records}
        setting = session.space.random_valid(session.rng, exclude=taken)
        session.run(setting if setting is not None else landscape.baseline)
    return session.records, session.best_measured()


def ray_optuna(only_feasible: bool) -> Method:
    """Return Ray Tune's OptunaSearch, asked and told as its controller does."""

    def run(
        landscape: Landscape, budget: int, seed: int
    ) -> tuple[list[TrialRecord], Setting | None]:
        from ray.tune.search.optuna import OptunaSearch

        session = Session(landscape, budget, seed)
        search = OptunaSearch(
            space=session.space.distributions(),
            metric=landscape.objective,
            mode="max" if is_maximised(landscape.objective) else "min",
            points_to_evaluate=[dict(landscape.baseline)],
            seed=seed,
        )
        search.suggest("0")
        _tell_ray(search, "0", session.records[0], landscape.objective)
        while not session.is_over:
            name = str(len(session.records))
            asked = search.suggest(name)
            assert asked is not None
            record = session.run(_existing(session.space, asked))
            _tell_ray(search, name, record, landscape.objective)
        if only_feasible:
            return session.records, session.best_measured()
        complete = [r for r in session.records if r.value(landscape.objective) is not None]
        best = max(complete, key=lambda r: r.value(landscape.objective) or 0.0, default=None)
        return session.records, best.setting if best is not None else None

    return run


def _tell_ray(search: Any, name: str, record: TrialRecord, objective: str) -> None:
    value = record.value(objective)
    if value is None:
        search.on_trial_complete(name, error=True)
    else:
        search.on_trial_complete(name, result={**record.metrics, objective: value})


def optuna_direct(kind: str) -> Method:
    """Return Optuna's sampler under constraints, used with care."""

    def run(
        landscape: Landscape, budget: int, seed: int
    ) -> tuple[list[TrialRecord], Setting | None]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler: Any
        if kind == "gp":
            sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=6)
        else:
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=6, multivariate=True)
        is_larger_better = is_maximised(landscape.objective)
        study = optuna.create_study(
            direction="maximize" if is_larger_better else "minimize", sampler=sampler
        )
        session = Session(landscape, budget, seed)
        distributions = session.space.distributions()
        study.enqueue_trial(dict(landscape.baseline))
        record: TrialRecord | None = session.records[0]
        while record is not None:
            trial = study.ask()
            asked = {name: _suggest(trial, name, d) for name, d in distributions.items()}
            if trial.number > 0:
                record = session.run(_existing(session.space, asked))
            values = [r.value(landscape.objective) for r in session.records]
            known = [value for value in values if value is not None]
            for constraint in landscape.constraints:
                violation = record.violations.get(constraint.metric)
                trial.set_constraint(constraint.metric, 0.0 if violation is None else violation)
            trial.set_constraint("failed", 1.0 if record.state.is_failure else -1.0)
            value = record.value(landscape.objective)
            study.tell(trial, min(known, default=0.0) if value is None else value)
            if len(session.records) >= budget - int(REPEAT_RATIO * budget):
                break
        session.repeat_best()
        best = best_feasible(session.records, landscape.objective)
        return session.records, best.setting if best is not None else None

    return run


def deepspeed(
    landscape: Landscape, budget: int, seed: int
) -> tuple[list[TrialRecord], Setting | None]:
    session = Session(landscape, budget, seed)
    sizes = sorted({int(row.setting[MICRO_BATCH]) for row in landscape.rows})
    groups = {
        key_of(_others(row.setting)): _others(row.setting) for row in landscape.rows
    }
    first = key_of(_others(landscape.baseline))
    order = [first, *(key for key in groups if key != first)]
    rest = order[1:]
    session.rng.shuffle(rest)
    for key in [first, *rest]:
        before = 0.0
        peaks: dict[int, float] = {}
        for size in sizes:
            setting = {**groups[key], MICRO_BATCH: size}
            if key_of(setting) not in landscape.by_key or not _extrapolates(peaks, size):
                break
            known = [r for r in session.records if r.setting == setting]
            if not known and session.is_over:
                return session.records, session.best_measured()
            record = known[0] if known else session.run(setting)
            value = record.value(landscape.objective)
            if value is None or value < PLATEAU * before:
                break
            before = value
            peaks[size] = record.metrics.get("peak_memory_ratio") or 0.0
    return session.records, session.best_measured()


def _extrapolates(peaks: Mapping[int, float], size: int) -> bool:
    """Say whether a line through the last two peaks stays within the device."""
    if len(peaks) < 2:
        return True
    (a, low), (b, high) = sorted(peaks.items())[-2:]
    return high + (high - low) / (b - a) * (size - b) <= 1.0


def _others(setting: Mapping[str, KnobValue]) -> Setting:
    return {name: value for name, value in setting.items() if name != MICRO_BATCH}


def _suggest(trial: Any, name: str, distribution: Any) -> KnobValue:
    choices = getattr(distribution, "choices", None)
    if choices is not None:
        return trial.suggest_categorical(name, choices)
    if isinstance(distribution.low, int):
        return trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


def _existing(space: LandscapeSpace, asked: Mapping[str, KnobValue]) -> Setting:
    """Return the nearest setting that exists: parameters are offloaded with the optimizer only."""
    setting = space.snap(asked)
    return setting if space.is_valid(setting) else {**setting, "optimizer_offload": True}


METHODS: dict[str, Method] = {
    "model": ours("model"),
    "random": random,
    "ray_optuna": ray_optuna(only_feasible=False),
    "ray_optuna_feasible": ray_optuna(only_feasible=True),
    "optuna_tpe": optuna_direct("tpe"),
    "deepspeed": deepspeed,
    "optuna_gp": optuna_direct("gp"),
    "model_tpe": ours("tpe"),
    "model_gp": ours("gp"),
}


def measure(landscape: Landscape, method: str, budget: int, seed: int) -> dict[str, Any]:
    """Run one search; return its figures."""
    records, setting = METHODS[method](landscape, budget, seed)
    return {
        "landscape": landscape.name,
        "method": method,
        "budget": budget,
        "seed": seed,
        "ratio": round(ratio_to_optimum(landscape, setting), 5) if setting is not None else 0.0,
        "exported": setting is not None,
        "infeasible": setting is not None and not landscape.is_feasible(setting),
        "failed": sum(record.state.is_failure for record in records),
        "trials": len(records),
        "trials_to_good": _trials_to_good(landscape, records),
    }


def _trials_to_good(landscape: Landscape, records: list[TrialRecord]) -> int | None:
    """Return after how many trials a feasible setting near the optimum had been measured."""
    for index, record in enumerate(records):
        if ratio_to_optimum(landscape, record.setting) >= GOOD:
            return index + 1
    return None


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is missing, seed by seed, and return all lines."""
    path = Path(options.out).with_suffix(".jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {tuple(line[k] for k in ("landscape", "method", "budget", "seed")) for line in lines}
    landscapes = [read_landscape(Path(name)) for name in options.landscapes or LANDSCAPES]
    with path.open("a") as file:
        for seed in range(options.seeds):
            for landscape in landscapes:
                for method in options.methods:
                    for budget in options.budgets:
                        if (landscape.name, method, budget, seed) in done:
                            continue
                        lines.append(measure(landscape, method, budget, seed))
                        file.write(json.dumps(lines[-1]) + "\n")
                        file.flush()
    return lines


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each landscape, method and budget."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["landscape"], line["budget"], line["method"]), []).append(line)
    return [_row(key, group) for key, group in sorted(groups.items())]


def _row(key: tuple[str, int, str], group: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [line["ratio"] for line in group]
    reached = [line["trials_to_good"] or math.inf for line in group]
    to_good = float(np.median(reached))
    return {
        "landscape": key[0],
        "budget": key[1],
        "method": key[2],
        "seeds": len(group),
        "median": round(float(np.median(ratios)), 4),
        "percentile_10": round(float(np.quantile(ratios, 0.1)), 4),
        "infeasible_ratio": round(float(np.mean([line["infeasible"] for line in group])), 4),
        "nothing_ratio": round(float(np.mean([not line["exported"] for line in group])), 4),
        "failed_ratio": round(sum(g["failed"] for g in group) / sum(g["trials"] for g in group), 4),
        "trials_to_good": to_good if math.isfinite(to_good) else None,
    }


def write_figures(path: Path, rows: list[dict[str, Any]], notes: list[str]) -> None:
    """Write the rows, one a line, with the command that makes them and what to know about them."""
    head = {"command": "python scripts/bench_search.py --seeds 100", "notes": notes}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    body = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    path.write_text("\n".join(["{", *lines, ' "rows": [', body, " ]", "}"]) + "\n")


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    titles = {
        "landscape": "landscape",
        "budget": "trials",
        "method": "method",
        "seeds": "seeds",
        "median": "median",
        "percentile_10": "10th percentile",
        "infeasible_ratio": "infeasible exports",
        "nothing_ratio": "no export",
        "failed_ratio": "failed trials",
        "trials_to_good": f"trials to {GOOD}",
    }
    lines = [" | ".join(titles.values()), " | ".join("---" for _ in titles)]
    for row in rows:
        cells = [
            f"{100 * row[name]:.1f} %" if name.endswith("_ratio") else _cell(row[name])
            for name in titles
        ]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "not reached"
    return f"{value:.3f}" if isinstance(value, float) and value < 2 else f"{value:g}" if isinstance(
        value, float | int
    ) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--landscapes", nargs="*", help="landscape files; default: all that ship")
    parser.add_argument("--out", default="bench_search.json", help="figures, replaced at the end")
    parser.add_argument("--table", help="print the table of a file of figures; run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(Path(options.table).read_text())["rows"]))
        return
    rows = summary(run_all(options))
    write_figures(Path(options.out), rows, [])
    print(table(rows))


if __name__ == "__main__":
    main()
