"""AMX's tile instructions as functions, for CPUs without them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relaxc.service import machine


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The instructions as functions that kernels find: wrong registers and configurations abort."""
    if "avx512bw" not in machine.cpu().features:
        pytest.skip("this CPU has no avx512bw")
    made = tmp_path_factory.mktemp("tiles") / "tiles.so"
    source = Path(__file__).with_name("emulated_tiles.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", made, source], check=True)
    return ctypes.CDLL(str(made), mode=ctypes.RTLD_GLOBAL)
