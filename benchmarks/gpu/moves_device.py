"""Moves on the device: inputs, the fp64 reference, a copy and torch's operators for a case of `moves_cases` in JSON."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from benchmarks.gpu.copies import copy_of

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_TOLERANCES = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 2e-6}
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int64": 8, "int32": 4}


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm: of integers, none; of 16-bit inputs, theirs."""
    low = [_TOLERANCES[dtype] for dtype in (case["out"], _rounded(case)) if dtype in _TOLERANCES]
    return max(low, default=0.0)


def _rounded(case: dict[str, Any]) -> str:
    """The dtype in which it computes, or rounds to on the way."""
    return str(case["dtype"]) if case["kind"] in ("add", "where", "append", "transposes_add") else ""


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    return tuple(case["result"]), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return no operations that count, and bytes that must be read and written."""
    shape, out = result(case)
    size = prod(shape) * _BYTES.get(out, 1)
    read = sum(prod(shape) * _BYTES.get(dtype, 1) for _, shape, dtype in case["operands"])
    if case["kind"] in ("take", "append", "rotary", "slice"):  # not all of the operands
        rows = prod(shape) * _BYTES.get(case["dtype"], 1)
        read = rows if case["kind"] != "append" else rows * case["shape"][2] // (case["shape"][2] + 1)
    return 0.0, float(size + read)


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands: small numbers, for a table of rows their numbers."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    made = []
    for name, shape, dtype in case["operands"]:
        if case["kind"] == "take" and name == "y":
            made.append(torch.randint(0, case["shape"][0], tuple(shape), device=device, generator=draw))
        elif dtype in ("float16", "bfloat16", "float32"):
            values = torch.randn(*shape, device=device, generator=draw) * 1.5
            made.append(values.to(getattr(torch, dtype)))
        else:
            least = 0 if dtype in ("uint8", "bool") else -9
            numbers = torch.randint(least, 2 if dtype == "bool" else 10, tuple(shape), device=device, generator=draw)
            numbers = torch.where(numbers == 0, 3, numbers) if case["kind"] == "floor_divide" else numbers
            made.append(numbers.to(getattr(torch, dtype)))
    return made


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result in fp64."""
    import torch

    exact = (torch.bool, torch.int64)
    made = _function(case)(
        *(x if x.dtype in exact and case["kind"] in ("where", "take") else x.double() for x in given)
    )
    return made.to(getattr(torch, case["out"])).double() if case["kind"] == "cast" else made.double()


def _function(case: dict[str, Any]) -> Callable[..., Any]:
    import torch
    from torch.nn import functional

    kind, axes = case["kind"], list(case["axes"])
    functions: dict[str, Callable[..., Any]] = {
        "gelu": functional.gelu, "silu": functional.silu, "tanh": torch.tanh, "exp": torch.exp, "relu": torch.relu,
        "cast": lambda x: x * 1,
        "add": lambda x, y: x + y,
        "bias": lambda x, y: x + y,
        "scale": lambda x, y: x * y,
        "equal": lambda x, y: x == y,
        "floor_divide": lambda x, y: torch.floor_divide(x, y),
        "where": lambda x, y: torch.where(y, x, -x),
        "take": lambda x, y: x[y],
        "concat": lambda x, y: torch.cat([x, y], axes[0]),
        "append": lambda x, y: _appended(case, x, y),
        "slice": lambda x: _sliced(axes, x),
        "flip": lambda x: torch.flip(x, axes[:1]),
        "repeat": lambda x: torch.repeat_interleave(x, axes[1], axes[0]),
        "tile": lambda x: torch.tile(x, axes),
        "pad": lambda x: functional.pad(x, _pads(axes), value=1.5),
        "geglu": _geglu,
        "rotary": lambda x, cos, sin: _rotary(axes, x, cos, sin),
        "patches": lambda x, y, z: torch.cat([y, x.flatten(2).transpose(1, 2)], 1) + z,
        "transpose": lambda x: x.permute(axes).contiguous(),
        "silu_transpose": lambda x: functional.silu(x).permute(axes).contiguous(),
        "transpose_add": lambda x, y: x.permute(axes) + y,
        "transposes_add": lambda x, y: (x + y).permute(axes).contiguous(),
    }  # fmt: skip
    return functions[kind]


def _appended(case: dict[str, Any], x: Any, cache: Any) -> Any:
    import torch

    batch, heads, _, head = case["shape"]
    row = x[:, :, heads * head : 2 * heads * head].reshape(batch, heads, 1, head)
    return torch.cat([cache, row.to(cache.dtype)], 2)


def _sliced(axes: list[int], x: Any) -> Any:
    axis, begin, end, step = axes
    return x[(slice(None),) * axis + (slice(begin, end, step),)].contiguous()


def _pads(axes: list[int]) -> list[int]:
    """The pads from the last axis on, as torch has them."""
    pairs = [axes[i : i + 2] for i in range(0, len(axes), 2)]
    return [pad for pair in reversed(pairs) for pad in pair]


def _geglu(x: Any) -> Any:
    from torch.nn import functional

    value, gate = x.chunk(2, -1)
    return value * functional.gelu(gate)


def _rotary(axes: list[int], x: Any, cos: Any, sin: Any) -> Any:
    import torch

    heads, head = axes
    taken = x[:, :, : heads * head].reshape(*x.shape[:2], heads, head)
    turned = torch.cat([-taken[..., head // 2 :], taken[..., : head // 2]], -1)
    return (taken * cos + turned * sin).permute(0, 2, 1, 3).contiguous()


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return a copy of as many bytes, which is the limit, and torch's operators on these inputs."""
    function = _function(case)
    return {"copy": copy_of(work(case)[1]), "torch": lambda: function(*given)}
