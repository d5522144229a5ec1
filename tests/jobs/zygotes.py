"""Workers that outlive a test's pool: each has imported for seconds what every test needs."""

from __future__ import annotations

from relaxc.service.process.flavour_zygote import FlavourZygote
from relaxc.service.process.pool import Pool
from relaxc.service.process.scrubbed import scrubbed_environment
from relaxc.service.process.task import Flavour

__all__ = ["Lender"]


class Lender:
    """Makes pools that share their zygotes, where a zygote of their own would have the same environment."""

    def __init__(self) -> None:
        self._zygotes: dict[Flavour, FlavourZygote] = {}
        self._environment = scrubbed_environment()

    def pool(self) -> Pool:
        """A pool; its end leaves the zygotes to the next one."""
        if scrubbed_environment() != self._environment:
            return Pool()
        pool = _Borrowing()
        pool._zygotes = self._zygotes
        return pool

    def close(self) -> None:
        """Ends the zygotes."""
        for zygote in self._zygotes.values():
            zygote.close()


class _Borrowing(Pool):
    """A pool whose zygotes are another's."""

    def close(self) -> None:
        """Cancels what runs here."""
        with self._lock:
            self._closed, running, self._zygotes = True, list(self._running), {}
        for cancellation in running:
            cancellation.cancel()
