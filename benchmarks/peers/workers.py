"""The parent's side of the workers: one process a runtime, of which at most one runs at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.peers.cases import Case
from benchmarks.peers.runtimes import environment

__all__ = ["Failed", "Worker", "ask_once"]

ROOT = Path(__file__).parent.parent.parent

_ENDS_S = 20.0
"""For a process that has answered: its own children are taken down by then."""


class Failed(Exception):
    """A worker ended without an answer; the message has the end of what it printed."""


class Worker:
    """A runtime that has loaded a case. Between its turns it is stopped, so that no thread of it spins or wakes up."""

    def __init__(self, task: str, name: str, case: Case, folder: Path, threads: int) -> None:
        self.name = name
        self._log = folder / f"{name or 'export'}-{task}.log"
        command = [sys.executable, "-m", "benchmarks.peers.worker"]
        command += [task, name, json.dumps(asdict(case)), str(folder), str(threads)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        env |= environment(name, case)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
            )
        self._stopped = False

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def answer(self) -> dict[str, Any]:
        """Its next answer. Raises Failed where it ends first."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise Failed(f"{self.name or 'export'} failed, see {self._log}: {_last_lines(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **command: Any) -> dict[str, Any]:
        """Lets it run, for one command, and stops it again."""
        assert self._process.stdin is not None
        self._resume()
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer tells
        answer = self.answer()
        self.stop()
        return answer

    def stop(self) -> None:
        """Stops every thread of it until the next command."""
        self._process.send_signal(signal.SIGSTOP)
        self._stopped = True

    def _resume(self) -> None:
        if self._stopped:
            self._process.send_signal(signal.SIGCONT)
            self._stopped = False

    def wait(self, seconds: float) -> None:
        """Waits for it to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def close(self) -> None:
        """Ends the process."""
        self._resume()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def ask_once(task: str, name: str, case: Case, folder: Path, threads: int) -> dict[str, Any]:
    """The answer of a worker that does one task and ends. Raises Failed."""
    with Worker(task, name, case, folder, threads) as worker:
        answer = worker.answer()
        worker.wait(_ENDS_S)
        return answer


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or "it printed nothing"
