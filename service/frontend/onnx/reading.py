"""Operands that the data decides: read as the program runs, each number a size from there on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.tensor_expression import one_of

__all__ = ["computed", "read", "sizes_of", "vector"]


def vector(node: Node, index: int) -> tuple[Any, int]:
    """Return an input as int64 numbers on one axis, and how many. Raise Refused where that is not known."""
    from tvm import relax

    given, shape = node.tensor(index), node.shape(index)
    if len(shape) > 1 or not all(isinstance(size, int) for size in shape):
        raise Refused(f"input {index}, a list of numbers that are computed, whose length is not known")
    count = shape[0] if shape else 1
    given = given if shape else node.emit(relax.op.reshape(given, [1]))
    return given if node.dtype(index) == "int64" else node.emit(relax.op.astype(given, "int64")), count


def sizes_of(node: Node, index: int) -> list[Any]:
    """Return the numbers of an input as sizes, the same ones for each reader. The program stops at a negative one."""
    key = node.inputs[index]
    if key not in node.scope.read:
        node.scope.read[key] = read(node, *vector(node, index))
    return list(node.scope.read[key])


def computed(node: Node, function: Callable[..., Sequence[Any]], *args: Any) -> list[Any]:
    """Return sizes that `function` computes, given expressions of these args' elements: vectors, sizes or numbers."""
    from tvm import te

    numbers: list[Any] = []

    def kernel(*given: Any) -> Any:
        numbers[:] = function(*given)

        def element(place: Any) -> Any:
            return one_of(place, numbers).astype("int64")

        return te.compute((len(numbers),), element, name="operands")

    made = node.te(kernel, *args, primfunc_name_hint="operands")
    return read(node, made, len(numbers))


def read(node: Node, numbers: Any, count: int) -> list[Any]:
    """Return so many computed int64 numbers as sizes. The program stops at a negative one."""
    from tvm import relax, te, tirx

    def below_zero(given: Any) -> Any:
        return te.compute(given.shape, lambda i: tirx.min(given(i), tirx.const(0, "int64")), name="negative")

    node.require_zeros(node.te(below_zero, numbers, primfunc_name_hint="negative"), count)
    shape = relax.op.call_pure_packed("vm.builtin.tensor_to_shape", numbers, ty_args=[relax.ShapeType(ndim=count)])
    names = [node.scope.fresh(node.op.rpartition(":")[2].lower()) for _ in range(count)]
    node.builder.match_cast(node.builder.emit(shape), relax.ShapeType(names))
    return names
