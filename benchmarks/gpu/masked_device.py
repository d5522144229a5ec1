"""Masked kernels on the device: inputs and the fp64 reference for a case of `masked_cases` in JSON."""

from __future__ import annotations

from math import prod
from typing import Any

__all__ = ["inputs", "reference", "result", "tolerance", "work"]

_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-5}


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm; none of integers and bools."""
    return _TOLERANCE.get(case["out"], 0.0)


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    shape = (case["batch"], case["m"], case["n"])
    return (shape[:2] if case["kind"] == "any" else shape), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations, and bytes read and written, each element as four."""
    shapes = [*(shape for _, shape, _ in case["operands"]), result(case)[0]]
    return 2.0 * case["k"] * prod(result(case)[0]), 4.0 * sum(map(prod, shapes))


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands: halves of small integers, whose products and sums are exact in fp32."""
    import torch

    draw, made = torch.Generator(device).manual_seed(seed), []
    for _, shape, dtype in case["operands"]:
        least, most = {"bool": (0, 2), "uint8": (0, 100)}.get(dtype, (-6, 7))
        values = torch.randint(least, most, tuple(shape), device=device, generator=draw)
        made.append((values / 2 if dtype.startswith(("float", "bfloat")) else values).to(getattr(torch, dtype)))
    return made


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result, of bools and floats in fp64."""
    found = _reference(case, given)
    return found if "int" in case["out"] else found.double()


def _reference(case: dict[str, Any], given: list[Any]) -> Any:
    import torch

    kind = case["kind"]
    if kind == "any":
        return given[0].any(2).to(torch.int8)
    if kind == "bytes":
        return (given[0] & given[1] | given[2]).to(torch.int8)
    if kind == "masked":
        x, mask, y, *fill = given
        return torch.where(mask, x, fill[0]) + y if fill else (x & mask) ^ y
    value = given[0].double() @ given[1].double()
    if kind == "product_of_bytes":
        return value.to(torch.int32)
    return value > given[2] if kind == "compared" else torch.where(given[2], value, given[3].double())
