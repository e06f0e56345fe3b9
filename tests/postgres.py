"""A PostgreSQL server of the tests' own, where this machine has one installed."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

USER = "postgres"


def programs() -> Path | None:
    """The folder of the server's programs; None where it is not installed."""
    on_path = shutil.which("pg_ctl")
    if on_path is not None:
        return Path(on_path).parent
    # Debian keeps them off the PATH.
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


@contextlib.contextmanager
def postgres(programs: Path) -> Iterator[str]:
    """Run a server; yields the URL of an empty database."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Its user cannot look into pytest's folders.
    with tempfile.TemporaryDirectory(prefix="postgres_", dir="/tmp") as folder:
        # The server refuses to run as root.
        as_user = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        if as_user:
            shutil.chown(folder, USER, USER)
        data = f"{folder}/data"

        def call(program: str, *arguments: str) -> None:
            subprocess.run(
                [*as_user, str(programs / program), "-D", data, *arguments],
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
            )

        call("initdb", "--auth=trust", f"--username={USER}")
        options = f"-h 127.0.0.1 -p {port} -k {folder}"
        call("pg_ctl", "-w", "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
