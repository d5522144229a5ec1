"""Plain operators on the device: inputs and the fp64 reference for a case of `plain_cases` in JSON."""

from __future__ import annotations

from math import prod
from typing import Any

__all__ = ["inputs", "reference", "result", "tolerance", "work"]

_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-5}


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    return _TOLERANCE[case["out"]]


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    return tuple(case["result"]), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations, and bytes read and written, each element as four."""
    shapes = [*case["operands"], case["result"]]
    per_element = prod(case["operands"][1][1:]) if case["kind"] == "grouped" else 1
    return 2.0 * per_element * prod(case["result"]), 4.0 * sum(map(prod, shapes))


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands; a convolution's weight is scaled so that its sums are as its image."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    made = [torch.randn(*shape, device=device, generator=draw) for shape in case["operands"]]
    if case["kind"] == "grouped":
        made[1] *= prod(case["operands"][1][1:]) ** -0.5
    return [each.to(getattr(torch, case["dtype"])) for each in made]


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result in fp64."""
    import torch
    from torch.nn import functional

    value, *rest = (x.double() for x in given)
    if case["kind"] == "grouped":
        groups, _, kernel, stride = case["axes"]
        return functional.conv2d(value, rest[0], None, stride, kernel // 2, 1, groups)
    if case["kind"] == "spread":
        empty = value.new_zeros(value.shape[0], 8 - value.shape[1], *value.shape[2:])
        return functional.pad(torch.cat([value, empty], 1), case["axes"]).permute(0, 2, 3, 1)
    for step in case["steps"]:
        function = getattr(torch, step)
        value = function(value, rest.pop(0)) if step in ("add", "subtract", "multiply", "maximum") else function(value)
    if case["kind"] == "chain":
        return value
    axes = list(case["axes"])
    if case["kind"] == "norm":
        centred = value - value.mean(axes, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + 1e-3)
    if case["kind"] in ("softmax", "shares"):
        largest = value.amax(axes, keepdim=True)
        if case["kind"] == "shares":
            return value + value / (largest.abs() + 1)
        powers = (value - largest).exp()
        return powers / powers.sum(axes, keepdim=True)
    return getattr(torch, {"max": "amax"}.get(case["kind"], case["kind"]))(value, list(case["axes"]))
