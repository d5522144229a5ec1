"""What no suite of templates has: chains with broadcasts, reductions over any axes, grouped convolutions, spreads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.gpu.fused import one_prim_func

__all__ = ["BINARY", "UNARY", "PlainCase", "operands", "prim_func"]

UNARY = ("relu", "tanh", "sigmoid", "negative", "abs")
BINARY = ("add", "subtract", "multiply", "maximum")


@dataclass(frozen=True)
class PlainCase:
    """`kind` over `shape`, from `dtype` to `out`, computed in fp32.

    `chain`: `steps` on the first operand, in order; each of `BINARY` takes another operand, of the shape in `others`.
    `sum`, `mean`, `max`: the same, then reduced over `axes`. `softmax`, `norm` (of mean and variance) and `shares` (by
    one and the largest, a GRN's way): over `axes`, behind the steps. `grouped`: a convolution of an NCHW image in
    `axes[0]` groups, to `axes[1]` filters of `axes[2]` by `axes[2]`, its strides `axes[3]`. `spread`: NCHW to 8
    channels, with `axes` zeros left and right of a line.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str = "float16"
    out: str = "float16"
    steps: tuple[str, ...] = ()
    others: tuple[tuple[int, ...], ...] = ()
    axes: tuple[int, ...] = ()
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False
    target: str = "cuda-sm90"
    """Of `cuda-sm80` an H100 takes the PTX."""
    open: tuple[int, ...] = ()
    """Sizes that the kernel knows at the call alone."""


def operands(case: PlainCase) -> list[tuple[int, ...]]:
    """Return the shape of each operand, all of the case's dtype."""
    if case.kind == "grouped":
        groups, filters, kernel, _ = case.axes
        return [case.shape, (filters, case.shape[1] // groups, kernel, kernel)]
    return [case.shape, *case.others]


def prim_func(case: PlainCase) -> Any:
    """One PrimFunc of all that `case` computes."""
    if case.kind == "spread":
        return _spread(case)
    return one_prim_func(operands(case), case.dtype, partial(_value, case), case.open)


def _value(case: PlainCase, given: list[Any]) -> Any:
    from tvm.relax import op

    if case.kind == "grouped":
        groups, _, kernel, stride = case.axes
        value = op.nn.conv2d(*given, strides=stride, padding=kernel // 2, groups=groups, out_dtype="float32")
        return value if case.out == "float32" else op.astype(value, case.out)
    value, *rest = given if case.dtype == "float32" else [op.astype(x, "float32") for x in given]
    for step in case.steps:
        function = getattr(op, step, None) or getattr(op.nn, step)
        value = function(value, rest.pop(0)) if step in BINARY else function(value)
    if case.kind in ("softmax", "norm", "shares"):
        value = _broadcast(case, value)
    elif case.kind != "chain":
        value = getattr(op, case.kind)(value, list(case.axes))
    return value if case.out == "float32" else op.astype(value, case.out)


def _broadcast(case: PlainCase, value: Any) -> Any:
    """Sums that each element is combined with."""
    from tvm import relax
    from tvm.relax import op

    axes = list(case.axes)
    if case.kind == "norm":
        centred = op.subtract(value, op.mean(value, axes, keepdims=True))
        square = op.mean(op.multiply(centred, centred), axes, keepdims=True)
        return op.multiply(centred, op.rsqrt(op.add(square, relax.const(1e-3))))
    largest = op.max(value, axes, keepdims=True)
    if case.kind == "shares":
        return op.add(value, op.divide(value, op.add(op.abs(largest), relax.const(1.0))))
    powers = op.exp(op.subtract(value, largest))
    return op.divide(powers, op.sum(powers, axes, keepdims=True))


def _spread(case: PlainCase) -> Any:
    from tvm import te

    from relaxc.schedules.cuda.conv.compute import spread

    left, right = case.axes
    image = te.placeholder(case.shape, case.dtype, name="x")
    made = spread(image, left=left, width=left + case.shape[3] + right, dtype=case.out)
    return te.create_prim_func([image, made])
