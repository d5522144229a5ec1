"""Slow tests for so many seconds, in pytest's order: `python -m tests.limited --limit-s 900 tests/docker`.

What the limit cuts off is no failure, a test that fails is one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence

import psutil
import pytest

__all__ = ["Limited", "add_limits", "main"]


class Limited:
    """A plugin of pytest that counts failures, and stops at the limit."""

    name = "limited"

    def __init__(self, limit_s: float, grace_s: float) -> None:
        self.limit_s, self.grace_s = limit_s, grace_s
        self.out = os.dup(1)  # pytest puts a file in the place of 1 while a test runs
        self.cut, self.failed, self.ended, self.chosen = False, 0, 0, 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After `-m` has chosen."""
        self.chosen = len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What fails after the cut was cut."""
        self.failed += report.failed and not self.cut
        self.ended += report.when == "teardown" and not self.cut

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Where a test has swallowed the interruption."""
        if self.cut:
            item.session.shouldstop = f"the limit of the {self.name} run"

    def run(self, arguments: Sequence[str]) -> int:
        """Runs pytest on what is slow; 0 unless a test failed."""
        timer = threading.Timer(self.limit_s, self._stop)
        timer.daemon = True
        timer.start()
        try:
            status = int(pytest.main(["-m", "slow", "-v", *arguments], plugins=[self]))
        except BaseException:  # the interruption while pytest was importing, or warnings of what the cut test left open
            if not self.cut:
                raise
            status = 0
        timer.cancel()
        return self._outcome(status)

    def _stop(self) -> None:
        """Interrupts the test that runs; ends everything where that does not help."""
        self.cut = True
        # The main thread itself: a signal to the process may reach another one, and then no call of the test ends.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        last = threading.Timer(self.grace_s, self._kill)
        last.daemon = True
        last.start()

    def _kill(self) -> None:
        for process in psutil.Process().children(recursive=True):
            process.kill()
        os._exit(self._outcome(0))

    def _outcome(self, status: int) -> int:
        """The exit status, after a line on what was done."""
        said = f"{self.ended} of {self.chosen} slow tests, {self.failed} failed"
        end = f"cut at its limit of {self.limit_s:.0f} s, which is no failure" if self.cut else "to the end"
        sys.stdout.flush()
        os.write(self.out, f"\n{self.name}: {said}; {end}\n".encode())
        return int(self.failed > 0) if self.cut else status


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The options that both commands have."""
    parser.add_argument("--limit-s", type=float, default=600.0)
    parser.add_argument("--grace-s", type=float, default=60.0, help="for a test's fixtures to end after the limit")
    parser.add_argument("paths", nargs="*", help="where to look for slow tests")


def main(arguments: list[str]) -> int:
    """Runs them; 0 unless a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_limits(parser)
    asked = parser.parse_args(arguments)
    return Limited(asked.limit_s, asked.grace_s).run(["-rs", *asked.paths])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
