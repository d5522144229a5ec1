"""Models that ONNX Runtime quantized, beside ours in fp16: `python -m benchmarks.gpu.quantized bert_unmasked:32 …`.

On a GPU machine, with all of TVM, torch, onnx and onnxruntime. Each model is quantized (QDQ, uint8 activations, int8
weights by channel; calibrated on its own inputs), compiled in int8 with the rest in fp16, and in fp16. Both are
verified there, and then timed in turns. The models are compiled at the same time, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_ROUNDS, _WARM = 60, 5


def main() -> int:
    """Compile and verify what is asked for, then time it; a JSON line for each model."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.quantized", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL:BATCH", help="of benchmarks.gpu.models")
    parser.add_argument("--profile", action="store_true", help="also the time of each kernel of the quantized model")
    args = parser.parse_args()
    named = [(name, int(batch)) for name, batch in (each.split(":") for each in args.models)]
    with TemporaryDirectory() as scratch:
        here = [sys.executable, "-m", "benchmarks.gpu.quantized_child", scratch]
        made = [subprocess.Popen([*here, name, str(batch)]) for name, batch in named]
        status = int(any(code != 0 for code in [process.wait() for process in made]))
        for name, batch in named:
            report = Path(scratch, f"{name}_{batch}.json")
            if report.exists():
                print(json.dumps(_timed(Path(scratch), name, batch, args.profile) | json.loads(report.read_text())))
    return status


def _timed(folder: Path, name: str, batch: int, is_profiled: bool) -> dict[str, Any]:
    import torch

    from benchmarks.gpu.models import model_of
    from service.runtime import load

    _, inputs = model_of(name, batch)
    stream = torch.cuda.current_stream().cuda_stream
    calls = {}
    for kind in ("int8", "fp16"):
        session = load(folder / f"{name}_{batch}_{kind}.so")
        of = zip(session.signature.inputs, inputs, strict=True)
        calls[kind] = session, {spec.name: x.to(getattr(torch, spec.dtype)).cuda() for spec, x in of}

    def call(kind: str) -> float:
        session, given = calls[kind]
        torch.cuda.synchronize()
        start = time.perf_counter()
        session.on_device(given, stream=stream)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    times = [{kind: call(kind) for kind in calls} for _ in range(_WARM + _ROUNDS)][_WARM:]
    ms = {kind: round(statistics.median(each[kind] for each in times) * 1e3, 4) for kind in calls}
    found = {"model": name, "batch": batch, "ms": ms, "ratio": round(ms["int8"] / ms["fp16"], 3)}
    return found | ({"kernels": _kernels(*calls["int8"], stream)} if is_profiled else {})


def _kernels(session: Any, given: dict[str, Any], stream: int) -> dict[str, float]:
    """Microseconds of each kernel in a call, as torch's profiler sees them."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_WARM):
            session.on_device(given, stream=stream)
        torch.cuda.synchronize()
    total: dict[str, float] = {}
    for event in profile.events():
        total[event.name] = total.get(event.name, 0.0) + event.device_time / _WARM
    return {name: round(us, 2) for name, us in sorted(total.items(), key=lambda one: -one[1])}


if __name__ == "__main__":
    sys.exit(main())
