"""Some of the slow tests, for so many seconds: `python -m tests.sample --seed WORD --limit-s 600`.

The seed decides the order; the same seed repeats it. What the limit cuts off is no failure, a test that fails is one.
Tests that by themselves may take longer than others (those with a time limit of their own) are left to
`make conformance`.
"""

from __future__ import annotations

import argparse
import sys
from itertools import zip_longest

import pytest

from tests.limited import Limited, add_limits
from tests.sampling import in_order

__all__ = ["main"]


class _Sample(Limited):
    """Orders the tests before it does what is common to all."""

    def __init__(self, seed: str, limit_s: float, grace_s: float) -> None:
        super().__init__(limit_s, grace_s)
        self.name, self.seed = f"sample {seed}", seed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After `-m` has chosen."""
        ours = in_order([item for item in items if item.get_closest_marker("timeout") is None], self.seed)
        # By turns, or the thousands of cases of products would leave no time for the others.
        of_products = [item for item in ours if item.get_closest_marker("sampled")]
        others = [item for item in ours if not item.get_closest_marker("sampled")]
        items[:] = [item for pair in zip_longest(others, of_products) for item in pair if item is not None]
        super().pytest_collection_modifyitems(items)


def main(arguments: list[str]) -> int:
    """Runs the sample; 0 unless a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", required=True)
    add_limits(parser)
    asked = parser.parse_args(arguments)
    print(f"sample {asked.seed}: to repeat it, make sample SEED={asked.seed} LIMIT={asked.limit_s:.0f}", flush=True)
    return _Sample(asked.seed, asked.limit_s, asked.grace_s).run(asked.paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
