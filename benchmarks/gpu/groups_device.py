"""Group norms on the device: inputs, the fp64 reference, torch's operator and a copy for a case of `groups_cases`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from benchmarks.gpu.copies import copy_of

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    return {"float16": 5e-4, "bfloat16": 4e-3, "float32": 4e-6}[case["out"]]


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    return tuple(case["shape"]), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return no operations that count, and bytes read and written."""
    size = _BYTES[case["dtype"]] + _BYTES[case["out"]] + (2 if case["behind"] == "residual" else 0)
    return 0.0, float(prod(case["shape"]) * size)


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU: the image, a factor and a summand for each channel, and the residual."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=device, generator=draw)

    made = [(normal(*case["shape"]) * 1.5 + 0.5).to(getattr(torch, case["dtype"]))]
    made += [normal(case["shape"][-1]) for _ in range(2)]
    return [*made, normal(*case["shape"]).half()] if case["behind"] == "residual" else made


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result in fp64."""
    return _function(case)(*(x.double() for x in given))


def _function(case: dict[str, Any]) -> Callable[..., Any]:
    import torch
    from torch.nn import functional

    def call(x: Any, gamma: Any, beta: Any, *rest: Any) -> Any:
        made = torch.group_norm(x.permute(0, 3, 1, 2), case["groups"], gamma, beta, 1e-5).permute(0, 2, 3, 1)
        if case["behind"] == "silu":
            made = functional.silu(made)
        elif rest:
            made = made + rest[0]
        return torch.relu(made) if case["out"] == "float32" else made

    return call


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return a copy of as many bytes, which is the limit, and torch's operators on 16 bits, which read fewer."""
    function, low = _function(case), [x.half() for x in given]
    return {"copy": copy_of(work(case)[1]), "torch, fp16": lambda: function(*low)}
