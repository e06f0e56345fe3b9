"""Stands in for the interpreter of a submitted sweep: plays a driver that keeps records.

Called as ``toy_driver.py -m autotune.cli sweep FILE --address auto --publish NAME output_dir=DIR``.
Joins the cluster, publishes a sweep's folder, writes one record after another, and ends when it is
asked to or when it has written three.
"""

import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    import ray
    from sweep_maker import SweepSpec, make_sweep

    from autotune.published import publish
    from autotune.store import STOP_FILE, TRIALS_FILE

    assert arguments[:3] == ["-m", "autotune.cli", "sweep"], arguments
    name = arguments[arguments.index("--publish") + 1]
    output = Path(arguments[-1].removeprefix("output_dir="))
    ray.init(address="auto", log_to_driver=False)
    store = make_sweep(output / "made", SweepSpec(name="toy", num_trials=3, with_best=False))
    lines = (store.folder / TRIALS_FILE).read_text().splitlines(keepends=True)
    folder = output / "toy"
    first = not folder.exists()
    if first:
        store.folder.rename(folder)
        (folder / TRIALS_FILE).write_text(lines[0])
    (folder / STOP_FILE).unlink(missing_ok=True)
    publish(folder, name)
    print("driver: running", flush=True)
    while first and not (folder / STOP_FILE).exists():
        time.sleep(0.2)
    if first:
        return 130
    (folder / TRIALS_FILE).write_text("".join(lines))
    print("driver: done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
