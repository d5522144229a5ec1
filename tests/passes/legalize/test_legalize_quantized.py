"""Quantization without a division gives what division gives, on every boundary."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.legalize.legalize import Legalize
from tests.passes.graphs import compute, graph


@pytest.mark.parametrize("scale", [0.1, 1 / 3, 0.0123, 2.0, 1e-7, 3e5, 1e-31, 1e31])
@pytest.mark.parametrize(("zero", "dtype"), [(0, "uint8"), (255, "uint8"), (-128, "int8"), (3, "int8")])
def test_halves_and_their_neighbours(scale: float, zero: int, dtype: str) -> None:
    steps, by = np.arange(-600, 600), np.float32(scale)
    ends = [np.inf, -np.inf, np.nan, 3e38, -3e38, 0.0, -0.0, 1e-45]
    x = np.concatenate([(steps + 0.5) * float(by), steps * float(by), ends]).astype("float32")
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])
    module = graph(
        lambda data: relax.op.quantize(data, constant(by), constant(np.asarray(zero, dtype)), 0, dtype), x=x.shape
    )
    limits = np.iinfo(dtype)
    with np.errstate(over="ignore"):
        want = np.clip(np.rint(x / by) + np.float32(zero), limits.min, limits.max)
    want = np.where(np.isnan(x), limits.min, want).astype(dtype)
    np.testing.assert_array_equal(compute(Legalize([], by_fma=True)(module), x)[0], want)


def test_there_is_no_division() -> None:
    module = graph(
        lambda data: relax.op.quantize(data, constant(np.float32(0.1)), constant(np.uint8(7)), 0, "uint8"), x=(8,)
    )
    assert " / " in Legalize([])(module).script()
    assert " / " not in Legalize([], by_fma=True)(module).script()


@pytest.mark.parametrize("zero", [0, 7])
def test_dequantization(zero: int) -> None:
    module = graph(
        lambda data: relax.op.dequantize(data, constant(np.float32(0.1)), constant(np.uint8(zero)), 0, "float32"),
        x=("uint8", (256,)),
    )
    x = np.arange(256).astype("uint8")
    want = (x.astype("int32") - zero).astype("float32") * np.float32(0.1)
    np.testing.assert_array_equal(compute(Legalize([], by_fma=True)(module), x)[0], want)
