"""Says from the reference kernel whether the machine is quiet, and waits for it in bounds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from service.tuning.measure.messages import Heard
from service.tuning.measure.outcome import Noise

__all__ = ["Listener"]

_LOUD_SPREAD, _LOUD_DRIFT = 0.15, 0.15
"""Shares of the reference's time: ten times what a quiet machine shows, and less than what a search is after."""
_REMEMBERED = 50
_PAUSE_S = 0.5


class Listener:
    """Times the reference kernel by `hear`, and compares it with the fastest of the last 50 times."""

    def __init__(
        self, hear: Callable[[], Heard | None], wait_s: float, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """`wait_s` bounds each wait; `hear` returns None where there is nothing to hear."""
        self.noise = Noise()
        self._hear, self._wait_s, self._pause = hear, wait_s, pause
        self._history: deque[float] = deque(maxlen=_REMEMBERED)
        self._gave_up = False

    def listen(self) -> bool:
        """Whether the machine is loud now."""
        heard = self._hear()
        if heard is not None:
            self._history.append(heard.seconds)
            drift = heard.seconds / min(self._history) - 1
            loud = heard.spread > _LOUD_SPREAD or drift > _LOUD_DRIFT
            self.noise = Noise(heard.seconds, heard.spread, drift, loud)
        return self.noise.loud

    def wait_until_quiet(self) -> bool:
        """Whether it is still loud after the wait. Where a wait was in vain there is no other before it was quiet."""
        waited = 0.0
        while self.listen() and not self._gave_up:
            if waited >= self._wait_s:
                self._gave_up = True
                break
            self._pause(_PAUSE_S)
            waited += _PAUSE_S
        self._gave_up = self._gave_up and self.noise.loud
        return self.noise.loud
