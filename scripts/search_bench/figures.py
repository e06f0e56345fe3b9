"""What a benchmark's runs come to: figures in a file, as a table, as the README's short table.

Runs where ``scripts/bench_search.py`` does. A line is one search; a row is one landscape, budget
and method over all seeds.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

GOOD = 0.95
"""Share of the optimum that "trials to" counts to."""

TITLES = {
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

README_LANDSCAPES = ("simulated_a", "held_out")
README_MARKS = ("<!-- figures of scripts/bench_search.json -->\n", "<!-- end of figures -->\n")

Row = dict[str, Any]


def summary(lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row for each landscape, budget and method."""
    groups: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["landscape"], line["budget"], line["method"]), []).append(line)
    return [_row(key, group) for key, group in sorted(groups.items())]


def _row(key: tuple[str, int, str], group: Sequence[Mapping[str, Any]]) -> Row:
    ratios = [line["ratio"] for line in group]
    to_good = statistics.median(line["trials_to_good"] or math.inf for line in group)
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


def write_figures(path: Path, rows: Sequence[Row], head: Mapping[str, Any]) -> None:
    """Write the rows, one a line, after what is to be known about them."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    body = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    path.write_text("\n".join(["{", *lines, ' "rows": [', body, " ]", "}"]) + "\n")


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [" | ".join(TITLES.values()), " | ".join("---" for _ in TITLES)]
    lines += [" | ".join(_cell(name, row[name]) for name in TITLES) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(name: str, value: Any) -> str:
    if name.endswith("_ratio"):
        return f"{100 * value:.1f} %"
    if name in ("median", "percentile_10"):
        return f"{value:.3f}"
    return "not reached" if value is None else str(value)


def readme_table(rows: Sequence[Row]) -> str:
    """Return one line a method: medians at every budget, and the shares over all of its trials."""
    budgets = sorted({row["budget"] for row in rows})
    trials = ", ".join(map(str, budgets))
    titles = ["method", *(f"{name}: {trials} trials" for name in README_LANDSCAPES)]
    titles += ["infeasible exports", "failed trials", f"trials to {GOOD}", "seeds"]
    lines = [titles, ["---"] * len(titles)]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {(r["landscape"], r["budget"]): r for r in rows if r["method"] == method}
        for name in README_LANDSCAPES:
            assert all((name, budget) in own for budget in budgets), f"{method} lacks {name}"
        lines.append([f"`{method}`", *_medians(own, budgets), *_shares(own, budgets)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _medians(own: Mapping[tuple[str, int], Row], budgets: Sequence[int]) -> list[str]:
    return [
        ", ".join(f"{own[name, budget]['median']:.3f}" for budget in budgets)
        for name in README_LANDSCAPES
    ]


def _shares(own: Mapping[tuple[str, int], Row], budgets: Sequence[int]) -> list[str]:
    """Return the shares over all searches and trials of a method, and how many trials it takes to
    a good setting where the budget is largest."""
    shown = [own[name, budget] for name in README_LANDSCAPES for budget in budgets]
    seeds = [row["seeds"] for row in shown]
    infeasible = statistics.fmean((row["infeasible_ratio"] for row in shown), weights=seeds)
    trials = [row["seeds"] * row["budget"] for row in shown]
    failed = statistics.fmean((row["failed_ratio"] for row in shown), weights=trials)
    counts = [own[name, budgets[-1]]["trials_to_good"] for name in README_LANDSCAPES]
    to_good = ", ".join("not reached" if count is None else f"{count:g}" for count in counts)
    return [f"{100 * infeasible:.1f} %", f"{100 * failed:.1f} %", to_good, f"{min(seeds)}"]


def with_figures(readme: str, rows: Sequence[Row]) -> str:
    """Return the README's text with its short table made again."""
    before, rest = readme.split(README_MARKS[0])
    _, after = rest.split(README_MARKS[1])
    return f"{before}{README_MARKS[0]}{readme_table(rows)}{README_MARKS[1]}{after}"
