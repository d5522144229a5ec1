"""What has to be done now and then: say that this server lives, settle what dead ones left, remove what is old."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relaxc.service.errors import RelaxcError
from relaxc.service.jobs.database import clock, instances, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.noted import by_command
from relaxc.service.process.workspace import Workspace

__all__ = ["RECOVERY_LOCK", "Keeper", "Periodic"]

RECOVERY_LOCK = 4
"""The name of the lock that a server holds while it settles what others left."""

_LOG = logging.getLogger("relaxc.keeper")
_MARK = "place"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""An image of a disk has all that is on it, but runs under another boot."""


class Periodic:
    """A thread that calls `work` every `pause_s` seconds; what goes wrong is logged, and tried again."""

    def __init__(self, name: str, pause_s: float, work: Callable[[], object]) -> None:
        self._pause_s = pause_s
        self._work = work
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._go, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Return when it works no more."""
        self._closed.set()
        self._thread.join()

    def _go(self) -> None:
        while not self._closed.wait(self._pause_s):
            try:
                self._work()
            except RelaxcError as error:
                _LOG.warning("%s: %s", self._thread.name, error)
            except Exception:  # noqa: BLE001  # a bug must not end what keeps the service going
                _LOG.exception("%s goes on", self._thread.name)


class Keeper:
    """This server's row among the servers of the database, and its eye on the others'."""

    def __init__(
        self,
        database: Database,
        workspace: Workspace,
        root: Path,
        lease_s: float,
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Registers; `root` is the cache folder, `about` what `instances.register` takes of it."""
        self.id = uuid.uuid4().hex
        self._database = database
        self._workspace = workspace.path
        self._place = _place(root, workspace)
        self._lease_s = lease_s
        self._about = about
        self._register()

    def _register(self) -> None:
        with self._database.begin() as connection:
            clock.sync(connection)
            instances.register(connection, self.id, self._place, self._workspace.name, **self._about)
            if self._about.get("role") == "worker":  # whoever has the database's credentials may add one
                by_command(connection, "worker", self.id, {})

    def beat(self) -> None:
        """Say that this server lives; one that others have given up comes back, without the jobs it had."""
        with self._database.begin() as connection:
            alive = instances.beat(connection, self.id)
            clock.sync(connection)
        if not alive:
            _LOG.warning("this server was silent for %g s, and was given up by another", self._lease_s)
            self._register()

    def recover(self) -> list[str]:
        """Queue again, fail or cancel the jobs of servers that are gone; return the jobs' ids."""
        with self._database.read() as connection:
            if not instances.suspicious(connection, self.id, self._place, self._lease_s):
                return []
        with self._database.begin() as connection:
            self._database.lock(connection, RECOVERY_LOCK)
            gone = instances.dead(connection, self.id, self._place, self._lease_s, self._is_abandoned)
            heard = instances.heard(connection)
            for id, host in instances.workers_of(connection, gone).items():
                by_command(connection, "worker died", id, {"worker_host": host})
            claims = instances.bury(connection, gone)
            found = [job for claim in claims if (job := transitions.recover(connection, claim, heard)) is not None]
        for job in found:
            _LOG.warning("job %s of a server that is gone is %s", job.id, job.state)
        return [job.id for job in found]

    def _is_abandoned(self, workspace: str) -> bool:
        """Whether nobody holds this folder beside ours: its server has ended, however it did."""
        try:
            with (self._workspace.parent / workspace / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Note that this server has ended in order, and runs nothing."""
        with self._database.begin() as connection:
            instances.forget(connection, self.id)


def _place(root: Path, workspace: Workspace) -> str:
    """What tells this cache folder from all others: a mark in it, and where it is, as a copy has the same mark."""
    seen = root.stat()
    text = f"{_mark(root, workspace)} {seen.st_dev} {seen.st_ino} {_BOOT.read_text().strip()}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _mark(root: Path, workspace: Workspace) -> str:
    """Written into the folder once."""
    mark = root / _MARK
    while True:
        try:
            if text := mark.read_text().strip():
                return text
        except FileNotFoundError:
            staged = workspace.path / _MARK
            staged.write_text(uuid.uuid4().hex)
            try:
                mark.hardlink_to(staged)
            except FileExistsError:
                continue
            finally:
                staged.unlink()
        time.sleep(0.01)
