"""Starts and ends the process that writes a sweep to wandb.

Runs in the driver. The process is a child in a session of its own, so that Ctrl-C reaches the
driver alone; it learns of the sweep's end, or of the driver's death, by the end of its standard
input. It is given a bounded time to finish, then killed: what it had not sent stays in the sweep's
folder.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.settings import WandbConfig
from autotune.store import LOG_FOLDER, make_folder

LOG_FILE = "wandb.log"
END_S = 25.0
"""How long the process may take after the sweep's end."""


@contextlib.contextmanager
def wandb_process(
    folder: Path, config: WandbConfig, say: Callable[[str], None], *, end_s: float = END_S
) -> Iterator[None]:
    """Have a sweep written to wandb while the block runs, and for a bounded time after it.

    Args:
        folder: The sweep's folder; need not be there yet.
        config: The sweep's wandb section.
        say: Prints a line for the user.
        end_s: How long to wait after the block.
    """
    if config.mode == "disabled" or (
        config.mode == "auto" and os.environ.get("WANDB_MODE") == "disabled"
    ):
        yield
        return
    log_path = folder / LOG_FOLDER / LOG_FILE
    make_folder(log_path.parent)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.report.wandb_writer", str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        if not _ended(process, end_s):
            say(
                f"wandb: not finished within {end_s:g} s; `autotune wandb-sync {folder}` goes on, "
                f"{log_path} says why."
            )


def _ended(process: subprocess.Popen[bytes], end_s: float) -> bool:
    """Wait for the process, then kill it with all its children; say whether it ended well."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        return process.wait(end_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        # Its session's group holds wandb's command; wandb's service ends once its parent is gone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
