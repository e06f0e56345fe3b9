"""The process that writes a sweep to wandb: ``python -m autotune.report.wandb_writer FOLDER``.

Runs beside the driver, as its child, and only reads the sweep's records: a server that is slow or
away, or no key at all, can neither stop nor slow a sweep. Every run is written offline, below
``wandb/`` in the sweep's folder; where a server is to be used, wandb's own ``sync`` sends it from
there, and what it could not send stays for later. ``wandb/written.json`` says which runs are whole;
others were interrupted, and are written or sent again under the same id. Ends when its standard
input does.
"""

import hashlib
import json
import logging
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError
from autotune.report.answer import answer
from autotune.report.page import HTML_FILE, figures_of
from autotune.report.reading import SweepData, is_sweep, read_sweep
from autotune.report.wandb_runs import RunContent, report_run, trial_run
from autotune.settings import WandbConfig
from autotune.store import BEST_FILE, TRIALS_FILE, WANDB_FOLDER, write_atomic

logger = logging.getLogger(__name__)

WRITTEN_FILE = "written.json"
POLL_S = 3.0
RETRY_S = 60.0
"""Wait after a sync that failed, doubled each time."""
SYNC_TIMEOUT_S = 120.0
"""Of one sync while the sweep runs."""
LAST_SYNC_S = 15.0
"""Of the sync after the sweep's end."""
KEY = "WANDB_API_KEY"
SYNC_LIMITS = {
    "WANDB__GRAPHQL_RETRY_MAX": "5",
    "WANDB__FILE_STREAM_RETRY_MAX": "5",
    "WANDB__FILE_STREAM_TIMEOUT_SECONDS": "60",
    "WANDB__FILE_TRANSFER_RETRY_MAX": "5",
    "WANDB__FILE_TRANSFER_TIMEOUT_SECONDS": "300",
}
"""wandb's own would try for days, and wait for an upload without end. Here what was not sent stays,
so that a minute of retries (2 + 4 + 8 + 16 + 32 s) is enough. The user's environment wins."""
LOSSES = (
    "file transfer: ",
    "filestream: fatal error",
    "runfiles: ",
    "runupserter: failed to ",
    "sender: failed to ",
)
"""How wandb's log of a sync begins the errors by which a part of a run does not arrive."""


class WandbFolder:
    """The offline runs of one sweep.

    Args:
        folder: The sweep's folder.
    """

    def __init__(self, folder: Path) -> None:
        # wandb's service may have another current folder than this process.
        self.sweep_folder = folder.resolve()
        self.folder = self.sweep_folder / WANDB_FOLDER
        self._path = self.folder / WRITTEN_FILE
        self._state = self._read()

    def is_written(self, key: str, digest: str) -> bool:
        """Say whether a run is there whole, with this content."""
        entry = self._state["runs"].get(key)
        return entry is not None and entry["digest"] == digest

    def unsent(self) -> list[Path]:
        """Return the runs that no server has confirmed."""
        return [
            self.folder / entry["folder"]
            for entry in self._state["runs"].values()
            if "sending" in entry or not self._marks(entry)
        ]

    def begin_sending(self) -> list[Path]:
        """Return the runs to send; they stay unsent until :meth:`end_sending` finds them sent.

        wandb marks a run as sent although the server refused some of it, and a sync may be killed
        before its log is read.
        """
        unsent = self.unsent()
        for entry in self._state["runs"].values():
            if self.folder / entry["folder"] in unsent:
                entry["sending"] = True
                for mark in self._marks(entry):
                    mark.unlink()
        if unsent:
            self._save()
        return unsent

    def end_sending(self, refused: Collection[str]) -> list[Path]:
        """Take the marked runs as sent, save the folders in ``refused``; return what is left."""
        for entry in self._state["runs"].values():
            if self._marks(entry) and entry["folder"] not in refused:
                entry.pop("sending", None)
        self._save()
        return self.unsent()

    def write(self, content: RunContent, digest: str, data: SweepData) -> None:
        """Write a run, in place of an earlier one of the same key."""
        run_id = f"{self._state['sweep_id']}-{content.key}"
        self._remove(run_id)
        run_folder = write_run(content, run_id, self.sweep_folder, data)
        self._state["runs"][content.key] = {"folder": run_folder.name, "digest": digest}
        self._save()

    def _read(self) -> dict[str, Any]:
        if self._path.exists():
            return dict(json.loads(self._path.read_text(encoding="utf-8")))
        self.folder.mkdir(parents=True, exist_ok=True)
        # Two sweeps of one name in one project must not share their runs.
        state = {"sweep_id": f"at-{uuid.uuid4().hex[:10]}", "runs": {}}
        write_atomic(self._path, json.dumps(state, indent=2) + "\n")
        return state

    def _save(self) -> None:
        write_atomic(self._path, json.dumps(self._state, indent=2) + "\n")

    def _marks(self, entry: Mapping[str, Any]) -> list[Path]:
        return list((self.folder / entry["folder"]).glob("*.synced"))

    def _remove(self, run_id: str) -> None:
        for path in self.folder.glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(path)


def write_run(content: RunContent, run_id: str, sweep_folder: Path, data: SweepData) -> Path:
    """Write one offline run; return its folder."""
    import wandb

    config = data.config.wandb
    run = wandb.init(
        project=config.project,
        entity=config.entity,
        id=run_id,
        name=content.name,
        group=data.config.name,
        job_type=content.job_type,
        tags=[tag[:64] for tag in content.tags],
        config=dict(content.config),
        dir=str(sweep_folder),
        mode="offline",
        reinit="create_new",
        settings=wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        ),
    )
    for step, numbers in content.history:
        run.log(dict(numbers), step=step)
    for name, (columns, rows) in content.tables.items():
        run.log({name: wandb.Table(columns=[*columns], data=rows)})
    if content.job_type == "report":
        _add_files(run, data)
    run.summary.update({name: v for name, v in content.summary.items() if v is not None})
    folder = Path(run.settings.sync_dir)
    run.finish(exit_code=1 if content.failed else 0)
    return folder


def _add_files(run: Any, data: SweepData) -> None:
    """Add the charts, the HTML report and the best configuration to the sweep's run."""
    import plotly.io
    import wandb

    found = answer(data)
    for name, figure in figures_of(data, found).items():
        if figure is not None:
            run.log({f"chart/{name}": wandb.Plotly(plotly.io.from_json(str(figure)))})
    html = data.folder / HTML_FILE
    if html.exists():
        run.log({"report": wandb.Html(html.read_text(encoding="utf-8"), inject=False)})
    copies = Path(run.settings.sync_dir) / "artifacts"
    copies.mkdir()
    best = data.folder / BEST_FILE
    for path, kind in ((best, "verl-config"), (html, "report")):
        # One that holds an earlier winner is not the best any more.
        if path.exists() and (path != best or found.production is not None):
            artifact = wandb.Artifact(f"{data.config.name[:100]}-{path.stem}", type=kind)
            # wandb reads the file when it sends it, and the sweep's own may be another one by then.
            # The copy that wandb itself would make lies outside the sweep's folder.
            copy = shutil.copy(path, copies)
            artifact.add_file(str(copy), policy="immutable", skip_cache=True)
            run.log_artifact(artifact, aliases=["best", "latest"])


def digest_of(content: RunContent, *files: Path) -> str:
    """Return a digest of what a run is written from.

    The files' folder counts: a run names its artifacts' files by their whole path, and must be
    written anew where the sweep has been moved.
    """
    fields = {name: getattr(content, name) for name in content.__dataclass_fields__}
    found = hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode())
    for path in files:
        found.update(str(path.resolve()).encode())
        found.update(path.read_bytes() if path.exists() else b"")
    return found.hexdigest()


def write_missing(folder: Path, *, with_report: bool) -> int:
    """Write the runs that are not there yet; return how many were written.

    Args:
        folder: The sweep's folder.
        with_report: Whether to write the sweep's own run too, which is written anew when anything
            in it has changed.
    """
    data = read_sweep(folder)
    runs = WandbFolder(folder)
    wanted = [(run, digest_of(run)) for run in (trial_run(data, r) for r in data.trials)]
    if with_report:
        report = report_run(data, answer(data))
        wanted.append((report, digest_of(report, folder / BEST_FILE)))
    missing = [(run, digest) for run, digest in wanted if not runs.is_written(run.key, digest)]
    for run, digest in missing:
        runs.write(run, digest, data)
    return len(missing)


def sync(folder: Path, config: WandbConfig, *, timeout_s: float | None) -> str:
    """Send what has not been sent, with wandb's own command.

    Returns:
        Why that did not work; empty when it did.
    """
    runs = WandbFolder(folder)
    unsent = runs.begin_sending()
    if not unsent:
        return ""
    command = [sys.executable, "-m", "wandb", "sync", "--project", config.project]
    command += ["--entity", config.entity] if config.entity else []
    # wandb's service ends a moment after its command was killed, and may still write its log.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as logs:
        try:
            done = subprocess.run(
                [*command, *map(str, unsent)],
                cwd=runs.sweep_folder,
                env=SYNC_LIMITS | os.environ | {"WANDB_DIR": logs},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
            said = (done.stdout + done.stderr).strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            said = [f"the server did not take them within {timeout_s:g} s"]
        refused = read_losses(Path(logs))
    left = runs.end_sending(refused)
    if not left:
        return ""
    causes = [*refused.values(), *said, "wandb sync said nothing"]
    return f"{len(left)} of {len(unsent)} runs were not sent: {causes[0]}"


def read_losses(logs: Path) -> dict[str, str]:
    """Return the runs of which a part did not arrive, from the logs that `wandb sync` left.

    Returns:
        Name of the run's folder -> why.
    """
    losses: dict[str, str] = {}
    for path in logs.rglob("debug-sync*.log"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                # wandb was killed in the middle of it.
                continue
            if entry["level"].startswith("ERROR") and entry["msg"].startswith(LOSSES):
                # A failure of the command as a whole names no run.
                run_folder = Path(entry.get("sync_path", "")).parent.name
                # The addresses of uploads are signed behind their question mark.
                cause = re.sub(r"\?\S+", "", f"{entry['msg']} {entry.get('error', '')}")
                losses.setdefault(run_folder, " ".join(cause.split()))
    return losses


class Writer:
    """Follows one sweep.

    Args:
        folder: The sweep's folder.
        config: The sweep's wandb section.
        online: Whether runs are sent as they are written.
        clock: Seconds that never run backwards.
    """

    def __init__(
        self,
        folder: Path,
        config: WandbConfig,
        *,
        online: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._config = config
        self._online = online
        self._clock = clock
        self._retry_at = 0.0
        self._retry_s = RETRY_S
        self._written_bytes = -1
        """Of the trials' records that were looked at."""

    def round(self) -> None:
        """Write the trials that have finished since the last round, and send them."""
        # Looking costs seconds in a long sweep, and only a finished trial gives something to write.
        records = self._folder / TRIALS_FILE
        num_bytes = records.stat().st_size if records.exists() else 0
        if num_bytes != self._written_bytes:
            write_missing(self._folder, with_report=False)
            self._written_bytes = num_bytes
        if self._online and self._clock() >= self._retry_at:
            self._send(SYNC_TIMEOUT_S)

    def last_round(self) -> None:
        """Write what is missing, the sweep's own run included, and send it within a bound."""
        write_missing(self._folder, with_report=True)
        if self._online:
            self._send(LAST_SYNC_S)

    def _send(self, timeout_s: float) -> None:
        problem = sync(self._folder, self._config, timeout_s=timeout_s)
        if problem:
            logger.warning("wandb: %s; they stay in %s", problem, self._folder / WANDB_FOLDER)
            self._retry_at = self._clock() + self._retry_s
            self._retry_s *= 2
        else:
            self._retry_s = RETRY_S


def is_online(config: WandbConfig, environment: Mapping[str, str]) -> bool:
    """Say whether runs go to a server, see :class:`~autotune.settings.WandbConfig`."""
    mode = config.mode
    if mode == "auto":
        mode = environment.get("WANDB_MODE", "") or "auto"
    return has_key(environment) if mode == "auto" else mode == "online"


def has_key(environment: Mapping[str, str]) -> bool:
    """Say whether there is a key for the server, in the environment or in ``~/.netrc``."""
    import netrc
    from urllib.parse import urlsplit

    if environment.get(KEY):
        return True
    host = urlsplit(environment.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    path = Path(environment.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def main(folder: Path) -> int:
    """Follow a sweep until standard input ends; what goes wrong is logged, and tried again."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    has_ended = False
    writer: Writer | None = None
    while True:
        try:
            if writer is None and is_sweep(folder):
                config = read_sweep(folder).config.wandb
                writer = Writer(folder, config, online=is_online(config, os.environ))
            if writer is not None:
                writer.last_round() if has_ended else writer.round()
        except (AutotuneError, OSError) as error:
            logger.warning("wandb: %s", error)
        if has_ended:
            return 0
        # Nothing is ever written to it: it is readable once the driver closed it, or died.
        has_ended = bool(select.select([sys.stdin], [], [], POLL_S)[0])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
