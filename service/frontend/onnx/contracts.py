"""What Relax's operators take for granted of sizes: required of each call while it is emitted.

TVM refuses sizes that certainly do not fit; of symbolic ones it knows nothing, and its kernels read what is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxc.service.frontend.onnx.dims import is_static, product, same, told

__all__ = ["check", "check_result"]

Require = Callable[[Any, str, Any, str], None]
"""Has `left == right` or `left >= right` hold of every call; the last one says of what."""


def check(call: Any, require: Require, scope: Any, *, may_be_left: bool = False) -> None:
    """Require what the sizes of a call's arguments must be to each other. Raise what `require` does.

    `may_be_left`: in a branch whose results a call may leave, a reshape may leave elements out, which reads no others.
    """
    name = _name(call)
    if name in _BROADCASTS:
        _broadcast(_shapes(call), require, scope)
    elif name == "reshape":
        _reshape(call, require, ">=" if may_be_left else "==")
    elif name in _CONTRACTS:
        _CONTRACTS[name](call, require)


def check_result(call: Any, require: Require) -> None:
    """Require that a call whose type is known gives tensors, and a convolution none without elements."""
    least = 1 if "conv" in _name(call) else 0
    for shape in _result(call):
        for axis, size in enumerate(shape):
            if not is_static(size) or size < least:
                require(size, ">=", least, f"gives an axis {axis} of size {{left}}")


def _name(call: Any) -> str:
    return call.op.name.removeprefix("relax.") if hasattr(call.op, "name") else ""


def shape_of(value: Any) -> list[Any] | None:
    """Return the dims of a tensor, numbers as ints; None where nothing is known of them."""
    shape = getattr(getattr(value, "ty", None), "shape", None)
    values = getattr(shape, "values", None)
    return None if values is None else _dims(values)


def _result(value: Any) -> list[list[Any]]:
    """The shapes of a tensor, or of those of a tuple, as far as they are known."""
    fields = getattr(value.ty, "fields", None)
    types = [value.ty] if fields is None else list(fields)
    found = (getattr(getattr(each, "shape", None), "values", None) for each in types)
    return [_dims(values) for values in found if values is not None]


def _dims(values: Any) -> list[Any]:
    return [int(dim.value) if is_static(dim) else dim for dim in values]


def _shapes(call: Any) -> list[list[Any]]:
    return [shape for shape in map(shape_of, call.args) if shape is not None]


def _broadcast(shapes: list[list[Any]], require: Require, scope: Any) -> None:
    """Sizes on one axis are equal, or a literal 1."""
    for back in range(1, max(map(len, shapes), default=0) + 1):
        sizes = [shape[-back] for shape in shapes if len(shape) >= back]
        sizes = [size for size in sizes if not (isinstance(size, int) and size == 1)]
        sizes.sort(key=lambda size: not is_static(size))
        for size in sizes[1:]:
            if not same(sizes[0], size, scope):
                require(size, "==", sizes[0], f"joins axes of sizes {{left}} and {{right}}, {back} from the end,")


_BROADCASTS = frozenset(
    (
        "add", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal", "floor_divide", "floor_mod", "greater",
        "greater_equal", "left_shift", "less", "less_equal", "log_add_exp", "logical_and", "logical_or", "logical_xor",
        "maximum", "minimum", "mod", "multiply", "not_equal", "power", "right_shift", "subtract", "where",
    )
)  # fmt: skip


def _reshape(call: Any, require: Require, relation: str) -> None:
    before, after = shape_of(call.args[0]), [_size(dim) for dim in getattr(call.args[1], "values", ())]
    if before is not None and after and not any(isinstance(dim, int) and dim < 1 for dim in after):
        require(product(before), relation, product(after), f"reshapes {_text(before)} to {_text(after)}")


def _text(shape: list[Any]) -> str:
    return f"[{', '.join(str(told(dim)) for dim in shape)}]"


def _size(dim: Any) -> Any:
    return int(dim.value) if hasattr(dim, "value") else dim


def _broadcast_to(call: Any, require: Require) -> None:
    before, after = shape_of(call.args[0]), [_size(dim) for dim in getattr(call.args[1], "values", ())]
    for back in range(1, len(before or ()) + 1):
        if before is not None and after and not (isinstance(before[-back], int) and before[-back] == 1):
            require(before[-back], "==", after[-back], "spreads an axis of size {left} over {right}")


def _concat(call: Any, require: Require) -> None:
    shapes = [shape_of(field) for field in call.args[0].fields]
    known = [shape for shape in shapes if shape is not None]
    for axis in range(len(known[0]) if known else 0):
        if axis != (int(call.attrs.axis or 0)) % len(known[0]):
            for shape in known[1:]:
                require(
                    shape[axis],
                    "==",
                    known[0][axis],
                    f"joins tensors with an axis {axis} of sizes {{left}} and {{right}}",
                )


def _matmul(call: Any, require: Require) -> None:
    left, right = map(shape_of, call.args[:2])
    if left and right:
        inner = right[-2 if len(right) > 1 else -1]
        require(left[-1], "==", inner, "multiplies an axis of size {left} with one of {right}")


def _convolution(call: Any, require: Require) -> None:
    data, weight = map(shape_of, call.args[:2])
    if data and weight and str(call.attrs.data_layout).startswith("NC"):
        channels = weight[1] * int(call.attrs.groups)
        require(data[1], "==", channels, "has {left} channels and a weight for {right}")


def _transposed(call: Any, require: Require) -> None:
    data, weight = map(shape_of, call.args[:2])
    if data and weight:
        require(data[1], "==", weight[0], "has {left} channels and a weight for {right}")


def _strided_slice(call: Any, require: Require) -> None:
    """TVM clips a slice, unless it is told that there is nothing to clip."""
    shape = shape_of(call.args[0])
    if not call.attrs.assume_inbound or shape is None:
        return
    axes, begins, ends = (list(arg.fields) for arg in call.args[1:4])
    steps = list(call.args[4].fields) if len(call.args) > 4 else [1] * len(axes)
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        if (step if isinstance(step, int) else _size(step)) > 0:
            size = shape[int(axis)]
            require(_size(begin), ">=", 0, f"slices axis {int(axis)} from {{left}}")
            require(_size(end), ">=", _size(begin), f"slices axis {int(axis)} from {{right}} to {{left}}")
            require(size, ">=", _size(end), f"slices axis {int(axis)}, of size {{left}}, up to {{right}}")


def _topk(call: Any, require: Require) -> None:
    shape = shape_of(call.args[0])
    if shape:
        axis = int(call.attrs.axis) % len(shape)
        require(shape[axis], ">=", int(call.attrs.k), f"takes {{right}} of axis {axis}, of size {{left}}")


def _within(places: int) -> Callable[[Any, Require], None]:
    """Indices, and updates, of which axes but the one that is indexed lie within the data's."""

    def contract(call: Any, require: Require) -> None:
        data, *others = (shape_of(arg) for arg in call.args[: places + 1])
        if data is None or None in others:
            return
        indices = others[0]
        assert indices is not None
        for axis, (size, count) in enumerate(zip(data, indices, strict=True)):
            if axis != int(call.attrs.axis) % len(data):
                require(size, ">=", count, f"has {{right}} places along axis {axis}, of size {{left}}")
        for axis, (count, update) in enumerate(zip(indices, others[-1] or (), strict=True)):
            require(update, "==", count, f"has {{right}} places and {{left}} updates along axis {axis}")

    return contract


def _quantization(call: Any, require: Require) -> None:
    data, scale, zero = map(shape_of, call.args[:3])
    for each in (scale, zero):
        if data and each and each != [1]:
            axis = int(call.attrs.axis) % len(data)
            require(data[axis], "==", each[0], f"has scales for {{right}} along axis {axis}, of size {{left}}")


def _batch_norm(call: Any, require: Require) -> None:
    data, *others = map(shape_of, call.args)
    for each in others:
        if data and each:
            require(data[int(call.attrs.axis)], "==", each[0], "has {left} channels and statistics for {right}")


def _scatter_nd(call: Any, require: Require) -> None:
    """`updates` has the axes of `indices` but the last, and those of the data that are not indexed."""
    data, indices, updates = map(shape_of, call.args[:3])
    if data and indices and updates is not None and isinstance(indices[-1], int):
        wanted = [*indices[:-1], *data[indices[-1] :]]
        for axis, (have, want) in enumerate(zip(updates, wanted, strict=False)):
            require(want, "==", have, f"has updates of size {{right}} on axis {axis} where {{left}} is updated")


_CONTRACTS: dict[str, Callable[[Any, Require], None]] = {
    "quantize": _quantization,
    "dequantize": _quantization,
    "nn.batch_norm": _batch_norm,
    "scatter_nd": _scatter_nd,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "matmul": _matmul,
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), _convolution),
    "nn.conv2d_transpose": _transposed,
    "strided_slice": _strided_slice,
    "topk": _topk,
    "gather_elements": _within(1),
    "scatter_elements": _within(2),
}
