"""Models that ONNX Runtime quantized, beside ours in fp16: `python -m benchmarks.gpu.quantized bert_unmasked:32 …`.

On a GPU machine, with all of TVM, torch, onnx and onnxruntime. Each model is quantized (QDQ, uint8 activations, int8
weights by channel; calibrated on its own inputs), compiled in int8 with the rest in fp16, and in fp16. Both are
verified there, and then timed in turns. The models are compiled at the same time, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.timing import kernels_of, milliseconds_in_turns


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
    from benchmarks.gpu.models import model_of

    _, inputs = model_of(name, batch)
    calls = {kind: _call_of(folder / f"{name}_{batch}_{kind}.so", inputs) for kind in ("int8", "fp16")}
    found = milliseconds_in_turns(calls)
    ratio = round(found["ms"]["int8"] / found["ms"]["fp16"], 3)
    kernels = {"kernels": kernels_of(calls["int8"])} if is_profiled else {}
    return {"model": name, "batch": batch, **found, "ratio": ratio, **kernels}


def _call_of(library: Path, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    import torch

    from relaxc.service.runtime import load

    session = load(library)
    of = zip(session.signature.inputs, inputs, strict=True)
    given = {spec.name: x.to(getattr(torch, spec.dtype)).cuda() for spec, x in of}
    return partial(session.on_device, given, stream=torch.cuda.current_stream().cuda_stream)


if __name__ == "__main__":
    sys.exit(main())
