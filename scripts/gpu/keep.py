"""Keep a sweep in one small file, to be committed beside the numbers that are published of it.

Runs by hand, on the machine that has the sweep's folder; needs no GPU.

    python scripts/gpu/keep.py sweeps/my_sweep --command "autotune sweep ..." --out my_sweep.json
    python scripts/gpu/keep.py --table my_sweep.json
"""

import argparse
import json
from pathlib import Path

from autotune.landscape import json_text
from autotune.report.kept import kept_record, table
from autotune.report.reading import read_sweep
from autotune.store import write_atomic

COLUMNS = (
    "throughput_tokens_per_s_per_gpu",
    "step_s",
    "phase_gen_s",
    "phase_old_log_prob_s",
    "phase_ref_s",
    "phase_update_actor_s",
    "mfu_ratio",
    "peak_reserved_gib",
    "startup_s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sweep", nargs="?", help="folder of a sweep")
    parser.add_argument("--command", help="what ran it")
    parser.add_argument("--out", type=Path, help="file to write")
    parser.add_argument("--table", type=Path, help="file to print as a Markdown table instead")
    options = parser.parse_args()
    if options.table is not None:
        print(table(json.loads(options.table.read_text()), COLUMNS))
        return
    if options.sweep is None or options.out is None:
        parser.error("give a sweep's folder and --out, or --table")
    content = kept_record(read_sweep(options.sweep), options.command)
    write_atomic(options.out, json_text(content, rows="trials"))


if __name__ == "__main__":
    main()
