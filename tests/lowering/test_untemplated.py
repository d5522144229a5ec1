"""What a compile says of kernels without a template, and where it warns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from relaxc.service.cli import report
from relaxc.service.lowering import peak_of, untemplated
from relaxc.service.lowering.target import resolve

SPEC = resolve("cuda-sm90")


def row(function, rule, flops, size, dtype="float16"):
    return {"function": function, "rule": rule, "flops": flops, "bytes": size, "dtype": dtype}


@pytest.mark.parametrize(("size", "warned"), [(1 << 30, True), (1 << 24, False)])
def test_the_share_of_the_time_without_a_template(size, warned):
    rows = [
        row("conv", "cuda.conv2d_sm90", 10**9, 1 << 28),
        row("mean", "cuda.reduction", 10**6, size),
        row("odd", "cuda.loops", "n * 4", "n * 8"),
    ]
    found = untemplated(rows, SPEC, peak_of(SPEC))
    assert [kernel[:2] for kernel in found["kernels"]] == [["mean", "cuda.reduction"], ["odd", "cuda.loops"]]
    assert (found["share"] > 0.5) == warned
    (line,) = report.untemplated(SimpleNamespace(passes={"untemplated": found}))
    assert line.startswith("WARNING") == warned and "mean (cuda.reduction)" in line
    assert untemplated(rows[:1], SPEC, peak_of(SPEC)) == {"share": 0.0, "kernels": []}
    assert report.untemplated(SimpleNamespace(passes={})) == []
