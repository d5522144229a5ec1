"""Compile one model for a GPU that this machine need not have: a library without weights, and how to make those."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu.models import fingerprint, model_of
from benchmarks.gpu.weights import explain

if TYPE_CHECKING:
    from relaxc.service.compiling.stages import Front
    from relaxc.service.passes import MemoryReport
    from relaxc.service.request import CompileOptions

__all__ = ["build_model", "compile_to"]


def build_model(
    name: str, batch: int, folder: Path, stem: str, layers: int | None = None, target: str = "cuda-sm90"
) -> dict[str, Any]:
    """Write `stem`.so, .npz and .json into the folder; return what the manifest says of it."""
    import torch

    module, inputs = model_of(name, batch, layers)
    with TemporaryDirectory() as scratch:
        exported = Path(scratch) / "model.pt2"
        with torch.no_grad():
            torch.export.save(torch.export.export(module, inputs, strict=False), exported)
        start = time.perf_counter()
        front, memory = compile_to(exported, folder / f"{stem}.so", target=target)
    seconds = time.perf_counter() - start
    recipes, carried = explain(front.optimized.weights, module)
    np.savez_compressed(folder / f"{stem}.npz", **carried)
    rules = [[row["function"], row["rule"], row["parameters"]] for row in front.scheduled.report]
    made = {"weights": [each.to_dict() for each in recipes], "fingerprint": fingerprint(module), "rules": rules}
    made["memory"] = memory.to_dict()
    (folder / f"{stem}.json").write_text(json.dumps(made))
    return {"compile_s": round(seconds, 1), "dlight": _dlight(front.scheduled.report)}


def compile_to(
    path: Path, library: Path, options: CompileOptions | None = None, target: str = "cuda-sm90"
) -> tuple[Front, MemoryReport]:
    """Write the model at `path` as a library without weights; return what the stages made of it."""
    from relaxc.service import lowering, passes
    from relaxc.service.compiler import load_and_schedule, prepare
    from relaxc.service.compiling.stages import Stages
    from relaxc.service.dump import no_dump
    from relaxc.service.lowering.target import to_tvm

    request = prepare(path, target=target, options=options)
    front = load_and_schedule(request, Stages(lambda event: None), no_dump)
    lowered, memory = passes.finalize(
        front.scheduled.module, to_tvm(request.target), bounds=front.imported.signature.bounds
    )
    lowering.build(lowered, request.target, library)
    return front, memory


def _dlight(report: list[dict[str, Any]]) -> list[list[Any]]:
    """The kernels that no template of ours took: rule, function, shapes, and why ours declined."""
    from relaxc.schedules.cuda import RULES
    from relaxc.schedules.cuda.dlight import Dlight

    theirs = {rule.name for rule in RULES if isinstance(rule, Dlight)}
    return [
        [row["rule"], row["function"], row["shapes"], [pair for pair in row["declined"] if pair[0] not in theirs][-1:]]
        for row in report
        if row["rule"] in theirs
    ]
