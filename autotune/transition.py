"""The cheapest way from one setting to another in a live job.

Runs in the trial actor. This is the one place that says what a change of setting costs:

=======  ==========================================================  ===============================
kind     what happens                                                who does it
=======  ==========================================================  ===============================
HOT      weights, optimizer, random numbers and data start again;    ``workers.put_back``: the
         the new values are read by the next batch                   first weights, kept on the host
ENGINE   as HOT, and actor, reference and critic are built again     ``workers.rebuild``
         from the model's files; rollout servers stay
COLD     the job is ended, its memory is waited for, a new one       ``launcher``
         starts
=======  ==========================================================  ===============================

A knob says in the catalogue (:mod:`autotune.knobs`) what changing it needs; the dearest changed
knob decides. A knob of the rollout's servers needs a cold start: their memory is laid out at
start-up, and on an accelerator that is most of what a cold start takes. Every live start also puts
back what an earlier trial moved: all trials measure the same work.
"""

from collections.abc import Iterable, Mapping

from autotune.knobs import KNOBS, KnobValue, Transition
from autotune.objective import Start

_START = {
    Transition.HOT: Start.HOT,
    Transition.ENGINE: Start.ENGINE,
    Transition.ROLLOUT: Start.COLD,
    Transition.COLD: Start.COLD,
}
_FROM_CHEAP_TO_DEAR = (Start.HOT, Start.ENGINE, Start.COLD)


def cheapest_start(before: Mapping[str, KnobValue], after: Mapping[str, KnobValue]) -> Start:
    """Return how a live job that ran ``before`` comes to ``after``, two settings of one sweep."""
    needed = [_START[KNOBS[name].transition] for name in after if before[name] != after[name]]
    least = Start.HOT if can_be_hot(after) else Start.ENGINE
    return max([least, *needed], key=_FROM_CHEAP_TO_DEAR.index)


def can_be_hot(knobs: Iterable[str]) -> bool:
    """Say whether a sweep of these knobs has HOT changes at all: only then are first weights
    kept."""
    return any(KNOBS[name].transition is Transition.HOT for name in knobs)
