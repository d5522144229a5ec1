"""Copies by several cores are those of one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relaxc.service.process import copying


@pytest.mark.parametrize("shape", [(), (0, 4), (1, 1, 7, 5), (3, 1001), (1001, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", ml_dtypes.bfloat16])
def test_a_copy_in_parts_has_every_element(shape, dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_LEAST_BYTES", 1)
    monkeypatch.setattr(copying.os, "sched_getaffinity", lambda _: range(3))
    source = np.random.default_rng(0).integers(0, 100, shape[::-1]).astype("float32").T
    target = np.full(shape, 7, dtype)
    copying.copy_into(target, source)
    np.testing.assert_array_equal(target, source.astype(dtype))
