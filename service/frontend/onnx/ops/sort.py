"""TopK and running sums and products."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.axes import with_one_between
from relaxc.service.frontend.onnx.ops.common import cast, full_precision, is_integer
from relaxc.service.frontend.onnx.ops.registry import op

_SORTED_AS = dict.fromkeys(("int8", "uint8", "int16", "uint16", "uint32"), "int64") | {"bfloat16": "float32"}
"""Dtypes that TVM's sort does not take (src/runtime/contrib/sort/sort.cc), and ones that hold all their numbers."""


@op("TopK")
def _top_k(node: Node) -> Any:
    """Values and places; of equal values the one with the lower index comes first."""
    (count,) = [node.attr("k")] if node.attr("k") is not None else node.dims(1, "K")
    axis, dtype = node.attr("axis", -1) % node.rank(0), node.dtype(0)
    if dtype == "uint64":
        made = node.apply(
            "TopK", _turned(node, node.tensor(0), "int64"), *node.inputs[1:], outputs=2, **node.attributes
        )
        return _turned(node, made[0], dtype), made[1]
    if dtype in _SORTED_AS:
        wide = node.emit(cast(node.tensor(0), _SORTED_AS[dtype]))
        made = node.apply("TopK", wide, *node.inputs[1:], outputs=2, **node.attributes)
        return cast(made[0], dtype), made[1]
    if not isinstance(count, int):
        return _first_of_all(node, count, axis)
    if count == 0:  # which TVM takes for all
        raise Refused("K=0, a result of no elements")
    largest = bool(node.attr("largest", 1))
    both = node.emit(relax.op.topk(node.tensor(0), count, axis, "both", largest, "int64"))
    return [relax.TupleGetItem(both, index) for index in (0, 1)]


def _turned(node: Node, x: Any, dtype: str) -> Any:
    """Numbers of 64 bits in the same order with the other sign: the first bit is the other one."""
    first = tirx.const(-(1 << 63), "int64")

    def kernel(x: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            return tirx.reinterpret(dtype, tirx.bitwise_xor(tirx.reinterpret("int64", x(*at)), first))

        return te.compute(x.shape, element, name="turned")

    return node.te(kernel, x, primfunc_name_hint="turned")


def _first_of_all(node: Node, count: Any, axis: int) -> Any:
    """All in order, and the first of them, where how many is known at run time."""
    node.require(node.shape(0)[axis], ">=", count, "takes {right} of {left}")
    both = node.emit(relax.op.topk(node.tensor(0), 0, axis, "both", bool(node.attr("largest", 1)), "int64"))
    return [
        relax.op.strided_slice(
            node.emit(relax.TupleGetItem(both, index)), [axis], [0], [count], [1], assume_inbound=True
        )
        for index in (0, 1)
    ]


@op("CumSum", "CumProd")
def _cumulative(node: Node) -> Any:
    exclusive = bool(node.attr("exclusive", 0))
    function = relax.op.cumsum if node.op == "CumSum" else relax.op.cumprod

    def along(x: Any, axis: int) -> Any:
        if not node.attr("reverse", 0):
            return function(x, axis, exclusive=exclusive)
        backwards = node.emit(relax.op.flip(x, axis))
        return relax.op.flip(node.emit(function(backwards, axis, exclusive=exclusive)), axis)

    def run(x: Any, axis: int) -> Any:  # integers wrap
        return along(x, axis) if is_integer(dtype_of(x)) else full_precision(node, lambda x: along(x, axis), x)

    if not node.is_known(1):
        return with_one_between(node, 1, run)
    return run(node.tensor(0), int(node.scalar(1, "axis")) % node.rank(0))
