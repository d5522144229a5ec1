"""What the tests of CUDA templates share."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.lowering import tools
from relaxc.service.lowering.apply import finish
from relaxc.service.lowering.build import build_kernel
from relaxc.service.lowering.target import resolve
from relaxc.service.request import TargetSpec

SPEC = resolve("cuda-sm90")


@pytest.fixture
def disassembled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Give the SASS that nvcc makes of a PrimFunc, for Hopper or another target.

    A test without nvcc is skipped, and where there is no disassembler when nvcc has taken the kernel.
    """
    disassembler = shutil.which("nvdisasm") or shutil.which("cuobjdump")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    cubins, compiled = [], tools.nvcc
    building = sys.modules[build_kernel.__module__]
    monkeypatch.setattr(building, "nvcc", lambda *arguments, **_: cubins.append(compiled(*arguments)) or cubins[-1])

    def run(func: Any, spec: TargetSpec = SPEC) -> str:
        build_kernel(finish(func, spec, 2), spec, tmp_path / "kernel.so")
        assert (tmp_path / "kernel.so").stat().st_size < 120_000, "there is no source in it"
        if disassembler is None:
            pytest.skip("neither nvdisasm nor cuobjdump is installed")
        (tmp_path / "kernel.cubin").write_bytes(cubins[-1])
        option = "-c" if disassembler.endswith("nvdisasm") else "-sass"
        command = [disassembler, option, tmp_path / "kernel.cubin"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run
