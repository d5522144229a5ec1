"""Rows on the device: inputs, the fp64 reference, torch's operator and a copy for a case of `rows_cases` in JSON."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from benchmarks.gpu.copies import copy_of

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    return {"float16": 5e-4, "bfloat16": 4e-3, "float32": 2e-6}[case["out"]]


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    shape = tuple(case["shape"])
    if case["kind"] == "amax":
        return (*shape[:-1], 1), case["out"]
    return ((*shape[:-2], shape[-1], shape[-2]) if case["kind"] == "transpose" else shape), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return no operations that count, and bytes read and written."""
    written = 0 if case["kind"] == "amax" else _BYTES[case["out"]]
    size = _BYTES[case["dtype"]] + written + (2 if _has_second(case) else 0)
    return 0.0, float(prod(case["shape"]) * size)


def _has_second(case: dict[str, Any]) -> bool:
    return bool(case["before"] == "residual" or case["kind"] == "add")


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU: the rows, another tensor of their shape, and vectors for the columns."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=device, generator=draw)

    made = [(normal(*case["shape"]) * 1.5 + 0.5).to(getattr(torch, case["dtype"]))]
    if _has_second(case):
        made.append(normal(*case["shape"]).half())
    vectors = {"layer_norm": 2, "rms_norm": 1}.get(case["kind"], 0) + (case["before"] == "scale")
    return [*made, *(normal(case["shape"][-1]) for _ in range(vectors))]


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result in fp64."""
    return _function(case)(*(x.double() for x in given))


def _function(case: dict[str, Any]) -> Callable[..., Any]:
    import torch
    from torch.nn import functional

    kind, columns = case["kind"], (case["shape"][-1],)

    def call(x: Any, *rest: Any) -> Any:
        given = list(rest)
        x = x + given.pop(0) if _has_second(case) else x
        x = x * given.pop() if case["before"] == "scale" else x
        if kind == "layer_norm":
            return functional.layer_norm(x, columns, *given, 1e-5)
        if kind == "rms_norm":
            return functional.rms_norm(x, columns, *given, 1e-5)
        if kind == "softmax":
            return torch.softmax(x, -1)
        if kind == "amax":
            return x.abs().amax(-1, keepdim=True)
        if kind == "gelu":
            return functional.gelu(x)
        return x.transpose(-1, -2).contiguous() if kind == "transpose" else x

    return call


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return a copy of as many bytes, which is the limit, and torch's operator on 16 bits, which reads fewer."""
    function, low = _function(case), [x.half() for x in given]
    return {"copy": copy_of(work(case)[1]), "torch, fp16": lambda: function(*low)}
