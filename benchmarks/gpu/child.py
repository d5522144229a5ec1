"""One process on the device: it measures what it is told to on stdin, and says on stdout what it finds.

Needs torch, `tvm_ffi` and TVM's runtime libraries alone. Before it takes times it asks for its turn, and waits for it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.manifest import Entry, read_manifest

__all__ = ["load_libraries"]


_BREAKS = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError, ImportError, OSError)
"""What libraries raise; after anything else the parent sees that the child died."""


def main() -> int:
    """Measure each entry of stdin, or with `check ID…` only run those: what a sanitizer watches."""
    folder = Path(sys.argv[1])
    load_libraries(folder)
    if sys.argv[2:3] == ["check"]:
        return _check(folder, set(sys.argv[3:]))
    say(ready=True, device=_device())
    for line in sys.stdin:
        entry = Entry(**json.loads(line))
        row: dict[str, Any] = {"id": entry.id, "status": "done"}
        try:
            row |= _measured(folder, entry)
        except _BREAKS as error:  # that is the result of this entry, and the next one goes on
            row |= {"status": "failed", "failed": f"{type(error).__name__}: {error}"[-500:]}
        say(**row)
        if row["status"] == "failed" and "CUDA" in row["failed"]:
            os._exit(3)  # a broken context stays broken
    return 0


def say(**row: Any) -> None:
    """Write a row for the parent, between whatever libraries print."""
    print("@" + json.dumps(row), flush=True)


def turn(entry: Entry, **found: Any) -> None:
    """Say what is found so far, and return when nobody else uses the machine."""
    say(id=entry.id, turn=True, found=found)
    sys.stdin.readline()


def over(entry: Entry) -> None:
    """Let others go on."""
    say(id=entry.id, turn=False)


def _measured(folder: Path, entry: Entry) -> dict[str, Any]:
    if entry.suite == "model":
        from benchmarks.gpu.child_model import measure_model

        return measure_model(folder, entry)
    if entry.suite == "drawn":
        from benchmarks.gpu.child_drawn import measure_drawn

        return measure_drawn(folder, entry)
    if entry.suite == "threads":
        from benchmarks.gpu.child_threads import measure_threads

        return measure_threads(folder, entry)
    from benchmarks.gpu.child_kernel import measure_kernel

    return measure_kernel(folder, entry)


def _check(folder: Path, names: set[str]) -> int:
    from benchmarks.gpu.child_kernel import check_kernel

    for entry in read_manifest(folder)[1]:
        if entry.id in names:
            say(id=entry.id, **check_kernel(folder, entry, repeats=1)[0])
    return 0


def load_libraries(folder: Path) -> None:
    """Load TVM's runtime from the bundle's `runtime`, else from an installed TVM."""
    import torch

    torch.zeros(1, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    carried = folder / "runtime"
    if not (carried / "libtvm_runtime.so").exists():
        from relaxc.service.runtime.cuda import load_runtime

        load_runtime()
        return
    import tvm_ffi  # noqa: F401, it loads libtvm_ffi.so, which the others need

    _cuda_runtime()
    for name in ("libtvm_runtime.so", "libtvm_runtime_cuda.so"):
        ctypes.CDLL(str(carried / name), ctypes.RTLD_GLOBAL)


def _device() -> str:
    import torch

    driver = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+[.\d]*", driver.read_text()) if driver.exists() else None
    version = found.group() if found else "unknown"
    return f"{torch.cuda.get_device_name()}, driver {version}, CUDA {torch.version.cuda}, torch {torch.__version__}"


def _cuda_runtime() -> None:
    """libcudart.so.13, of the system or of the wheel beside torch."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(each) for each in (spec.submodule_search_locations or [])] if spec else []
    places = [*(path for wheel in wheels for path in wheel.glob("*/lib/libcudart.so.13"))]
    places += sorted(Path("/usr/local").glob("cuda*/lib64/libcudart.so.13"))
    for name in ("libcudart.so.13", *map(str, places)):
        try:
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


if __name__ == "__main__":
    sys.exit(main())
