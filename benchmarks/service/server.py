"""The real server in a process of its own, and what it takes of memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx

__all__ = ["Server"]

_MIB = 1 << 20


class Server:
    """`relaxc serve` on a free port, with its cache in a folder; `ready_s` is the time from its start to an answer."""

    def __init__(self, cache: Path) -> None:
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "relaxc", "serve", "--port", "0"],
            env={**os.environ, "RELAXC_CACHE_DIR": str(cache)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().removeprefix("listening on ").strip()
        if httpx.get(f"{self.url}/healthz", trust_env=False).status_code != 200:
            raise RuntimeError("the server does not answer")
        self.ready_s = time.perf_counter() - begun

    @property
    def rss_mib(self) -> float:
        """What it holds now."""
        return self._status("VmRSS")

    @property
    def peak_mib(self) -> float:
        """The most that it has held, since it started or since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        """The peak is what it holds now (proc(5), clear_refs)."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024 / _MIB

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
