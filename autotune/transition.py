"""The cheapest way from one setting to another in a live job.

Runs in the trial actor. This is the one place that says what a change of setting costs:

=======  ==========================================================  ===============================
kind     what happens                                                who does it
=======  ==========================================================  ===============================
HOT      weights, optimizer, random numbers and data start again;    ``workers.put_back``: the
         the new values are read by the next batch                   first weights, kept on the host
ENGINE   as HOT, and actor, reference and critic are built again     ``workers.rebuild``
         from the model's files; rollout servers stay
ROLLOUT  as HOT or ENGINE, and the rollout's servers are ended and   ``rollout_restart``
         started again; trainer, workers and agent loops stay
COLD     the job is ended, its memory is waited for, a new one       ``launcher``
         starts
=======  ==========================================================  ===============================

A knob says in the catalogue (:mod:`autotune.knobs`) what changing it needs; the dearest changed
knob decides. Every live start also puts back what an earlier trial moved: all trials measure the
same work.
"""

from collections.abc import Iterable, Mapping

from autotune.knobs import KNOBS, KnobValue, Transition
from autotune.objective import Start

_START = {
    Transition.HOT: Start.HOT,
    Transition.ENGINE: Start.ENGINE,
    Transition.ROLLOUT: Start.ROLLOUT,
    Transition.COLD: Start.COLD,
}
_FROM_CHEAP_TO_DEAR = (Start.HOT, Start.ENGINE, Start.ROLLOUT, Start.COLD)
_KEEPING_ENGINES = (Transition.HOT, Transition.ROLLOUT)


def cheapest_start(before: Mapping[str, KnobValue], after: Mapping[str, KnobValue]) -> Start:
    """Return how a live job that ran ``before`` comes to ``after``, two settings of one sweep."""
    needed = [_START[transition] for transition in _changes(before, after)]
    least = Start.HOT if keeps_first(after) else Start.ENGINE
    return max([least, *needed], key=_FROM_CHEAP_TO_DEAR.index)


def keeps_engines(before: Mapping[str, KnobValue], after: Mapping[str, KnobValue]) -> bool:
    """Say whether the training engines stay when a live job that ran ``before`` comes to
    ``after``."""
    return keeps_first(after) and Transition.ENGINE not in _changes(before, after)


def keeps_first(knobs: Iterable[str]) -> bool:
    """Say whether a sweep of these knobs has changes that keep the engines: only then are first
    weights kept on the host."""
    return any(KNOBS[name].transition in _KEEPING_ENGINES for name in knobs)


def _changes(before: Mapping[str, KnobValue], after: Mapping[str, KnobValue]) -> set[Transition]:
    return {KNOBS[name].transition for name in after if before[name] != after[name]}
