"""One calibration as a file: the constants, what they were fitted to, and where they hold.

Runs in the driver. Pure conversion to and from JSON text; who reads and writes the files is
:mod:`autotune.calibrate`.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInputError
from autotune.models.calibration import Calibration

SCHEMA_VERSION = 2
"""Version of the file's fields and of what its constants mean; a reader refuses any other. Since 2
FLOP/s and launches are a decoder layer's, no longer those of a bare matrix product and addition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """What ``autotune calibrate`` found."""

    constants: Calibration
    device: str
    """``gpu`` or ``cpu``, as in the sweep's resources."""
    device_name: str
    """E.g. ``NVIDIA H200``; several names, where ranks differ, are joined by `` + ``."""
    num_nodes: int
    """Nodes that the ranks were on."""
    backend: str
    """torch's communication backend, ``nccl`` or ``gloo``."""
    samples: Mapping[str, Sequence[tuple[int, float]]]
    """Collective -> (message bytes, seconds of one call) that its constants were fitted to."""
    key: str
    """Digest of what the constants depend on; a cluster with another key is measured anew."""
    measured_at: str
    """ISO 8601, UTC."""
    took_s: float
    """Seconds from the placement group to the last number."""

    def to_json(self) -> str:
        """Return the text of ``calibration.json``."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "constants"
        }
        content = {
            "schema_version": SCHEMA_VERSION,
            "constants": self.constants.to_dict(),
            **fields,
        }
        return json.dumps(content, indent=2) + "\n"


def read_record(path: Path) -> CalibrationRecord:
    """Read a file that :meth:`CalibrationRecord.to_json` wrote.

    Raises:
        BadInputError: Another schema, or not such a file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content.pop("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version}, not {SCHEMA_VERSION}")
        constants = Calibration.from_dict(content.pop("constants"), "constants")
        samples = {
            name: [(int(size), float(seconds)) for size, seconds in pairs]
            for name, pairs in content.pop("samples").items()
        }
        return CalibrationRecord(constants=constants, samples=samples, **content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInputError(
            f"{path} is not a calibration that this version reads: {error}.",
            "Remove the file to have the cluster measured again.",
        ) from error
