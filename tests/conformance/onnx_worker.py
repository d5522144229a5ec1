"""A process that runs cases whose names it reads, one JSON line for each; and the pool that feeds such processes."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from tests.conformance.onnx_cases import Outcome, run_case

__all__ = ["run_cases"]

CASE_SECONDS = 120
ROOT = Path(__file__).parents[2]


def main() -> None:
    """Reads names from stdin. torch is kept out, as in the service's own workers."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    for line in sys.stdin:
        outcome = run_case(line.strip(), compiled="--compiled" in sys.argv)
        print("\n" + json.dumps(asdict(outcome)), flush=True)


class _Process:
    def __init__(self, *, compiled: bool) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.onnx_worker", *["--compiled"] * compiled],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, case: str) -> Outcome | None:
        """The case's outcome; None when the process died or hung on it."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        timer = threading.Timer(CASE_SECONDS, self.popen.kill)
        timer.start()
        try:
            self.popen.stdin.write(case + "\n")
            self.popen.stdin.flush()
            for line in self.popen.stdout:
                if line.startswith('{"case"'):
                    return Outcome(**json.loads(line))
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        return None

    def close(self) -> None:
        """Ends the process."""
        self.popen.kill()
        self.popen.communicate()


def run_cases(
    cases: Iterable[str],
    processes: int,
    *,
    compiled: bool = False,
    done: Callable[[Outcome], None] = lambda outcome: None,
) -> dict[str, Outcome]:
    """The outcome of each case, each process taking the next one; a death is the outcome `broken` of its case.

    `compiled` is for `run_case`; `done` gets each outcome as it comes.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    outcomes: dict[str, Outcome] = {}

    def serve() -> None:
        process = _Process(compiled=compiled)
        try:
            while True:
                try:
                    case = waiting.get_nowait()
                except queue.Empty:
                    return
                outcome = process.run(case)
                if outcome is None:
                    process.close()
                    outcome = Outcome(case, "broken", "the process died or hung")
                    process = _Process(compiled=compiled)
                outcomes[case] = outcome
                done(outcome)
        finally:
            process.close()

    threads = [threading.Thread(target=serve) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


if __name__ == "__main__":
    main()
