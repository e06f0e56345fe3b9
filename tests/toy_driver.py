"""Stands in for the interpreter of a submitted sweep: plays a driver that keeps records.

Called as ``toy_driver.py -m autotune.cli sweep FILE --address auto --publish NAME output_dir=DIR``.
Joins the cluster, publishes a sweep's folder, writes one record after another, and ends when it is
asked to or when it has written three.

Before that it starts, as a trial does, a driver of its own in a child process and says where that
driver's workers find this package.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"

TRIALS_DRIVER = """
import sys
import ray

def where():
    import autotune
    from importlib.metadata import entry_points
    found = [entry.value for entry in entry_points(group="verl.plugins")]
    return autotune.__file__, found

address, working_dir = sys.argv[1:]
ray.init(address=address, runtime_env={"working_dir": working_dir}, log_to_driver=False)
print("worker:", *ray.get(ray.remote(num_cpus=0)(where).remote()))
"""


def main(arguments: list[str]) -> int:
    import ray
    from sweep_maker import SweepSpec, make_sweep

    from autotune.published import publish
    from autotune.store import STOP_FILE, TRIALS_FILE

    assert arguments[:3] == ["-m", "autotune.cli", "sweep"], arguments
    name = arguments[arguments.index("--publish") + 1]
    output = Path(arguments[-1].removeprefix("output_dir="))
    ray.init(address="auto", log_to_driver=False)
    context = ray.get_runtime_context()
    working_dir = context.runtime_env["working_dir"]
    child = [sys.executable, "-c", TRIALS_DRIVER, context.gcs_address, working_dir]
    # A trial's driver is started by a Ray worker, which has not what Ray gives to a job's driver.
    environment = {key: value for key, value in os.environ.items() if key != JOB_CONFIG}
    subprocess.run(child, check=True, env=environment)
    store = make_sweep(output / "made", SweepSpec(name="toy", num_trials=3, with_best=False))
    lines = (store.folder / TRIALS_FILE).read_text().splitlines(keepends=True)
    folder = output / "toy"
    first = not folder.exists()
    if first:
        store.folder.rename(folder)
        (folder / TRIALS_FILE).write_text(lines[0])
        # As wandb leaves it once a run's folder is gone.
        (folder / "wandb").mkdir()
        (folder / "wandb" / "debug.log").symlink_to("nowhere")
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
