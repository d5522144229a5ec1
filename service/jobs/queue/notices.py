"""Who is told that jobs have changed, and what is heard from the other servers of the database."""

from __future__ import annotations

from collections.abc import Callable

from relaxc.service.config import settings
from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import jobs, owners
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.signals import ENDED, EVENTS, QUEUE, Signals
from relaxc.service.jobs.queue.hub import Hub
from relaxc.service.jobs.webhooks.deliver import Webhooks

__all__ = ["Notices"]

_HEARD_POLL_S = 5.0


class Notices:
    """Tells those who follow jobs here, the servers of the same database, and the receivers of webhooks.

    Every call may be made from any thread. `wake` is called when the queue may have changed.
    """

    def __init__(self, database: Database, wake: Callable[[], None], webhook_threads: int) -> None:
        """Start to listen with `start`: what is heard before the scheduler is there would wake nobody."""
        self._database = database
        self._wake = wake
        self._signals = Signals(database, self._heard)
        self.hub = Hub(database, self.poll_s)
        self.webhooks = Webhooks(database, self._webhook_secret, threads=webhook_threads)

    def start(self) -> None:
        """Begin to hear other servers."""
        self._signals.start()

    def close(self) -> None:
        """Tell nobody any more; who follows a job has been told by `hub.close`."""
        self.webhooks.close()
        self._signals.close()

    def poll_s(self) -> float | None:
        """Return how often to look at what others may have changed; None is as often as where nobody tells of it."""
        return _HEARD_POLL_S if self._signals.is_heard else None

    def told(self, job: str) -> None:
        """Tell those who follow a job of this server that it has told something."""
        self.hub.notify(job)
        self._signals.tell(EVENTS, job)

    def queued(self) -> None:
        """Tell all servers that something waits that did not, or is to be cancelled."""
        self._wake()
        self.webhooks.wake()
        self._signals.tell(QUEUE)

    def ended(self, job: str) -> None:
        """Tell all that a job of this server has ended, or is queued again."""
        self.told(job)
        self.webhooks.wake()
        self._signals.tell(QUEUE if self._something_waits() else ENDED)

    def _heard(self, topic: str, ids: tuple[str, ...]) -> None:
        """Another process has changed something."""
        if topic == QUEUE:
            self._wake()
        if topic in (QUEUE, ENDED):
            self.webhooks.wake()
        for id in ids:
            self.hub.notify(id)

    def _something_waits(self) -> bool:
        """As for its owner's turn, for an equal request that runs, or as what has ended is queued again."""
        try:
            with self._database.read() as connection:
                return bool(jobs.waiting_needs(connection))
        except ServiceError:
            return True

    def _webhook_secret(self, owner: str) -> str | None:
        with self._database.read() as connection:
            row = owners.find(connection, owner)
        own = None if row is None else row.webhook_secret
        return own or settings().webhook_secret.get_secret_value() or None
