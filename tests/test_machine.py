"""What a machine says of its GPU and of AMX: a driver that gives none says why, and a kernel is asked first."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relaxc.service import machine
from relaxc.service.lowering.target import resolve

PERMITTED = """
import ctypes
from relaxc.service import machine
held = ctypes.c_uint64()
found = "amx-tile" in machine.cpu().features
failed = ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(held))  # arch_prctl(ARCH_GET_XCOMP_PERM)
print(found, not failed and bool(held.value >> 18 & 1))
"""
ASK = "from relaxc.service import machine; print(machine.gpu(), machine._missing_on_gpu(['sm_90a'], machine._device()))"


def test_a_driver_that_does_not_start_is_told_from_none(tmp_path: Path) -> None:
    """Real processes and a real library: its `cuInit` gives 100, which is CUDA_ERROR_NO_DEVICE."""
    source, driver = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text("int cuInit(unsigned flags) { return 100; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", driver, source], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    wanted = "a CUDA device of compute capability 9.0 (the driver is here, and gives error 100 for one)"
    assert said.stdout == f"None ['{wanted}']\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86-64")
def test_a_process_that_knows_of_amx_may_use_it() -> None:
    """A tile instruction ends a process that has not asked: whoever finds the feature has asked for it."""
    said = subprocess.run([sys.executable, "-c", PERMITTED], capture_output=True, text=True, check=True)
    has_amx = " amx_tile " in Path("/proc/cpuinfo").read_text()
    assert said.stdout in (["True True\n", "False False\n"] if has_amx else ["False False\n"])


@pytest.fixture
def unread() -> Iterator[None]:
    """The CPU is read anew in the test, and behind it, however that ends."""
    machine.cpu.cache_clear()
    yield
    machine.cpu.cache_clear()


@pytest.mark.usefixtures("unread")
def test_amx_that_the_kernel_refuses_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replace(machine.cpu(), arch="x86_64", features=frozenset(resolve("sapphirerapids").features))
    monkeypatch.setattr(machine, "read", lambda *_: whole)
    for granted, missing in ((True, []), (False, ["amx-bf16", "amx-int8", "amx-tile"])):
        monkeypatch.setattr(machine, "_kernel_grants_amx", lambda arch, granted=granted: granted)
        machine.cpu.cache_clear()
        found = machine.missing_features(resolve("sapphirerapids"))
        assert found == [f"CPU feature {name}" for name in missing]
