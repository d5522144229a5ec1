"""A scrub: everything stored is hashed again, a little every minute, as bytes rot that nobody reads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from relaxc.service.artifact.store import Store
from relaxc.service.jobs.objects.models import Models

__all__ = ["METRIC", "Scrub"]

METRIC = "relaxc_scrubbed"

_SPEND_S = 1.0
"""What a call may take. It comes once a minute, so this is below two percent of a core."""

_ROUND_S = 86_400.0


class Scrub:
    """Goes round the artifacts and models of this host, at most once a day; what is damaged is removed or put aside."""

    def __init__(self, store: Store, models: Models, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._models = models
        self._clock = clock
        self._round: Iterator[tuple[str, bool]] = iter(())
        self._next_round = clock()
        self.counts: Counter[tuple[str, str]] = Counter(
            {(kind, state): 0 for kind in ("artifact", "model") for state in ("whole", "damaged")}
        )
        """How many of each kind were whole or damaged."""

    def __call__(self) -> None:
        """Go on where the last call stopped."""
        end = self._clock() + _SPEND_S
        while self._clock() < end:
            found = next(self._round, None)
            if found is None:
                if self._clock() < self._next_round:
                    return
                self._next_round = self._clock() + _ROUND_S
                self._round = self._everything()
                continue
            kind, is_whole = found
            self.counts[kind, "whole" if is_whole else "damaged"] += 1

    def _everything(self) -> Iterator[tuple[str, bool]]:
        for _, error in self._store.scrub():
            yield "artifact", error is None
        for is_whole in self._models.scrub():
            yield "model", is_whole
