"""The settings that a sweep file asks to try first: can each of them be tried as written?

Runs in the driver, when the file is loaded. A knob that a hypothesis leaves out is as in the base
job, brought into its domain where it lies outside; a value that is written is never replaced.
"""

from collections.abc import Mapping, Sequence

from autotune.domain import Domain
from autotune.errors import BadInputError, nearest
from autotune.knobs import KNOBS, KnobValue
from autotune.space import Space


def check_hypotheses(
    first: Sequence[Mapping[str, object]], space: Space, domains: Mapping[str, Domain]
) -> None:
    """Check ``search.first`` against the sweep's knobs, their domains and verl's rules.

    Raises:
        BadInputError: With the full key.
    """
    for index, hypothesis in enumerate(first):
        key = f"search.first[{index}]"
        written = {
            name: _allowed(f"{key}.{name}", name, value, domains)
            for name, value in hypothesis.items()
        }
        setting = space.snap({**space.baseline(), **written})
        for name, value in written.items():
            if setting[name] != value:
                raise BadInputError(
                    f"{key}.{name} is {value!r}, but the knob does not act in that setting.",
                    "Leave it out, or set the knobs that it depends on.",
                )
        problems = space.violations(setting)
        if problems:
            raise BadInputError(f"{key}: verl refuses it: {'; '.join(problems)}.")


def _allowed(key: str, name: str, value: object, domains: Mapping[str, Domain]) -> KnobValue:
    """Return a written value as its domain has it."""
    if name not in domains:
        wrong = "it is not a knob of this sweep" if name in KNOBS else "there is no such knob"
        hint = nearest(name, domains) or f"The sweep's knobs are: {', '.join(domains)}."
        raise BadInputError(f"{key}: {wrong}.", hint)
    domain = domains[name]
    parsed = domain.knob.parse(value, key)
    if not domain.contains(parsed):
        raise BadInputError(
            f"{key} is {value!r}, which is not in the knob's domain.",
            f"knobs.{name} has {domain.describe()}.",
        )
    return domain.nearest(parsed)
