"""The server of the hostile drill: real keys, real compiles, a log and a folder for temporary files of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.keys import Keys
from tests.api.conftest import ROOT, RunningServer
from tests.drills.attacks.amounts import LIMITS
from tests.drills.attacks.wire import Address
from tests.drills.hostile_entries import MARKER
from tests.users import command_of

__all__ = ["ENTRIES", "GIVEN", "HostileServer", "Memory"]

_ENTRY = "tests.drills.hostile_entries:compile_or_escape"
_CHECK = "--check=tests.drills.hostile_entries:check_or_claim"
_SERVES = "import runpy, sys; sys.argv[1:] = {arguments!r}; runpy.run_module('tests.api.serve', run_name='__main__')"
_SETTINGS = {
    **LIMITS,
    "MAX_MODEL_BYTES": 48 << 20,
    "MAX_UNPACKED_BYTES": 512 << 20,
    "HEADER_TIMEOUT_S": 3,
    "BODY_TIMEOUT_S": 3,
    "DRAIN_S": 0.5,
    "WEBHOOK_SECRET": MARKER,
}
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "ANY_OTHER_TOKEN")
ENTRIES = (_ENTRY, _CHECK)
"""What of a server's jobs is the drill's, as words for `tests.api.serve`."""

GIVEN = {
    **{f"RELAXC_{name}": str(value) for name, value in _SETTINGS.items()},
    **dict.fromkeys(_SECRETS, MARKER),
}
"""The server's environment, secrets that no job may see among it."""

_KEYS = {
    "good": ["read", "compile"],
    "attacker": ["read", "compile"],
    "reader": ["read"],
    "writer": ["compile"],
    "admin": ["admin"],
    "revoked": ["admin"],
    "expired": ["admin"],
}
_EXPIRES_S = 0.01


class HostileServer(RunningServer):
    """A server below `folder`, with the keys of the drill."""

    def __init__(self, folder: Path, user: int | None = None) -> None:
        """As `user`, whom root starts it for: jobs then have that user too."""
        self._make(folder)
        command = [sys.executable, "-m", "tests.api.serve", _ENTRY, _CHECK]
        if user is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user, user)
            command = command_of(user, _SERVES.format(arguments=[_ENTRY, _CHECK]))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), f"{line!r}: {self.log.read_text()}"
        self.url = line.removeprefix("listening on ").strip()
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def _make(self, folder: Path) -> None:
        self.cache, self.temporary, self.log = folder / "cache", folder / "tmp", folder / "server.log"
        for made in (self.cache, self.temporary):
            made.mkdir(parents=True)
        self.keys = self._made_keys()

    @property
    def address(self) -> Address:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    @property
    def seen_pid(self) -> int:
        """The server's process id as its jobs would know it."""
        return self.process.pid

    def told(self) -> str:
        """Its log."""
        return self.log.read_text()

    def end(self) -> None:
        """Stops it, if it runs."""
        if self.process.poll() is None:
            self.stop()

    def left(self) -> list[str]:
        """Files that no finished request should have left."""
        found = [*self.cache.glob("jobs/*/*-*"), *self.cache.glob("staging/*"), *self.cache.glob("blobs/.staging/*")]
        return [str(path.relative_to(self.cache.parent)) for path in (*found, *self.temporary.iterdir())]

    def _made_keys(self) -> dict[str, str]:
        with closing(Database(f"sqlite:///{self.cache / 'service.sqlite3'}")) as database:
            keys = Keys(database)
            made = {
                name: keys.create(name, scopes, expires_s=_EXPIRES_S if name == "expired" else None)
                for name, scopes in _KEYS.items()
            }
            keys.revoke(made["revoked"].row.id)
            return {name: new.secret for name, new in made.items()}

    def _environment(self) -> dict[str, str]:
        places = {"RELAXC_CACHE_DIR": str(self.cache), "TMPDIR": str(self.temporary)}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {**GIVEN, **places, "HOME": str(self.temporary)}
        return {**os.environ, "PYTHONPATH": path, **given}


class Memory:
    """The resident bytes of one process, without its children's, from time to time."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self.peak = self._process.memory_info().rss
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def close(self) -> None:
        """Stops looking."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(0.05):
            self.peak = max(self.peak, self._process.memory_info().rss)
