"""Some of the slow tests, for so many seconds: `python -m tests.sample --seed WORD --limit-s 600`.

The seed decides the order; the same seed repeats it. What the limit cuts off is no failure, a test that fails is one.
Tests that by themselves may take longer than others (those with a time limit of their own) are left to
`make conformance`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from itertools import zip_longest

import psutil
import pytest

from tests.sampling import in_order

__all__ = ["main"]


class _Sample:
    """Orders the tests, counts failures, and stops at the limit."""

    def __init__(self, seed: str, limit_s: float, grace_s: float) -> None:
        self.seed, self.limit_s, self.grace_s = seed, limit_s, grace_s
        self.out = os.dup(1)  # pytest puts a file in the place of 1 while a test runs
        self.cut, self.failed, self.ended, self.chosen = False, 0, 0, 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After `-m` has chosen."""
        ours = in_order([item for item in items if item.get_closest_marker("timeout") is None], self.seed)
        # By turns, or the thousands of cases of products would leave no time for the others.
        of_products = [item for item in ours if item.get_closest_marker("sampled")]
        others = [item for item in ours if not item.get_closest_marker("sampled")]
        items[:] = [item for pair in zip_longest(others, of_products) for item in pair if item is not None]
        self.chosen = len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What fails after the cut was cut."""
        self.failed += report.failed and not self.cut
        self.ended += report.when == "teardown" and not self.cut

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Where a test has swallowed the interruption."""
        if self.cut:
            item.session.shouldstop = "the limit of the sample"

    def stop(self) -> None:
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
        os._exit(self.outcome(0))

    def outcome(self, status: int) -> int:
        """The exit status, after a line on what was done."""
        said = f"{self.ended} of {self.chosen} slow tests, {self.failed} failed"
        end = f"cut at its limit of {self.limit_s:.0f} s, which is no failure" if self.cut else "to the end"
        sys.stdout.flush()
        os.write(self.out, f"\nsample {self.seed}: {said}; {end}\n".encode())
        return int(self.failed > 0) if self.cut else status


def main(arguments: list[str]) -> int:
    """Runs the sample; 0 unless a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--limit-s", type=float, default=600.0)
    parser.add_argument("--grace-s", type=float, default=60.0, help="for a test's fixtures to end after the limit")
    parser.add_argument("paths", nargs="*", help="where to look for slow tests")
    asked = parser.parse_args(arguments)
    print(f"sample {asked.seed}: to repeat it, make sample SEED={asked.seed} LIMIT={asked.limit_s:.0f}", flush=True)
    sample = _Sample(asked.seed, asked.limit_s, asked.grace_s)
    timer = threading.Timer(asked.limit_s, sample.stop)
    timer.daemon = True
    timer.start()
    try:
        status = int(pytest.main(["-m", "slow", "-v", *asked.paths], plugins=[sample]))
    except BaseException:  # the interruption while pytest was importing, or warnings of what the cut test left open
        if not sample.cut:
            raise
        status = 0
    timer.cancel()
    return sample.outcome(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
