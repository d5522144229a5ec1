"""What this CPU can do at most: fused multiply-adds in float32 and bytes read from memory a second, measured once."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from service import machine
from service.config import settings
from service.runtime.probes import CHAINS, DEPTH, fma, read
from service.runtime.threads import default_threads, use_threads

__all__ = ["Peak", "measure", "peak"]

_READ_BYTES = 256 << 20
_BUDGET_S = 0.15


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that `threads` threads of `machine` reached: float32 GFLOP/s, and GB/s (10^9 bytes) read."""

    machine: str
    threads: int
    gflops: float
    gbps: float


def peak(threads: int | None = None) -> Peak:
    """The peak of this machine, from the cache folder if it was measured before; measuring takes about a second."""
    threads = default_threads() if threads is None else threads
    path = _path(threads)
    try:
        found = Peak(**json.loads(path.read_text()))
        if found.machine == _name() and found.threads == threads and found.gflops > 0 and found.gbps > 0:
            return found
    except (OSError, ValueError, TypeError):
        pass  # not measured yet, or a file that another version wrote
    found = measure(threads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(found)))
    except OSError:
        pass  # a folder that cannot be written costs a second next time, and nothing else
    return found


def _name() -> str:
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            model = line.partition(":")[2].strip()
            break
    return f"{platform.node()}: {model or machine.cpu().arch}, {machine.cpu().cores} cores"


def _path(threads: int) -> Path:
    return settings().cache_dir / "peak" / f"{platform.node() or 'machine'}-{threads}.json"


def measure(threads: int) -> Peak:
    """Run both probes with `threads` threads: the best of as many runs as fit into 0.15 s each, after a warm-up."""
    use_threads(threads)
    lanes, target = _vectors()
    steps = _READ_BYTES // 4 // threads // (CHAINS * lanes)
    repeats = 4000
    functions = {"fma_kernel": fma(threads, lanes, repeats), "read_kernel": read(threads, lanes, steps)}
    library = tvm.compile(tvm.IRModule(functions), target=target)
    width = threads * CHAINS * lanes
    scale = tvm.runtime.tensor(np.full(lanes, 0.5, np.float32))
    out = tvm.runtime.tensor(np.zeros(width, np.float32))
    data = tvm.runtime.tensor(np.zeros(width * steps, np.float32))
    fma_s = _best(lambda: library["fma_kernel"](scale, out))
    read_s = _best(lambda: library["read_kernel"](data, out))
    flops = 2 * width * DEPTH * repeats
    return Peak(_name(), threads, round(flops / fma_s / 1e9, 1), round(width * steps * 4 / read_s / 1e9, 1))


def _best(run: Callable[[], Any]) -> float:
    run()
    best, end = float("inf"), time.perf_counter() + _BUDGET_S
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _vectors() -> tuple[int, Any]:
    """The float32 lanes of this CPU's vectors, and a target that uses them."""
    features = machine.host_features()
    wanted = [name for name in ("avx512f", "avx2", "fma") if name in features]
    lanes = 16 if "avx512f" in features else 8 if "avx2" in features else 4
    return lanes, tvm.target.Target({"kind": "llvm", "mattr": [f"+{name}" for name in wanted]})
