"""The sweep's folder as the cluster's dashboard shows it: a link in Ray's log folder.

Linking runs in the driver of a submitted sweep, on the node that runs it; reading runs wherever the
user is, over the dashboard's own port and authentication. Ray's agent serves every file below its
log folder and follows links out of it (dashboard/modules/log/log_agent.py, ``_resolve_filename``),
so records, reports and logs can be read while the sweep runs, after it ended, and after its driver
was killed, as long as the node lives. Nothing can be written this way.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from autotune.errors import SweepError
from autotune.store import LOCK_FILE, WANDB_FOLDER, is_hidden

LINKS_FOLDER = "autotune"
"""Below Ray's log folder: one link for each submitted sweep."""

_TIMEOUT_S = 300
_BUSY = 429
_MAX_ATTEMPTS = 10
_CHUNK_BYTES = 1 << 20


def publish(folder: Path, name: str) -> None:
    """Link the sweep's folder into the log folder of this process's Ray node.

    Args:
        folder: The sweep's folder.
        name: Name of the link, unique on the cluster: see :func:`autotune.submission.sweep_id`.
    """
    from ray._private.worker import _global_node

    assert _global_node is not None, "Ray is not initialised"
    link_folder(folder, Path(_global_node.get_logs_dir_path()), name)


def link_folder(folder: Path, log_folder: Path, name: str) -> None:
    """Make or move the link; whoever reads sees the old or the new one."""
    links = log_folder / LINKS_FOLDER
    links.mkdir(exist_ok=True)
    temporary = links / f".{name}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder, target_is_directory=True)
    os.replace(temporary, links / name)


class PublishedFolder:
    """Reads a published sweep.

    Args:
        client: Ray's ``JobSubmissionClient``, whose address and authentication are used.
        name: Name of the link.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._root = PurePosixPath(LINKS_FOLDER) / name
        self._node = self._find_node()

    def files(self) -> list[PurePosixPath]:
        """Return the files of the sweep, relative to its folder, two levels deep."""
        found = [*self._list("*"), *self._list("*/*")]
        # wandb's runs lie deeper, and its links may point nowhere: they can be written again from
        # the records.
        left_out = (LOCK_FILE, WANDB_FOLDER)
        return [path for path in found if path.parts[0] not in left_out and not is_hidden(path)]

    def read(self, path: PurePosixPath | str) -> Iterator[bytes]:
        """Yield the content of a file in pieces.

        Raises:
            SweepError: There is no such file, or the connection broke.
        """
        import requests

        reply = self._get(
            "/api/v0/logs/file",
            node_id=self._node,
            filename=str(self._root / path),
            lines=-1,
            timeout=_TIMEOUT_S,
        )
        try:
            yield from reply.iter_content(_CHUNK_BYTES)
        except requests.RequestException as error:
            raise SweepError(f"Reading {path} from the cluster broke off: {error}.") from error

    def _list(self, pattern: str) -> list[PurePosixPath]:
        listed = _data(
            self._get(
                "/api/v0/logs", node_id=self._node, glob=str(self._root / pattern), timeout=60
            )
        )
        names = [name for names in listed.values() for name in names]
        return [
            PurePosixPath(name).relative_to(self._root) for name in names if not name.endswith("/")
        ]

    def _find_node(self) -> str:
        nodes = _data(self._get("/api/v0/nodes", timeout=60, limit=10_000))["result"]
        alive = [node for node in nodes if node["state"] == "ALIVE"]
        for node in sorted(alive, key=lambda node: not node["is_head_node"]):
            listed = _data(
                self._get(
                    "/api/v0/logs", node_id=node["node_id"], glob=str(self._root), timeout=60
                )
            )
            if any(listed.values()):
                return str(node["node_id"])
        raise SweepError(
            f"No living node of the cluster holds the records of '{self._root.name}'.",
            "It has not started yet, or its node is gone: with output_uri in the sweep file, its "
            "records are in that storage.",
        )

    def _get(self, endpoint: str, **query: Any) -> Any:
        for attempt in range(_MAX_ATTEMPTS):
            reply = self._client._do_request("GET", endpoint, params=query, stream=True)
            if reply.status_code != _BUSY:
                break
            time.sleep(0.2 * 2 ** min(attempt, 5))
        if reply.status_code != 200:
            raise SweepError(
                f"The cluster's dashboard refused {endpoint} of {query.get('filename', '')}: "
                f"{reply.status_code} {reply.text[:300]}."
            )
        return reply


def _data(reply: Any) -> Any:
    body = reply.json()
    if not body["result"]:
        raise SweepError(f"The cluster's dashboard could not answer: {body['msg']}.")
    return body["data"]["result"]
