"""A kernel on the device: checked against the reference, then timed in turns with its peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import over, turn
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.timing import copies_for, in_turns

__all__ = ["check_kernel", "compared", "measure_kernel", "poison"]

_REPEATS = 8
_WORST = 8
"""A single element may be off by so many times what the norm of all may, relative to the largest."""
_LARGEST = 1e30
"""Beyond it are infinities, and the lowest number of a maximum over nothing: a norm with them shows nothing else."""


def measure_kernel(folder: Path, entry: Entry) -> dict[str, Any]:
    """Return its error, whether repetition gave equal bits, and where it is to be timed and right, its times."""
    found, kernel = check_kernel(folder, entry, _REPEATS)
    if not (entry.case["timed"] and found["right"]):
        return found
    calls = _calls(entry, kernel)
    turn(entry, **found)
    microseconds = in_turns(calls)
    over(entry)
    flops, size = _device(entry).work(entry.case)
    ours = microseconds["ours"]
    peers = {name: us for name, us in microseconds.items() if name != "ours"}
    ratio = round(min(peers.values()) / ours, 3) if peers else None
    rates = {"tflops": round(flops / ours / 1e6, 1), "gb_per_s": round(size / ours / 1e3, 1)}
    return {**found, "us": microseconds, "ratio": ratio, **rates}


def check_kernel(folder: Path, entry: Entry, repeats: int) -> tuple[dict[str, Any], Any]:
    """Return how far the kernel's numbers are off, and the kernel. Results are poisoned before each run."""
    import torch
    import tvm_ffi

    device, case = _device(entry), entry.case
    kernel = tvm_ffi.load_module(str(folder / entry.files[0]))["kernel"]
    given = device.inputs(case, 1)
    out = _result(entry)
    kernel(*given, out)
    torch.cuda.synchronize()
    first, equal = _readable(out).clone(), True
    for _ in range(repeats):
        out.copy_(_result(entry))
        kernel(*given, out)
        torch.cuda.synchronize()
        equal = equal and bool(torch.equal(torch.nan_to_num(first, 7.0), torch.nan_to_num(_readable(out), 7.0)))
    want = device.reference(case, given)
    return compared(first, want, device.tolerance(case), equal), kernel


def compared(first: Any, want: Any, tolerance: float, equal: bool, least: float = 0.0) -> dict[str, Any]:
    """Return whether a result is right, and how far it is off, relative to the reference.

    The reference counts as having elements of `least` at least, as a root mean square: what cancels to less has the
    error of what it came from.
    """
    import torch

    missing = bool(torch.equal(torch.isnan(want), torch.isnan(first)))
    got = torch.nan_to_num(first.to(want.dtype), 0.0)
    beyond = ~(want.abs() <= _LARGEST)
    same = bool(torch.equal(got[beyond], torch.nan_to_num(want[beyond], 0.0)))
    got, want = torch.where(beyond, 0.0, got), torch.where(beyond, 0.0, want)
    off = (got - want).abs()
    error = float(off.norm() / want.norm().clamp_min(max(1e-30, least * off.numel() ** 0.5)))
    worst = float(off.max() / want.abs().max().clamp_min(max(1e-30, least)))
    right = equal and missing and same and error <= tolerance and worst <= _WORST * tolerance
    found = {"right": right, "error": error, "worst": worst, "equal_bits": equal, "same_nan": missing}
    found["same_infinities"] = same
    if not right:
        places = (off > tolerance * want.abs().max()).nonzero()
        found |= {
            "wrong": f"{len(places)} of {off.numel()}",
            "first": places[:3].tolist(),
            "last": places[-3:].tolist(),
        }
    return found


def _device(entry: Entry) -> Any:
    return importlib.import_module(f"benchmarks.gpu.{entry.suite}_device")


def _result(entry: Entry) -> Any:
    import torch

    shape, dtype = _device(entry).result(entry.case)
    kind = getattr(torch, dtype)
    made = torch.float32 if kind == torch.float8_e4m3fn else kind
    return torch.full(shape, poison(kind), device="cuda", dtype=made).to(kind)


def _readable(out: Any) -> Any:
    """The result in a dtype that torch computes with."""
    import torch

    return out.to(torch.float32) if out.dtype == torch.float8_e4m3fn else out


def poison(dtype: Any) -> Any:
    """What no result has: NaN, and of integers a number that is larger than those that come out."""
    return float("nan") if dtype.is_floating_point else True if str(dtype) == "torch.bool" else 101


def _calls(entry: Entry, kernel: Any) -> dict[str, list[Callable[[], Any]]]:
    """Ours and each peer that runs, over sets of inputs that the cache does not hold together."""
    import torch

    device, case = _device(entry), entry.case
    sets = [device.inputs(case, seed) for seed in range(copies_for(device.work(case)[1]))]
    outs = [_result(entry) for _ in sets]
    calls: dict[str, list[Callable[[], Any]]] = {
        "ours": [lambda x=x, o=o: kernel(*x, o) for x, o in zip(sets, outs, strict=True)]  # type: ignore[misc]
    }
    theirs = [device.peers(case, each, out) for each, out in zip(sets, outs, strict=True)]
    for name in theirs[0]:
        try:
            theirs[0][name]()
            torch.cuda.synchronize()
        except RuntimeError:
            continue  # a backend that does not take this case
        calls[name] = [_holding(each[name]) for each in theirs]
    return calls


def _holding(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that holds its result until it is called again.

    A peer that makes its own result would else write, each time, where it has just let go of the last one, which the
    cache still has: no byte of it would go to memory, and ours, whose results rotate, would be compared with that.
    """
    held = []

    def run() -> None:
        held[:] = [call()]

    return run
