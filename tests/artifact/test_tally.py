"""The count of a store's bytes is never too small, whoever counts at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service.artifact.tally import Tally


@pytest.mark.parametrize("known", [True, False])
def test_two_who_count_at_once_leave_out_nothing(tmp_path: Path, known: bool) -> None:
    """The first removes 80 of 100, and does not see the 50 that come while it looks; the second sees them."""
    tally = Tally(tmp_path / "size", tmp_path / "size.lock")
    if known:
        with tally.recount() as found:
            found.append(100)
    with tally.recount() as first:
        tally.add(50)
        with tally.recount() as second:
            second.append(70)
        first.append(20)
    assert (tally.add(0) or 0) >= 70


def test_a_file_that_is_lost_while_somebody_counts_is_counted_anew(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "size", tmp_path / "size.lock")
    assert tally.add(10) is None
    with tally.recount() as found:
        (tmp_path / "size").unlink()
        found.append(10)
    assert tally.add(5) is None
    with tally.recount() as found:
        found.append(15)
    assert tally.add(5) == 20
