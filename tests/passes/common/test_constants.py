"""A constant of a module holds what an array does, whatever its strides, and gives it back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxc.service.passes.common.constants import array_of, constant

DTYPES = ["float32", "float64", "float16", "int8", "int64", "bool", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_an_array_comes_back(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 7, shape).astype(dtype)
    found = array_of(constant(array))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_is_packed(dtype: Any) -> None:
    whole = np.random.default_rng(0).integers(0, 7, (4, 6, 5)).astype(dtype)
    for view in (whole.transpose(2, 0, 1), whole[:, ::2], whole[::-1], np.broadcast_to(whole[:1], whole.shape)):
        found = array_of(constant(view))
        assert found.flags.c_contiguous
        assert found.tobytes() == view.tobytes()


def test_a_constant_is_a_copy() -> None:
    array = np.zeros((64, 64), "float32")
    held = constant(array)
    array[:] = 1
    assert not array_of(held).any()


def test_a_dtype_may_be_given() -> None:
    assert array_of(constant([1.5, 2.5], "int32")).tolist() == [1, 2]
    assert array_of(constant(np.arange(3), "bfloat16")).dtype == ml_dtypes.bfloat16
    assert array_of(constant(3)).dtype == np.int64
