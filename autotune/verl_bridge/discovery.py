"""Will verl find this package's plug-in by itself?

Runs in the driver, in a trial's verl process and on the nodes that the doctor looks at; imports
neither verl nor the plug-in, whose import alone would register everything. Workers import verl and
nothing else, so what counts is the entry point, as verl looks for it (verl/__init__.py).
"""

import os
from importlib.metadata import entry_points

PLUGIN = "autotune.verl_bridge.plugin"
"""The module that verl loads."""
_GROUP, _POLICY_ENV = "verl.plugins", "VERL_USE_EXTERNAL_PLUGINS"


def lost_plugin() -> list[str]:
    """Return the plug-in in words where verl will not load it; empty where it will."""
    allowed = os.environ.get(_POLICY_ENV, "auto").strip().lower()
    names = None if allowed == "auto" else [name.strip() for name in allowed.split(",")]
    is_found = any(
        entry.value == PLUGIN and (names is None or entry.name in names)
        for entry in entry_points(group=_GROUP)
    )
    return [] if is_found else [f"plug-in {PLUGIN}, an entry point of {_GROUP}"]
