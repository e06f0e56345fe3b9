"""Frees the GPUs of a trial that has ended as soon as no other trial is to follow on them.

Runs in the driver. Tune keeps the actor of an ended trial for the next one, until its search says
that it is finished. A sweep's search cannot say so for good while trials run, since one of them may
be lost and has to be tried again; so an idle trial would hold its GPUs, and a trial that was
stopped early would even run on, until the last of the others had ended. Tune asks its search
algorithm anew in every round of its loop, so this one answers for the moment.
"""

from collections.abc import Callable
from typing import Any

from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.search_generator import SearchGenerator


class FreeingSearch(SearchGenerator):
    """Tune's search algorithm over a searcher: finished while no trial is to start.

    Args:
        searcher: A ``ray.tune.search.Searcher``.
        max_concurrent: Trials at once.
        has_next: Whether another trial is to start, as far as is known; None: unless the searcher
            is finished.
    """

    def __init__(
        self, searcher: Any, *, max_concurrent: int, has_next: Callable[[], bool] | None
    ) -> None:
        super().__init__(ConcurrencyLimiter(searcher, max_concurrent=max_concurrent))
        self._has_next = has_next

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its configuration for Tuner.restore, which is never called here.
        return {}

    def is_finished(self) -> bool:
        """Say whether no trial is to start now; a running one that is lost may change that."""
        if super().is_finished():
            return True
        return self._has_next is not None and not self._has_next()
