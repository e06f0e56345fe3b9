"""Does the verification cry wolf? Two identical settings, verified again and again on real jobs.

Runs in the driver, on a Ray cluster or a local one. Each run is one verification of the base job's
own settings against themselves, with the sweep file's ``verify`` section; "proven" would be wrong.
Prints one line a run and ends with exit code 1 when more than one in twenty is proven. Goes on
where it stopped when it is started again. On the CPU quickstart a run takes about six minutes:

    python scripts/verify_aa.py search_spaces/quickstart_cpu.yaml --runs 20
"""

import argparse
import dataclasses
import sys
from contextlib import nullcontext
from pathlib import Path

ALLOWED_RATIO = 1 / 20


def main() -> int:
    """Run what is left and print what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", help="the sweep file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--runs", type=int, default=20, help="verifications in all")
    parser.add_argument("--address", help="Ray cluster to use; without it a local one is started")
    options = parser.parse_args()

    from rich.console import Console

    from autotune.config import load_sweep
    from autotune.store import SweepStore
    from autotune.tuning import cluster
    from autotune.verification import Decision
    from autotune.verify import Candidate, Verifier

    loaded = load_sweep(options.file, options.overrides)
    # What is asked is whether equal settings differ in speed: limits are another question.
    config = dataclasses.replace(loaded.config, constraints=[])
    sweep = dataclasses.replace(loaded, config=config)
    itself = Candidate(number=1, setting=sweep.space.baseline(), overrides=[])
    store = SweepStore(Path(config.output_dir).resolve() / f"{config.name}_aa")
    console = Console()
    num_proven = 0
    with store.locked():
        runs = [
            Verifier(sweep, store, [itself], console=console, attempt=attempt)
            for attempt in range(1, options.runs + 1)
        ]
        is_work_left = any(run.needs_jobs for run in runs)
        with cluster(sweep, options.address) if is_work_left else nullcontext():
            for number, run in enumerate(runs, start=1):
                found = run.run()
                if found is None:
                    return 130
                result = found.candidates[0]
                num_proven += result.decision is Decision.PROVEN
                console.print(
                    f"run {number}: {result.decision.value}: {result.reason} "
                    f"({found.num_jobs} jobs)",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
    console.print(f"{num_proven} of {options.runs} runs say 'proven' of two identical settings.")
    return int(num_proven > ALLOWED_RATIO * options.runs)


if __name__ == "__main__":
    sys.exit(main())
