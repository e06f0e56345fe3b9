"""Does the verification cry wolf? Two identical settings, verified again and again on real jobs.

Runs in the driver. Each run is one verification of the base job's own settings against themselves,
with the sweep file's ``verify`` section; "proven" would be wrong. Limits are another question, so
that what only they need (profiled steps, the consistency probe) is left out of the jobs.

Every run has a folder of its own below ``--out``. Whoever holds a folder's lock runs it, so that
any number of these processes may share ``--out``; a run goes on where it stopped. After each run
``runs.json`` there is written anew from all folders. Exit code 1 when more than one in twenty says
"proven" or a run measured no ratio, 130 when runs are left.

    python scripts/verify_aa.py search_spaces/quickstart_cpu.yaml --runs 20 --parallel 6
"""

import argparse
import dataclasses
import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from autotune.config import Sweep, load_sweep
from autotune.errors import BadInputError, ExitCode, SweepError
from autotune.leftovers import cleared
from autotune.report.text import duration_s
from autotune.store import VERIFICATION_FILE, SweepStore, make_folder, write_atomic
from autotune.verification import Decision, read_verification
from autotune.verify import Candidate, Verifier, plan_name
from autotune.versions import versions

ALLOWED_RATIO = 1 / 20
ATTEMPT = 1
SCHEMA_VERSION = 1
SUMMARY_FILE = "runs.json"


def main() -> int:
    """Run what is left and print what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", help="the sweep file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--runs", type=int, default=20, help="verifications in all")
    parser.add_argument("--parallel", type=int, default=1, help="verifications at once")
    parser.add_argument("--out", type=Path, help="default: <output_dir>/<name>_aa")
    parser.add_argument("--address", help="Ray cluster to use; without it a local one is started")
    options = parser.parse_args()

    sweep = without_limits(load_sweep(options.file, options.overrides), options.parallel)
    out = options.out or Path(sweep.config.output_dir) / f"{sweep.config.name}_aa"
    make_folder(out.resolve())
    # Says what is asked before the first run, so that no other sweep's runs are mixed in.
    write_summary(out, sweep, options.runs)
    left = [number for number in range(1, options.runs + 1) if not is_over(out, number)]
    if left:
        from autotune.tuning import cluster

        with cluster(sweep, options.address):
            if options.parallel > 1:
                run_beside(options, out)
            else:
                run_here(sweep, out, options.runs)
    content = write_summary(out, sweep, options.runs)
    print(
        f"{content['num_proven']} of {content['num_finished']} runs say 'proven' of two identical "
        f"settings, {content['num_without_ratio']} measured no ratio; "
        f"{options.runs - content['num_finished']} are left. All runs: {out / SUMMARY_FILE}"
    )
    if content["num_finished"] < options.runs:
        return ExitCode.INTERRUPTED
    is_right = content["num_proven"] <= ALLOWED_RATIO * options.runs
    return ExitCode.DONE if is_right and not content["num_without_ratio"] else ExitCode.FAILED


def without_limits(sweep: Sweep, parallel: int) -> Sweep:
    """Return the sweep for jobs that measure speed alone, so many at once."""
    config = dataclasses.replace(
        sweep.config,
        constraints=[],
        trial=dataclasses.replace(sweep.config.trial, profiled_steps=0, consistency_probe=False),
        search=dataclasses.replace(sweep.config.search, max_concurrent=parallel),
    )
    return dataclasses.replace(sweep, config=config)


def itself(sweep: Sweep) -> Candidate:
    """Return the base job's own settings as the ones that are verified."""
    return Candidate(number=1, setting=sweep.space.baseline(), overrides=[])


def store_of_run(out: Path, number: int) -> SweepStore:
    """Return the records of one run."""
    return SweepStore(out.resolve() / f"run_{number:02d}")


def is_over(out: Path, number: int) -> bool:
    """Say whether a run has its outcome."""
    return (store_of_run(out, number).folder / VERIFICATION_FILE).exists()


def claimed(out: Path, num_runs: int) -> Iterator[SweepStore]:
    """Yield one run after the other that is not over and that no other process holds, locked."""
    for number in range(1, num_runs + 1):
        store = store_of_run(out, number)
        with ExitStack() as stack:
            try:
                stack.enter_context(store.locked())
            except SweepError:
                continue
            # Another process may have ended it before it was locked here.
            if not is_over(out, number):
                yield store


def run_here(sweep: Sweep, out: Path, num_runs: int) -> None:
    """Run what is left and free, one verification after the other; Ray is connected."""
    from rich.console import Console

    for store in claimed(out, num_runs):
        with cleared(store.folder):
            found = Verifier(
                sweep, store, [itself(sweep)], console=Console(), attempt=ATTEMPT
            ).run()
        if found is None:
            return
        write_summary(out, sweep, num_runs)
        result = found.candidates[0]
        print(f"{store.folder.name}: {result.decision.value}: {result.reason}", flush=True)


def run_beside(options: argparse.Namespace, out: Path) -> None:
    """Run this script in several processes on the cluster that this one is connected to."""
    import ray

    command = [sys.executable, __file__, options.file, *options.overrides]
    command += ["--runs", str(options.runs), "--out", str(out)]
    command += ["--address", ray.get_runtime_context().gcs_address]
    workers = [subprocess.Popen(command) for _ in range(options.parallel)]
    # Ctrl-C goes to all of the group: they end their runs, this one waits for them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for worker in workers:
        worker.wait()


def write_summary(out: Path, sweep: Sweep, num_runs: int) -> dict[str, Any]:
    """Write ``runs.json`` from the runs that are over, and return what it holds.

    Raises:
        BadInputError: The folder holds runs of other jobs.
    """
    plan = plan_name(sweep, [itself(sweep)], ATTEMPT)
    path = out / SUMMARY_FILE
    with (out / ".summary.lock").open("w") as lock:
        # Whoever writes last has then read what all others finished before.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and json.loads(path.read_text())["plan"] != plan:
            raise BadInputError(
                f"{out} holds runs of another base job or protocol.", "Name another --out."
            )
        rows = [row for number in range(1, num_runs + 1) if (row := summary_of_run(out, number))]
        content = {
            "schema": "autotune.verify_aa",
            "schema_version": SCHEMA_VERSION,
            "sweep": sweep.config.name,
            "plan": plan,
            "versions": dict(versions()),
            "num_runs": num_runs,
            "num_finished": len(rows),
            "num_without_ratio": sum(row["gain_ratio"] is None for row in rows),
            "num_proven": sum(row["decision"] == Decision.PROVEN.value for row in rows),
            "runs": rows,
        }
        write_atomic(path, json.dumps(content, indent=1) + "\n")
    return content


def summary_of_run(out: Path, number: int) -> dict[str, Any] | None:
    """Return what one run found; None while it is not over."""
    store = store_of_run(out, number)
    found = read_verification(store.folder / VERIFICATION_FILE)
    if found is None:
        return None
    result = found.candidates[0]
    gain = result.gain_ratio
    return {
        "run": number,
        "decision": result.decision.value,
        "gain_ratio": gain.value if gain is not None else None,
        "interval": [gain.low, gain.high] if gain is not None else None,
        "reason": result.reason,
        "num_jobs": found.num_jobs,
        "seconds": sum(duration_s(job.record) for job in store.read_verify_jobs()),
        "started_at": found.started_at,
        "ended_at": found.ended_at,
    }


if __name__ == "__main__":
    sys.exit(main())
