"""The arithmetic of plans for blocked convolutions."""

from __future__ import annotations

from schedules.cpu.conv.blocked_plan import row_tile


def test_a_row_tile_wastes_little() -> None:
    assert [row_tile(extent, 14) for extent in (1, 7, 14, 19, 28, 49, 56, 197)] == [1, 7, 14, 10, 14, 10, 14, 11]
