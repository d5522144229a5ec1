"""Rounded models on the device: several libraries in turns, or the numbers of one beside a CPU's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.child import over, turn
from benchmarks.gpu.child_model import load_model, results_of
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.timing import kernels_of, milliseconds_in_turns

__all__ = ["measure_drawn"]

_LARGEST_OFF = 0.05
"""Of a network in bytes to another that rounds in the same places, in norm: a step of a result in some of them."""


def measure_drawn(folder: Path, entry: Entry) -> dict[str, Any]:
    """Return milliseconds and kernels of each library, or how far the one's results are from the reference."""
    kinds = entry.case["kinds"]
    return _timed(folder, entry, kinds) if len(kinds) > 1 else _compared(folder, entry, kinds[0])


def _timed(folder: Path, entry: Entry, kinds: list[str]) -> dict[str, Any]:
    import torch

    name = entry.case["model"]
    x = torch.randint(5, 30000, (int(name.rpartition("_b")[2]), 128), device="cuda")
    calls: dict[str, Callable[[], Any]] = {}
    for kind in kinds:
        call, _ = load_model(folder / f"{name}.{kind}.so", _weights(folder / f"{name}.{kind}"), (x,))
        calls[kind] = lambda call=call: call(x)  # type: ignore[misc]
    turn(entry)
    found = milliseconds_in_turns(calls)
    kernels = {kind: kernels_of(call) for kind, call in calls.items()}
    over(entry)
    return {**found, "kernels": kernels, "ratio": round(found["ms"][kinds[0]] / found["ms"][kinds[1]], 3)}


def _compared(folder: Path, entry: Entry, kind: str) -> dict[str, Any]:
    import torch

    name = entry.case["model"]
    reference = np.load(folder / f"{name}.reference.npz")
    x = torch.from_numpy(reference["x"]).to(device="cuda")
    call, _ = load_model(folder / f"{name}.{kind}.so", _weights(folder / f"{name}.{kind}"), (x,))
    got, again = results_of(call(x))[0], results_of(call(x))[0]
    equal = bool(torch.equal(got, again))
    error = _off(got.float().cpu().numpy(), reference["y"])
    found = {"error": error, "equal_bits": equal, "right": equal and error <= _LARGEST_OFF}
    if "plain" in reference:
        found |= {"to_fp32": _off(got.float().cpu().numpy(), reference["plain"])}
        found |= {"reference_to_fp32": _off(reference["y"], reference["plain"])}
    return found


def _off(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b.astype(np.float64)))


def _weights(stem: Path) -> list[Any]:
    """The tensors that the library takes: what is carried, and others drawn."""
    import torch

    carried = np.load(stem.with_name(f"{stem.name}.npz"))
    draw = torch.Generator("cuda").manual_seed(0)
    made = []
    for number, (shape, dtype) in enumerate(json.loads(stem.with_name(f"{stem.name}.json").read_text())["weights"]):
        kind = getattr(torch, dtype)
        if f"w{number}" in carried:
            array = torch.from_numpy(np.ascontiguousarray(carried[f"w{number}"]))
            made.append(array.to(device="cuda").view(kind).reshape(shape))
        elif kind.is_floating_point:
            made.append((torch.randn(shape, device="cuda", generator=draw) * 0.03).to(kind))
        else:
            made.append(torch.randint(-20, 20, shape, device="cuda", generator=draw).to(kind))
    return made
