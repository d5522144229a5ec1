"""Where a service keeps everything: a folder, or PostgreSQL and S3, with the commands of docs/deploying.md on them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import ROOT, RunningServer
from tests.postgres import running_postgres
from tests.s3 import BUCKET, CREDENTIALS, running_s3

__all__ = ["LAYOUTS", "Place", "Places", "programs"]

LAYOUTS = ("SQLite and files", "PostgreSQL and S3")
"""The headings of the page below which the commands are."""

_PAGE = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Place:
    """A cache folder and, of the second layout, an empty database and a prefix of the bucket."""

    layout: str
    cache: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def serve(self, entry: str, **settings: Any) -> RunningServer:
        """Start a server on it."""
        return RunningServer(self.cache, entry, **self.settings, **settings)

    def back_up(self, folder: Path) -> None:
        """Run the page's first commands of this layout."""
        folder.mkdir()
        self._run(_commands(self.layout)[0], folder)

    def restore(self, folder: Path) -> None:
        """Run its second ones."""
        self.cache.mkdir(parents=True, exist_ok=True)
        self._run(_commands(self.layout)[1], folder)

    def _run(self, commands: str, folder: Path) -> None:
        script = commands.replace("/var/lib/relaxc", str(self.cache)).replace("/srv/backup", str(folder))
        script = script.replace("bucket/prefix", self.settings.get("blobs_url", "").removeprefix("s3://"))
        environment = {
            "RELAXC_DATABASE_URL": self.settings.get("database_url", ""),
            "RCLONE_S3_PROVIDER": "Other",
            "RCLONE_S3_ENDPOINT": self.settings.get("s3_endpoint_url", ""),
            "RCLONE_CONFIG": "",
        }
        command = ["bash", "-e", "-c", script]
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr


def _commands(layout: str) -> list[str]:
    section = _PAGE.split(f"### {layout}\n")[1].split("\n##")[0]
    found = re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S)
    assert len(found) == 2
    return found


def programs(layout: str) -> None:
    """Skip the test where a program of its commands is missing."""
    for program in ("sqlite3", "tar") if layout == LAYOUTS[0] else ("pg_dump", "pg_restore", "rclone"):
        if shutil.which(program) is None:
            pytest.skip(f"the backup is made by the program {program}")


class Places:
    """Empty places of one layout, all gone at the end of `opened`."""

    def __init__(self, layout: str, folder: Path, database: str = "", bucket: str = "") -> None:
        self.layout, self.folder, self._database, self._bucket = layout, folder, database, bucket

    @staticmethod
    @contextmanager
    def opened(layout: str, folder: Path) -> Iterator[Places]:
        """Start what the layout needs."""
        with ExitStack() as held:
            if layout == LAYOUTS[0]:
                yield Places(layout, folder)
            else:
                patch = held.enter_context(pytest.MonkeyPatch.context())
                for name, value in CREDENTIALS.items():
                    patch.setenv(name, value)
                patch.delenv("AWS_CA_BUNDLE", raising=False)  # of a machine that has one; rclone cannot, and needs none
                database = held.enter_context(running_postgres())
                yield Places(layout, folder, database, held.enter_context(running_s3(folder / "s3.log")))

    def place(self) -> Place:
        """Return another empty one."""
        import psycopg

        name = f"p{uuid.uuid4().hex[:12]}"
        cache = self.folder / name
        if not self._database:
            return Place(self.layout, cache)
        with psycopg.connect(self._database, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        settings = {
            "database_url": self._database.replace("/postgres?", f"/{name}?"),
            "blobs_url": f"s3://{BUCKET}/{name}",
            "s3_endpoint_url": self._bucket,
        }
        return Place(self.layout, cache, settings)
