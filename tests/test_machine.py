"""What a machine says of its GPU: a driver that gives none says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ASK = "from service import machine; print(machine.gpu(), machine._missing_on_gpu(['sm_90a'], machine._device()))"


def test_a_driver_that_does_not_start_is_told_from_none(tmp_path: Path) -> None:
    """Real processes and a real library: its `cuInit` gives 100, which is CUDA_ERROR_NO_DEVICE."""
    source, driver = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text("int cuInit(unsigned flags) { return 100; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", driver, source], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    wanted = "a CUDA device of compute capability 9.0 (the driver is here, and gives error 100 for one)"
    assert said.stdout == f"None ['{wanted}']\n"
