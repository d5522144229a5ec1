"""A touch past a guarded array ends the process."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from tests.guarded import guarded, guarded_tensor
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (1024,), (1000, 7)])
@pytest.mark.parametrize("side", ["start", "end"])
def test_the_copy_has_the_values_and_an_aligned_address(shape: tuple[int, ...], side: str) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype("float32")
    copy = guarded(array, side)  # type: ignore[arg-type]
    np.testing.assert_array_equal(copy, array)
    assert copy.ctypes.data % 64 == 0
    assert copy.flags.writeable


@pytest.mark.sampled("end-16")
@pytest.mark.parametrize(("side", "element"), [("start", -1), ("end", 16)])
def test_a_read_past_it_is_fatal(side: str, element: int) -> None:
    code = (
        "import sys; sys.modules['torch'] = None  # which TVM would load\n"
        "import ctypes, numpy as np; from tests.guarded import guarded\n"
        f"a = guarded(np.zeros(16, 'float32'), {side!r})\n"
        f"print(ctypes.c_float.from_address(a.ctypes.data + 4 * {element}).value)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == -signal.SIGSEGV


@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16"])
def test_a_tensor_of_any_dtype_is_beside_the_page(dtype: str, side: str) -> None:
    """bfloat16's were plain tensors once, and no test of bfloat16 that asked for a guard had one."""
    array = np.ones((4, 32), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    tensor = guarded_tensor(array, side)  # type: ignore[arg-type]
    start = 0 if side == "start" else -array.nbytes
    assert (tensor.data_ptr() - start) % mmap.PAGESIZE == 0
    assert str(tensor.dtype) == dtype and (tensor.numpy() == array).all()
