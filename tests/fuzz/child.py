"""The process that checks cases, started anew after each that killed it, and after so many."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["WORKER", "Child"]

WORKER = (sys.executable, "-m", "tests.fuzz.worker")

_LIMIT_S = 180.0
_CASES = 60
"""How many cases a process checks: what TVM keeps of each is never freed."""


class Child:
    """A worker and its folder."""

    def __init__(self, folder: Path, command: Sequence[str] = WORKER) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._command = folder, command
        self._process: subprocess.Popen[bytes] | None = None
        self._cases = 0
        self._rest = b""

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the row of a case; `crash` where the process died of it, `hung` where it did not end."""
        if self._process is None or self._cases >= _CASES:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None
        self._cases += 1
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        end, is_drawn = time.monotonic() + _LIMIT_S, "index" not in asked
        while (row := self._row(end)) is not None:
            if row.get("done"):
                return row
            is_drawn = True
        has_died = time.monotonic() < end
        self.close()
        file = self.folder / "log"
        log = file.read_bytes()[-600:].decode(errors="replace") if has_died and file.exists() else ""
        if not is_drawn:
            return {"kind": "undrawn", "said": f"a reference died: {log}"}
        why = f"status {process.returncode}: {log}" if has_died else f"over {_LIMIT_S:.0f} s"
        return {"kind": "crash" if has_died else "hung", "said": why}

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()  # a signal that ended it before stays its status
            self._process.communicate()
            self._process, self._rest = None, b""

    def _start(self) -> None:
        self.close()
        self._cases = 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [*self._command, str(self.folder / "log")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip

    def _row(self, end: float) -> dict[str, Any] | None:
        """The next line of the process; None where it ends, or the time does."""
        assert self._process is not None and self._process.stdout is not None
        stream = self._process.stdout
        while b"\n" not in self._rest:
            if not select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                return None
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return dict(json.loads(line))
