"""A model on the device: its weights made, its numbers against fp32, its times in turns with torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.child import over, turn
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.models import fingerprint, model_of, other_inputs
from benchmarks.gpu.timing import kernels_of, milliseconds_in_turns
from benchmarks.gpu.weights import follow
from relaxc.service.runtime.compare import compare
from relaxc.service.runtime.moved import RUNS, moved_outputs, rounds_by
from relaxc.service.runtime.verification import Verification

__all__ = ["load_model", "measure_model", "results_of"]

_CHECKS = 3
_SAME = 1e-3
"""What sums of a tensor's elements may differ by: two processors draw normal numbers in slightly other ways."""


def measure_model(folder: Path, entry: Entry) -> dict[str, Any]:
    """Return errors relative to fp32, milliseconds and kernels. Raises ValueError where the weights are others."""
    import torch

    case = entry.case
    library, stored, described = (folder / name for name in entry.files)
    said = json.loads(described.read_text())
    module, inputs = model_of(case["model"], case["batch"])
    _require_same(said, fingerprint(module))
    module = module.cuda()
    weights = follow(said["weights"], np.load(stored), module)
    inputs = tuple(each.cuda() for each in inputs)
    ours, first = load_model(library, weights, inputs)
    with torch.no_grad():
        found: dict[str, Any] = {"first_result_s": first, **_errors(case, module, ours)}
        first_mode = case["mode"] == "reduce-overhead"
        if first_mode:
            turn(entry, **found)
            found["alone"] = milliseconds_in_turns({"ours": lambda: ours(*inputs)})["ms"]["ours"]
            found["kernels"] = kernels_of(lambda: ours(*inputs))
            over(entry)
        start = time.perf_counter()
        if case["model"] in ("resnet50", "mobilenet_v2", "unet_block"):
            module = module.to(memory_format=torch.channels_last)
        peak = _peak_bytes()
        compiled = torch.compile(module, mode=case["mode"])
        for _ in range(4):
            compiled(*inputs)
        torch.cuda.synchronize()
        found["bytes"] = {"ours": said["memory"]["planned_bytes"], "torch": peak()}
        found["torch_compile_s"] = round(time.perf_counter() - start, 1)
        calls: dict[str, Callable[[], Any]] = {"ours": lambda: ours(*inputs)}
        calls[case["mode"]] = lambda: compiled(*inputs)
        calls |= {"eager": lambda: module(*inputs)} if first_mode else {}
        turn(entry, **found)
        found |= milliseconds_in_turns(calls)
        found["theirs"] = kernels_of(calls[case["mode"]])
        over(entry)
    return {**found, "ratio": round(found["ms"]["ours"] / found["ms"][case["mode"]], 3)}


def _require_same(said: dict[str, Any], got: dict[str, float]) -> None:
    """Raise ValueError where a tensor that a recipe reads is not what it was where the model was compiled."""
    read = {part[0].removesuffix("*norm") for recipe in said["weights"] for part in recipe["parts"]}
    wanted = {name: value for name, value in said["fingerprint"].items() if name in read}
    other = [name for name in wanted if abs(wanted[name] - got.get(name, 0.0)) > _SAME * max(1.0, abs(wanted[name]))]
    if other:
        raise ValueError(f"this machine draws other weights: {other[:3]}")


def load_model(library: Path, weights: list[Any], inputs: tuple[Any, ...]) -> tuple[Callable[..., Any], float]:
    """Return the compiled model as a function of torch tensors, and the seconds from loading to its first result."""
    import torch
    import tvm_ffi

    given = tvm_ffi.convert([tvm_ffi.from_dlpack(each) for each in weights])
    torch.cuda.synchronize()
    start = time.perf_counter()
    machine = tvm_ffi.load_module(str(library))["vm_load_executable"]()
    machine["vm_initialization"](2, 0, 2, 1, 0, 2)  # the GPU, then the CPU, each with a pooled allocator
    main = machine["main"]

    def call(*tensors: Any) -> Any:
        return main(*tensors, given)

    call(*inputs)
    torch.cuda.synchronize()
    return call, round(time.perf_counter() - start, 3)


def results_of(value: Any) -> list[Any]:
    """Return the results as torch tensors of their own."""
    import torch

    several = [value] if hasattr(value, "shape") else list(value)
    found = [torch.from_dlpack(each).clone() for each in several]
    torch.cuda.synchronize()
    return found


def _errors(case: dict[str, Any], module: Any, ours: Callable[..., Any]) -> dict[str, Any]:
    """The worst error of several inputs, relative to fp32 in norm and of one element, of ours and of eager fp16.

    What is right is what verification passes: `relaxc.service.runtime.compare`, by float16's tolerance, and, where that
    is not enough, by what fp32 itself moves by when its weights are rounded. `moved` says whether it was needed.
    """
    import torch

    given = [tuple(each.cuda() for each in other_inputs(case["model"], case["batch"], seed)) for seed in range(_CHECKS)]
    got = [results_of(ours(*each)) for each in given]
    again = [results_of(ours(*each)) for each in given]
    equal = all(torch.equal(a, b) for x, y in zip(got, again, strict=True) for a, b in zip(x, y, strict=True))
    mine, eager, judged, judged_eager = [], [], [], []
    for inputs, found in zip(given, got, strict=True):
        seen = inputs[1].bool() if case["model"] == "bert" else ...  # what padding gives is not asked for
        wide = tuple(x.float() if x.is_floating_point() else x for x in inputs)

        def run(inputs: tuple[Any, ...], seen: Any = seen) -> list[Any]:
            return [each[seen].float() for each in _tensors(module(*inputs))]

        low = run(inputs)
        module.float()
        want = run(wide)
        found = [each[seen].float() for each in found]
        judged.append(_judged(found, want, partial(_moved_runs, module, partial(run, wide))))
        judged_eager.append(_judged(low, want))
        module.half()
        mine.append(_relative(found, want))
        eager.append(_relative(low, want))
    refused = [each.reason for each in judged if not each.passed]
    return {
        "error": max(mine), "eager_error": max(eager), "worst": _worst(judged), "eager_worst": _worst(judged_eager),
        "moved": any(row.moved for each in judged for row in each.outputs), "equal_bits": equal,
        "right": equal and not refused, "wrong": refused[:1],
    }  # fmt: skip


def _judged(got: list[Any], want: list[Any], moved: Callable[[], list[list[Any]]] | None = None) -> Verification:
    """What a verification says of these results of a float16 program, of which `moved` gives those of moved weights."""
    named, wanted = _named(got), _named(want)
    judges = dict.fromkeys(named, "float16")
    found = compare(named, wanted, judges)
    if found.passed or moved is None:
        return found
    return compare(named, wanted, judges, moved=moved_outputs([_named(each) for each in moved()], wanted))


def _named(results: list[Any]) -> dict[str, Any]:
    return {str(i): each.cpu().numpy() for i, each in enumerate(results)}


def _moved_runs(module: Any, run: Callable[[], list[Any]]) -> list[list[Any]]:
    """What `run` gives with each weight of the fp32 `module` moved by as much as rounding to fp16 may."""
    import torch

    stored = {name: value.clone() for name, value in module.state_dict().items() if value.is_floating_point()}
    by, runs = rounds_by(["float16"]), []
    for seed in range(RUNS):
        torch.manual_seed(seed)
        for name, value in module.state_dict().items():
            if name in stored:
                value.copy_(stored[name] * (1 + by * (2 * torch.rand_like(value) - 1)))
        runs.append(run())
    module.load_state_dict(stored, strict=False)
    return runs


def _worst(judged: list[Verification]) -> float:
    return max(row.scaled_error or 0.0 for each in judged for row in each.outputs)


def _peak_bytes() -> Callable[[], int]:
    """What says how much torch had allocated at once since now, beside what it has now.

    What cuBLAS works in is not counted as held: torch frees it for a CUDA graph, and allocates it anew.
    """
    import torch

    torch._C._cuda_clearCublasWorkspaces()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return lambda: int(torch.cuda.max_memory_allocated() - held)


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _relative(got: list[Any], want: list[Any]) -> float:
    pairs = zip(got, want, strict=True)
    return max(float((g - w).norm() / w.norm().clamp_min(1e-20)) for g, w in pairs)
