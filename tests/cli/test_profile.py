"""How a profile is shown: one line a kernel at any width, and no number that cannot be."""

from __future__ import annotations

import pytest

from relaxc.service.cli import profile
from relaxc.service.cli.output import bar, print_lines
from relaxc.service.runtime.profile import FunctionRow, ProfileReport


def _row(name: str, of_limit: float, lost_ms: float) -> FunctionRow:
    parameters = {"tile": 64, "unroll": 8}
    numbers = (4, 2.5, 0.5, 10**9, 10**6, 400.0, 12.5, 2.0, of_limit, lost_ms)
    return FunctionRow(name, *numbers, "compute", "cpu.conv2d_blocked", "record", parameters)


LONG = "fused_" + "conv2d_add_" * 12
ROWS = (_row(f"{LONG}1", 0.5, 1.25), _row(f"{LONG}2", 1.25, -0.5))
REPORT = ProfileReport(3, 5.0, 0.0, ROWS, None, 0.0, ())


@pytest.mark.parametrize("columns", [40, 80, 100, 160, 400])
def test_a_kernel_is_one_line_at_any_width(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaxc.service.cli.output._PLAIN_WIDTH", columns)
    profile._show(REPORT)
    header, first, second, *_ = lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:3])) <= columns
    assert first.startswith("fused_conv") and "1  2.500" in first and "2  2.500" in second
    assert ("of limit" in header) == (columns >= 80)
    assert ("tile=64 unroll=8" in first) == (columns == 400)


def test_no_kernel_is_beyond_its_limit_and_the_line_below_says_how_many_were(
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile._show(REPORT)
    out = capsys.readouterr().out
    assert "125%" not in out and "-0.5" not in out
    assert " 100%  " in out and "1 ran faster than the measured peaks" in out


def test_a_bar_is_of_its_share() -> None:
    assert [bar(share, 4) for share in (-1.0, 0.0, 0.5, 0.53, 1.0, 7.0)] == ["", "", "██", "██▏", "████", "████"]


def test_no_rows_are_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([], texts=())
    assert capsys.readouterr().out == ""
