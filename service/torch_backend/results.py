"""What a graph of dynamo's returns: what it computes, and what lies where an argument or another result does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from relaxc.service.errors import UnsupportedModel

__all__ = ["Result", "Shared", "is_computed", "results_of", "returned"]


@dataclass(frozen=True, eq=False)
class Shared:
    """A result that lies in an `argument`, or with other results in the memory of number `group`."""

    argument: int | None
    group: int
    value: Any
    """The fake tensor that dynamo has for it."""
    offset: Any
    """Where it begins, of the argument or of the group, in elements."""


Result = int | str | Shared
"""The place of an argument that is passed on, what is computed: a `tensor`, a `size`, or `nothing`, or what is shared.
"""


def is_computed(result: Result) -> bool:
    """Return whether an artifact has this result."""
    return result in ("tensor", "size") or (isinstance(result, Shared) and result.argument is None)


def results_of(placeholders: Sequence[Any], nodes: Sequence[Any]) -> tuple[Result, ...]:
    """Return what the results of a graph are. Raise UnsupportedModel where it cannot be told which argument one is in.

    What follows may write into one of two tensors that share memory, and read the other.
    """
    lies_in: defaultdict[int, list[int]] = defaultdict(list)
    for place, node in enumerate(placeholders):
        if (memory := _memory(node)) is not None:
            lies_in[memory].append(place)
    together = [_memory(node) for node in nodes]

    def result(node: Any, memory: int | None) -> Result:
        if node in placeholders:
            return placeholders.index(node)
        if memory is None:
            return "nothing" if node is None else "size"
        value = node.meta["example_value"]
        if memory in lies_in:
            place, *others = lies_in[memory]
            base = placeholders[place].meta["example_value"]
            if others or base.dtype != value.dtype:
                raise UnsupportedModel("a result lies in an argument in a way that is not followed")
            return Shared(place, memory, value, value.storage_offset() - base.storage_offset())
        return Shared(None, memory, value, value.storage_offset()) if together.count(memory) > 1 else "tensor"

    return tuple(map(result, nodes, together))


def _memory(node: Any) -> int | None:
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None


def returned(
    results: Sequence[Result],
    arguments: Sequence[Any],
    computed: Iterator[torch.Tensor],
    sizes: Mapping[str, tuple[int, int]],
) -> Iterator[Any]:
    """Yield the results of a call, given those that the artifact computes; `sizes` has the argument and the axis of
    each size that dynamo has a symbol for.
    """
    places = {each: _place(each, arguments, sizes) for each in results if isinstance(each, Shared)}
    memory: dict[int, torch.Tensor] = {}
    for each, (size, stride, offset) in places.items():
        if each.argument is None:
            reach = offset + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
            room = max(reach, 1) * each.value.element_size()
            if each.group not in memory or len(memory[each.group]) < room:
                memory[each.group] = torch.empty(-(-room // 16) * 16, dtype=torch.uint8)
    for kind in results:
        if isinstance(kind, int):
            yield arguments[kind]
        elif isinstance(kind, Shared):
            size, stride, offset = places[kind]
            if kind.argument is not None:
                base = arguments[kind.argument]
                yield base.as_strided(size, stride, base.storage_offset() + offset)
            else:
                there = memory[kind.group].view(kind.value.dtype).as_strided(size, stride, offset)
                yield there.copy_(next(computed))
        elif kind == "nothing":
            yield None
        else:
            yield next(computed) if kind == "tensor" else next(computed).item()


def _place(
    result: Shared, arguments: Sequence[Any], sizes: Mapping[str, tuple[int, int]]
) -> tuple[list[int], list[int], int]:
    """The size, strides and offset of a result in a call."""

    def number(value: Any) -> int:
        if isinstance(value, int):
            return value
        expression = value.node.expr
        known = {}
        for symbol in expression.free_symbols:
            if str(symbol) not in sizes:
                raise UnsupportedModel(f"a result that shares memory has the size {expression}")
            place, axis = sizes[str(symbol)]
            known[symbol] = arguments[place].shape[axis]
        return int(expression.xreplace(known))

    value = result.value
    return [number(each) for each in value.shape], [number(each) for each in value.stride()], number(result.offset)
