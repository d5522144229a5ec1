"""The machine as a drill sees it: a clock that stands still with it, its server, and every process that comes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

__all__ = ["DATABASE", "ROOT", "Clock", "Server", "below", "until"]

ROOT = Path(__file__).parent.parent.parent
DATABASE = "postgres"
"""The name of each process of PostgreSQL, which is none of the service's."""

_TICK_S = 0.05
_LONGEST_TICK_S = 0.5
_START_S = 180.0


class Clock:
    """Seconds in which this process ran: a machine that stood still (SIGSTOP, a paused VM) proves nothing stuck."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        before = time.monotonic()
        while not self._closed.wait(_TICK_S):
            now = time.monotonic()
            self.now_s += min(now - before, _LONGEST_TICK_S)
            before = now

    def close(self) -> None:
        """Stops it."""
        self._closed.set()
        self._thread.join()


def until(clock: Clock, limit_s: float, is_so: Callable[[], bool], *, pause_s: float = _TICK_S) -> bool:
    """Waits until it is so; False when it was not within `limit_s` seconds of the clock."""
    deadline = clock.now_s + limit_s
    while not is_so():
        if clock.now_s > deadline:
            return False
        time.sleep(pause_s)
    return True


def below(*, apart_from: Collection[int] = ()) -> list[psutil.Process]:
    """Every process that came of this one and lives. This one is a subreaper, so that none escapes to init."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.pid in apart_from or process.name() == DATABASE:
                continue
            if process.status() == psutil.STATUS_ZOMBIE:
                if process.ppid() == os.getpid():
                    os.waitpid(process.pid, os.WNOHANG)
            else:
                found.append(process)
    return found


class Server:
    """The server process, started again on the same port and folder after each death."""

    module = "tests.drills.serve"

    def __init__(
        self, cache: Path, database_url: str, temporary: Path, *, log: Path | None = None, **settings: object
    ) -> None:
        self.cache, self.database_url, self.temporary = cache, database_url, temporary
        self._log = log or cache.parent / "server.log"
        self.port, self.starts = 0, 0
        self._environment = {
            **os.environ,
            "RELAXC_CACHE_DIR": str(cache),
            "RELAXC_DATABASE_URL": database_url,
            "RELAXC_WORKERS": "2",
            "RELAXC_DRAIN_S": "0.5",
            "RELAXC_LOG_LEVEL": "info",
            "TMPDIR": str(temporary),
            **{f"RELAXC_{name}": str(value) for name, value in settings.items()},
        }
        self.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def start(self) -> None:
        """Starts it, and returns when it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, *self._words()],
                cwd=ROOT,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        self._hear(self._process.stdout.readline())
        self.starts += 1

    def _words(self) -> list[str]:
        return [str(self.port)]

    def _hear(self, line: str) -> None:
        """The first line, which says that it has started."""
        assert line.startswith("listening on http://127.0.0.1:"), f"the server does not start: {line!r}"
        self.port = int(line.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL; nothing where it has ended."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.wait(_START_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def at_rest(self) -> set[int]:
        """The processes that are there when nothing runs: the server's own and its zygotes'."""
        try:
            return {self.pid, *(child.pid for child in psutil.Process(self.pid).children())}
        except psutil.NoSuchProcess:
            return set()
