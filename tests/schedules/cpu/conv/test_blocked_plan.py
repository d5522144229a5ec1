"""The arithmetic of plans for blocked convolutions, and the register tile that they have untuned."""

from __future__ import annotations

import pytest

from relaxc.schedules.cpu.conv.blocked_plan import default, points, refusal, row_tile
from relaxc.schedules.hardware import CPUS
from relaxc.schedules.operators import Conv2d


def conv(channels: int, filters: int, size: int, kernel: int = 1) -> Conv2d:
    same = (kernel // 2,) * 4
    return Conv2d(
        batch=1, channels=channels, height=size, width=size, kernel=(kernel, kernel), padding=same, filters=filters
    )


def test_a_row_tile_wastes_little() -> None:
    assert [row_tile(extent, 14) for extent in (1, 7, 14, 19, 28, 49, 56, 197)] == [1, 7, 14, 10, 14, 10, 14, 11]


@pytest.mark.parametrize(
    ("operator", "tile"),
    [
        (conv(64, 256, 56), (14, 2)),
        (conv(64, 64, 56, 3), (14, 2)),
        (conv(32, 144, 56), (8, 3)),  # nine blocks: a vector at a time waits for its broadcasts
        (conv(144, 48, 28), (8, 3)),
        (conv(240, 80, 14), (14, 1)),  # five blocks, which no tile divides
        (conv(672, 192, 7), (7, 3)),  # of 49 columns none is made up
        (conv(480, 32, 1), (1, 2)),
        (conv(48, 1152, 1), (1, 4)),
    ],
    ids=lambda case: case.shapes if isinstance(case, Conv2d) else "x".join(map(str, case)),
)
def test_the_tile_wastes_neither_columns_nor_issue_slots(operator: Conv2d, tile: tuple[int, int]) -> None:
    cpu = CPUS["x86-64-v4"]
    chosen = default(operator, cpu)
    assert (chosen["rows"], chosen["vectors"]) == tile
    assert not refusal(operator, chosen, cpu)


def test_a_tile_of_16_registers_fits_them() -> None:
    for operator in (conv(32, 144, 56), conv(64, 64, 56, 3), conv(672, 192, 7), conv(48, 24, 13)):
        for name in ("x86-64-v3", "x86-64", "aarch64"):
            assert not refusal(operator, default(operator, CPUS[name]), CPUS[name])


def test_dense_tiles_of_a_small_image_are_a_loop_which_records_need_not_say() -> None:
    cpu = CPUS["x86-64-v4"]
    dense, windows, large = conv(960, 160, 7), conv(64, 64, 7, 3), conv(64, 256, 56)
    chosen = default(dense, cpu)
    assert chosen["looped"] == 1
    unrolled = {name: value for name, value in chosen.items() if name != "looped"}
    assert not refusal(dense, unrolled, cpu)
    assert refusal(dense, {**chosen, "looped": 0}, cpu)
    for operator in (windows, large):
        assert "looped" not in default(operator, cpu)
        assert refusal(operator, {**default(operator, cpu), "looped": 1}, cpu)
    assert all(point.get("looped", 0) == point["flat"] for point in points(dense, cpu))
