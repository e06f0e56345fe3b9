"""Who may import whom, and that the command line answers without loading anything heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"
ROWS: tuple[tuple[str, ...], ...] = (
    ("errors", "metrics", "redaction"),
    (
        *("config", "settings", "domain", "knobs", "space", "yaml_file", "objective"),
        *("trial_metrics", "measure", "models", "landscape"),
        *("verification", "comparison", "claim", "placement", "hypotheses"),
        *("launch_script", "shell_scanner", "shell_words"),
        *("verl_bridge.config_file", "verl_bridge.job", "verl_bridge.overrides"),
        *("verl_bridge.paths", "verl_bridge.rules", "verl_bridge.schema"),
        *("verl_bridge.registries", "verl_bridge.startup_times"),
        *("verl_bridge.overlap_rules", "verl_bridge.step_phases", "verl_bridge.discovery"),
    ),
    (
        *("sampler", "study", "budget", "early_stop", "search", "warm_start"),
        *("store", "report", "export", "mirror", "published", "fetching"),
        *("provenance", "versions"),
    ),
    ("verl_bridge",),
    (
        *("progress", "protocol", "failure", "recovery", "transition", "job_run", "leftovers"),
        *("stop", "trial", "idle_trials", "waiting", "tuning", "calibrate"),
        *("replay", "in_order", "verify", "sweep", "wandb_process"),
    ),
    (
        *("submission", "cluster", "kubernetes", "doctor", "plan", "plan_forecast"),
        *("commands", "cli"),
    ),
)
HEAVY = ("ray", "torch", "verl", "transformers", "optuna", "wandb", "hydra", "pandas")


def row_of(module: str) -> int:
    """Row of ``autotune.<module>``; the longest prefix that is listed decides."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        for row, names in enumerate(ROWS):
            if ".".join(parts[:length]) in names:
                return row
    raise AssertionError(f"autotune.{module} has no row: add it to ROWS")


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py"
    }


def imported(path: Path) -> set[str]:
    """Our modules that a file imports anywhere, without the leading ``autotune.``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autotune"):
            base = (node.module or "").removeprefix("autotune").lstrip(".")
            for name in node.names:
                full = f"{base}.{name.name}".lstrip(".")
                found.add(full if full in modules() else base)
    return found - {""}


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_its_own_row_and_those_above(module: str) -> None:
    allowed = row_of(module)
    below = {name for name in imported(modules()[module]) if row_of(name) > allowed}
    assert below == set()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom autotune.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
