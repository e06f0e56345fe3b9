"""The best setting of a sweep as files for production.

Runs in the driver; needs the sweep's folder alone, neither verl's model nor its data. Writes:

- ``best.yaml``: one Hydra configuration that ``verl.trainer.main_ppo`` loads;
- ``best_overrides.txt``: the same job as overrides, one a line;
- ``best_launch.sh``: the team's own launch script with the tuned settings changed, or one made from
  the base job; ``best_launch.diff`` shows the changes.

Each is held against base job + winner before it is written. What belongs to trials alone (steps,
seeds, logging, validation) is in none of them. A job that deletes a key has no ``best.yaml``, see
:mod:`autotune.verl_bridge.config_file`. A setting that is infeasible or was not proven is
exported only on request, and each file then says so.
"""

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import BadInputError, SweepError
from autotune.launch_script import parse_launch_script, script_of, with_overrides, without_secrets
from autotune.objective import TrialRecord, best_feasible, least_infeasible
from autotune.provenance import Choice, changes, claim_of, doubts_of, header, verdict_lines
from autotune.redaction import mask
from autotune.report.reading import SweepData, read_sweep
from autotune.store import BASE_JOB_FILE, BEST_FILE, write_atomic
from autotune.verl_bridge.config_file import differences, job_file
from autotune.verl_bridge.overrides import compose_base

_MASK = re.compile(r"<\w* ?removed>")
"""What :func:`autotune.redaction.redact` leaves of a secret."""

OVERRIDES_FILE, SCRIPT_FILE, DIFF_FILE = "best_overrides.txt", "best_launch.sh", "best_launch.diff"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseJob:
    """The base job as a sweep ran it; ``base_job.json``."""

    config_name: str
    overrides: list[str]
    """Those of the sweep file, and those that resources and absolute paths add."""
    script: str
    """The launch script, its secrets masked; made from the overrides where there is none."""
    script_name: str
    measured: list[str]
    """Overrides of the cluster's calibration among ``overrides``: the script needs them too."""

    def to_json(self) -> str:
        content = mask({name: getattr(self, name) for name in self.__slots__})
        return json.dumps(content, indent=2) + "\n"

    @staticmethod
    def of(sweep: Any, measured: Sequence[str]) -> "BaseJob":
        """Return the base job of a loaded :class:`autotune.config.Sweep`."""
        from autotune.config import launch_script_of

        base = sweep.config.base
        given = launch_script_of(sweep.config)
        made = script_of(base.config_name, base.overrides)
        return BaseJob(
            config_name=base.config_name,
            overrides=list(sweep.base_overrides),
            script=without_secrets(given.text if given is not None else made),
            script_name=Path(given.name).name if given is not None else "launch.sh",
            measured=list(measured),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote."""

    files: list[Path]
    refused: str | None
    """Why there is no ``best.yaml``: the job cannot be said in one file; None where there is."""


def export(
    folder: Path, out: Path, *, allow_unproven: bool, number: int | None = None
) -> Exported:
    """Write the files of a sweep's best setting, or of another trial's.

    Args:
        folder: The sweep's folder.
        out: Where the files go; made if it does not exist.
        allow_unproven: Whether a setting that is infeasible or not proven is exported too.
        number: The trial whose setting is exported; None: the best one.

    Raises:
        BadInputError: Not a sweep, nothing to export, or not proven.
        SweepError: A record cannot be read, or a file would be another job.
    """
    data = read_sweep(folder)
    choice = choose(data, number)
    if choice.doubts and not allow_unproven:
        raise BadInputError(
            f"Trial {choice.record.number} of {data.folder} is not proven: "
            f"{' '.join(choice.doubts)}",
            f"Run `autotune verify {folder}`, or export it as it is with --allow-unproven.",
        )
    texts, refused = files_of(data, choice, _base_job(data.folder), out)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomic(out / name, text)
    (out / SCRIPT_FILE).chmod(0o755)
    if refused is not None:
        # One that an earlier export left would be another job.
        (out / BEST_FILE).unlink(missing_ok=True)
    return Exported(files=[out / name for name in texts], refused=refused)


def choose(data: SweepData, number: int | None = None) -> Choice:
    """Return the proven winner; without one, the sweep's best trial and the doubts about it.

    Args:
        data: The sweep.
        number: The trial that is wanted instead.

    Raises:
        BadInputError: There is no setting that could be exported.
    """
    baseline, verification = data.baseline, data.verification
    objective = data.config.objective.metric
    wanted = number
    if wanted is None and verification is not None:
        wanted = verification.winner
    record: TrialRecord | None
    if wanted is not None:
        record = data.trial(wanted)
    else:
        record = best_feasible(data.trials, objective) or least_infeasible(data.trials)
    if baseline is None or record is None:
        raise BadInputError(f"{data.folder}: no trial has finished, there is nothing to export.")
    if record.setting == baseline.setting and number is not None:
        raise BadInputError(
            f"{data.folder}: trial {number} ran the base job's own settings, there is nothing to "
            "export."
        )
    if record.setting == baseline.setting:
        raise BadInputError(
            f"{data.folder}: the base job's own settings were the best of {len(data.trials)} "
            "trials, there is nothing to export."
        )
    candidate = verification.of(record.number) if verification is not None else None
    return Choice(
        record=record,
        baseline=baseline,
        verification=verification,
        candidate=candidate,
        doubts=doubts_of(record, verification, candidate),
    )


def files_of(
    data: SweepData, choice: Choice, base: BaseJob, out: Path
) -> tuple[dict[str, str], str | None]:
    """Return name -> text of all files of an export, and why ``best.yaml`` is not among them."""
    objective = data.config.objective.metric
    tuned = choice.record.overrides
    complete = [*base.overrides, *tuned]
    lines = [*header(data, choice, out.resolve())]
    block = "\n".join([*(f"# {line}".rstrip() for line in lines), claim_of(data, choice)])
    said = changes(choice, data.trials, objective)
    note = [lines[0], *verdict_lines(choice, data.config), f"Changed settings: see {DIFF_FILE}."]
    script = _script(base, [*base.measured, *tuned], note)
    texts = {
        OVERRIDES_FILE: _overrides_text(block, base, tuned, said),
        SCRIPT_FILE: script,
        DIFF_FILE: _diff(base, script),
    }
    try:
        best = job_file(base.config_name, complete, header=block, comments=said)
    except BadInputError as error:
        return texts, f"{BEST_FILE} is not written. {error}"
    return {BEST_FILE: best, **texts}, None


def _overrides_text(
    block: str, base: BaseJob, tuned: Sequence[str], said: dict[str, tuple[str, ...]]
) -> str:
    """Return one override a line, not quoted for a shell; the tuned ones stand last."""
    lines = [block, f"# --config-name={base.config_name}", *base.overrides]
    for override in tuned:
        key = override.partition("=")[0].lstrip("+")
        lines += [*(f"# {text}" for text in said.get(key, ())), override]
    return "\n".join(lines) + "\n"


def _script(base: BaseJob, tuned: Sequence[str], note: Sequence[str]) -> str:
    """Return the launch script with the tuned settings, and make sure that it starts that job."""
    original = parse_launch_script(base.script, base.script_name)
    text = with_overrides(original, tuned, note)
    changed = parse_launch_script(text, SCRIPT_FILE)
    wanted = compose_base(original.config_name, [*original.overrides, *tuned])
    found = differences(wanted, compose_base(changed.config_name, changed.overrides))
    if found:
        raise SweepError(
            f"{base.script_name} with the tuned settings would start another job: it differs in "
            f"{', '.join(found[:5])}.",
            "Write each override of these keys as one word of its own.",
        )
    return text


def _diff(base: BaseJob, script: str) -> str:
    return "".join(
        difflib.unified_diff(
            base.script.splitlines(keepends=True),
            script.splitlines(keepends=True),
            base.script_name,
            SCRIPT_FILE,
            n=1,
        )
    )


def _base_job(folder: Path) -> BaseJob:
    path = folder / BASE_JOB_FILE
    try:
        base = BaseJob(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SweepError(
            f"{path} cannot be read: {error}.",
            "Run the sweep again: it goes on, and writes the file.",
        ) from error
    masked = [text for text in base.overrides if _MASK.search(text)]
    if masked:
        raise BadInputError(
            f"The base job holds a secret, which no file keeps: {masked[0]}.",
            "Leave it out of the job and set it in the environment of the cluster.",
        )
    return base
