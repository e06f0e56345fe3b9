"""Actors in place of a rollout's servers and of verl's balancer, where Ray's workers find them."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class Engine:
    """Leaves a note when it is asked to end its processes."""

    def __init__(self, note: Path) -> None:
        self._note = note

    def shutdown(self) -> None:
        self._note.touch()


class RolloutServer:
    """A server as vLLM's: asynchronous, with a process of its own that knows no parent."""

    def __init__(self, note: Path | None) -> None:
        self.engine = Engine(note) if note is not None else None
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        self._child = subprocess.Popen(command, start_new_session=True)

    async def child(self) -> int:
        return self._child.pid


class Balancer:
    """What verl's balancer knows."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)

    def remove_servers(self, names: Sequence[str]) -> None:
        self._servers = [name for name in self._servers if name not in names]

    def servers(self) -> list[str]:
        return self._servers
