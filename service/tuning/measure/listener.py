"""Says from the reference kernel whether the machine is quiet, and waits for it in bounds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from relaxc.service.tuning.measure.messages import Heard
from relaxc.service.tuning.measure.outcome import Noise

__all__ = ["Listener"]

_LOUD_SPREAD, _LOUD_DRIFT = 0.15, 0.15
"""Shares of the reference's time: ten times what a quiet machine shows, and less than what a search is after."""
_REMEMBERED = 50
_PAUSE_S = 0.5
_FIRST_WAIT_S, _SHARE = 2.0, 0.1
"""All waits together last so long, and that share of the time since the start: some machines are never quiet."""


class Listener:
    """Times the reference kernel by `hear`, and compares it with the fastest of the last 50 times."""

    def __init__(
        self,
        hear: Callable[[], Heard | None],
        wait_s: float,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wait_s` bounds each wait; `hear` returns None where there is nothing to hear."""
        self.noise = Noise()
        self._hear, self._wait_s, self._pause, self._clock = hear, wait_s, pause, clock
        self._history: deque[float] = deque(maxlen=_REMEMBERED)
        self._began, self._waited = clock(), 0.0

    def listen(self) -> bool:
        """Listen, and return whether the machine is loud now."""
        heard = self._hear()
        if heard is not None:
            self._history.append(heard.seconds)
            drift = heard.seconds / min(self._history) - 1
            loud = heard.spread > _LOUD_SPREAD or drift > _LOUD_DRIFT
            self.noise = Noise(heard.seconds, heard.spread, drift, loud)
        return self.noise.loud

    def wait_until_quiet(self) -> bool:
        """Wait for quiet, and return whether it is still loud after that."""
        left = min(self._wait_s, _FIRST_WAIT_S + _SHARE * (self._clock() - self._began) - self._waited)
        while self.listen() and left > 0:
            self._pause(_PAUSE_S)
            self._waited += _PAUSE_S
            left -= _PAUSE_S
        return self.noise.loud
