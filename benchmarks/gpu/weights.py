"""Weights that a compiled model takes, as recipes over its module's tensors: a bundle of many models stays small.

The device has the module from its seed. What the graph made of a tensor is found by value: transposed, reshaped,
converted, with a batch norm folded into it, or beside others; what is small and made of none is carried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["Recipe", "Unexplained", "explain", "follow", "sources"]

_CARRIED_BYTES = 4 << 20
"""The largest constant that may travel as it is; tables of positions and masks compress well."""
_LEAST_EXPLAINED = 4096
"""Elements of a constant below which nobody looks for its origin."""
_TOLERANCE = 5e-3
"""Of a value relative to the largest: a fold in 16 bits and one in 32 differ by so much."""


class Unexplained(ValueError):
    """A large constant is made of no tensor of the module."""


@dataclass(frozen=True)
class Recipe:
    """`axis` is where the parts are joined; a part is (source, the permutation of its axes, its shape, a factor)."""

    shape: tuple[int, ...]
    dtype: str
    axis: int = 0
    parts: tuple[tuple[str, tuple[int, ...], tuple[int, ...], float], ...] = ()
    carried: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def sources(module: Any) -> dict[str, Any]:
    """Return the tensors of the module by name, and each convolution's weight with the batch norm behind it."""
    from torch import nn

    found = {name: value.detach() for name, value in module.state_dict().items() if value.is_floating_point()}
    parts = list(module.named_modules())
    for (name, one), (_, norm) in itertools.pairwise(parts):
        if isinstance(one, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None:
            factor = norm.weight.detach().float() / (norm.running_var.float() + norm.eps).sqrt()
            found[f"{name}.weight*norm"] = one.weight.detach().float() * factor[:, None, None, None]
    return found


def explain(weights: Mapping[str, Any], module: Any) -> tuple[list[Recipe], dict[str, Any]]:
    """Return a recipe for each weight in order, and the arrays to carry. Raises Unexplained."""
    given = {name: value.float().numpy() for name, value in sources(module).items()}
    recipes, carried = [], {}
    for number, (name, weight) in enumerate(weights.items()):
        array = weight.numpy() if hasattr(weight, "numpy") else np.asarray(weight)
        recipe = _explained(array, given)
        if recipe is None:
            if array.nbytes > _CARRIED_BYTES:
                raise Unexplained(f"{name}, {array.dtype}{list(array.shape)}, is made of no tensor of the module")
            carried[f"w{number}"] = array
            recipe = Recipe(array.shape, str(array.dtype), carried=f"w{number}")
        recipes.append(recipe)
    return recipes, carried


def follow(recipes: list[dict[str, Any]], carried: Mapping[str, Any], module: Any) -> list[Any]:
    """Return the weights as tensors where the module's are."""
    import torch

    given = sources(module)
    device = next(iter(given.values())).device
    made = []
    for recipe in recipes:
        dtype = getattr(torch, recipe["dtype"])
        if recipe["carried"]:
            made.append(torch.from_numpy(np.ascontiguousarray(carried[recipe["carried"]])).to(device))
            continue
        parts = []
        for name, order, shape, factor in recipe["parts"]:
            part = given[name].permute(*order).reshape(*shape)
            parts.append(part.to(dtype) if factor == 1 else (part.float() * factor).to(dtype))
        made.append(torch.cat(parts, recipe["axis"]).reshape(recipe["shape"]).contiguous().clone())
    return made


def _explained(array: Any, given: Mapping[str, Any]) -> Recipe | None:
    if array.size < _LEAST_EXPLAINED or array.dtype.kind != "f":
        return None
    wide = array.astype(np.float32)
    for part in _parts(wide, given):
        return Recipe(array.shape, str(array.dtype), 0, (part,))
    flat = wide.reshape([each for each in wide.shape if each != 1])
    for axis in range(flat.ndim):
        found = _joined(flat, axis, given)
        if found:
            return Recipe(array.shape, str(array.dtype), axis, tuple(found))
    return None


def _joined(wide: Any, axis: int, given: Mapping[str, Any]) -> list[Any]:
    """The sources that lie one after the other along `axis`; nothing where some are none."""
    found, at = [], 0
    rest = wide.size // wide.shape[axis]
    lengths = sorted({value.size // rest for value in given.values() if value.size % rest == 0}, reverse=True)
    while at < wide.shape[axis]:
        for length in lengths:
            if 0 < length <= wide.shape[axis] - at:
                part = next(_parts(wide.take(range(at, at + length), axis), given), None)
                if part is not None:
                    found.append(part)
                    at += length
                    break
        else:
            return []
    return found


def _parts(wide: Any, given: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], float]]:
    """Each source that is `wide` with its axes in some order and times some factor."""
    for name, value in given.items():
        if value.size != wide.size:
            continue
        for order in itertools.permutations(range(value.ndim)):
            moved = value.transpose(order)
            factor = _factor(moved, wide)
            if factor is not None:
                yield name, order, wide.shape, factor
                break


def _factor(moved: Any, wide: Any) -> float | None:
    """What `moved`, in the order of its elements, is multiplied with to be `wide`; 1 where that is it."""
    head = moved.flat[: min(64, moved.size)]
    wanted = wide.flat[: min(64, wide.size)]
    norm = float(head @ head)
    factor = float(head @ wanted) / norm if norm else 0.0
    scale = float(np.abs(wanted).max())
    if not scale or float(np.abs(head * factor - wanted).max()) > _TOLERANCE * scale:
        return None
    factor = 1.0 if abs(factor - 1) < 1e-3 else factor
    whole = moved.reshape(-1) * np.float32(factor)
    off = float(np.abs(whole - wide.reshape(-1)).max())
    return factor if off <= _TOLERANCE * float(np.abs(wide).max()) else None
