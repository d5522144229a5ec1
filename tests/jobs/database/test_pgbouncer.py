"""Through pgbouncer, where Debian's is installed: both of its modes bear the service, and one lets it listen."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.signals import Signals
from tests.jobs.rows import put
from tests.waiting import until

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

_AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")]


@contextmanager
def pooled(url: str, mode: str) -> Iterator[str]:
    """The URL of the same database by a pgbouncer."""
    parts = urlsplit(url)
    name = parts.path.strip("/")
    with tempfile.TemporaryDirectory(prefix="pgb-") as folder:
        Path(folder).chmod(0o777)  # it does not run as root
        settings = Path(folder) / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n{name} = host={parse_qs(parts.query)['host'][0]} dbname={name} user=relaxc\n"
            f"[pgbouncer]\nunix_socket_dir = {folder}\nlisten_addr =\nlisten_port = 6543\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = 20\nignore_startup_parameters = options,extra_float_digits\n"
        )
        as_user = _AS_POSTGRES if not os.geteuid() else []
        process = subprocess.Popen([*as_user, str(PROGRAM), str(settings)], stderr=subprocess.DEVNULL)
        try:
            until(lambda: (Path(folder) / ".s.PGSQL.6543").exists())
            yield f"postgresql://relaxc@/{name}?host={folder}&port=6543"
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize(("mode", "more"), [("session", ""), ("transaction", "&prepare_threshold=none")])
def test_a_pooler_bears_it(postgres: str, mode: str, more: str) -> None:
    errors: list[Exception] = []
    with pooled(postgres, mode) as url, closing(Database(url + more, 8)) as database:
        signals = Signals(database, lambda topic, ids: None)
        signals.start()

        def work() -> None:
            try:
                for _ in range(40):
                    put(database)
            except Exception as error:  # noqa: BLE001  # told to the test
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        if mode == "session":
            until(lambda: signals.is_heard)
        else:
            time.sleep(2.0)
            assert not signals.is_heard
        signals.close()
