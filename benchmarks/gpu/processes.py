"""Processes that say rows, and that are stopped or ended with all that they started."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Child", "descendants", "signal_all"]


def descendants(pid: int) -> list[int]:
    """Return the process and everything that it and its children started, whatever sessions they are in."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue  # it ended
            parent = int(status.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, pending = [], [pid]
    while pending:
        found.append(pending.pop())
        pending += children.get(found[-1], [])
    return found


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process with its descendants; those that are gone are left out."""
    for pid in [each for root in pids for each in descendants(root)]:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class Child:
    """A process that is told lines; the rows that it says come through a queue, None when it has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, it lives as long as the process
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.rows: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.ready = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                self.rows.put(json.loads(line[1:]))
        self.rows.put(None)

    def send(self, line: str) -> None:
        """Give it a line; one that has ended gets none."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return

    def close(self) -> None:
        """Tell it that no more lines come."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def last_words(self) -> str:
        """The end of what it wrote on stderr."""
        self.errors.seek(0)
        return self.errors.read()[-400:].strip()

    def end(self) -> None:
        """Kill it with all that it started."""
        signal_all([self.process.pid], signal.SIGKILL)
        self.process.wait()
        self.reader.join()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            assert file is not None
            with suppress(BrokenPipeError):
                file.close()
