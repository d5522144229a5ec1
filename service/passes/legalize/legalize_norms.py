"""Normalization and softmax to TIR: the variance is taken around the mean, the exponentials' sum in fp32.

TVM's own TE computes the variance as E[x²] - E[x]² in one pass. In fp32 this loses every digit of the
variance when the mean is a thousand times the deviation, so these take two passes over the data:
`v = Σ (x - m)² / n`, `y = (x - m) / sqrt(v + ε) · gamma + β`. Sums are in fp32 (fp64 for fp64 data).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from relaxc.schedules.ir.roles import SHIFT

__all__ = ["NORMS", "OUT_FUSABLE", "accumulator", "axes_of", "layer_norm"]

Key = Callable[[Sequence[Any]], Sequence[Any]]
"""From an element's indices to the indices of the group that it is normalized in."""

OUT_FUSABLE = {"op_pattern": 4}
"""kOutEWiseFusable: an elementwise epilogue may join, a producer may not (it would be computed three times)."""


def accumulator(dtype: str) -> str:
    """Return the float that is wide enough to compute with values of a dtype."""
    return "float64" if dtype == "float64" else "float32"


def _normalize(
    data: te.Tensor, axes: Sequence[int], epsilon: float, affine: Callable[..., Any], name: str
) -> te.Tensor:
    """`affine(indices, x̂)` of the data normalized over `axes`; the statistics keep the other axes, in order."""
    acc = accumulator(str(data.dtype))
    shape = list(data.shape)
    kept = [i for i in range(len(shape)) if i not in axes]
    rounded = tirx.const(float(np.dtype(acc).type(epsilon)), acc)  # as every format has it, so that kernels are equal
    count = math.prod((shape[i] for i in axes), start=tirx.const(1, "int64")).astype(acc)

    def reduce(term: Callable[[Sequence[Any], Sequence[Any]], Any], label: str) -> te.Tensor:
        over = [te.reduce_axis((0, shape[i]), f"k{i}") for i in axes]

        def body(*group: Any) -> Any:
            at = dict(zip(kept, group, strict=True)) | dict(zip(axes, over, strict=True))
            return te.sum(term([at[i] for i in range(len(shape))], group), axis=over)

        return te.compute([shape[i] for i in kept], body, name=label)

    total = reduce(lambda at, _: data(*at).astype(acc), f"{name}_sum")

    def centered(at: Sequence[Any], group: Sequence[Any]) -> Any:
        return data(*at).astype(acc) - total(*group) / count

    squares = reduce(lambda at, group: centered(at, group) * centered(at, group), f"{name}_squares")

    def output(*at: Any) -> Any:
        group = [at[i] for i in kept]
        scaled = centered(at, group) * tirx.rsqrt(squares(*group) / count + rounded)
        return affine(at, scaled).astype(str(data.dtype))

    return te.compute(shape, output, name=name)


def axes_of(call: relax.Call) -> list[int]:
    """Return the axes that a norm is over, counted from the first, in order."""
    rank = call.args[0].ty.ndim
    return sorted(int(axis) % rank for axis in call.attrs.axes)


def layer_norm(data: te.Tensor, gamma: te.Tensor, beta: te.Tensor, *, axes: Sequence[int], epsilon: float) -> te.Tensor:
    """Return the data normalized over `axes`, times gamma plus beta, which have those axes alone."""
    acc = accumulator(str(data.dtype))

    def affine(at: Sequence[Any], scaled: Any) -> Any:
        inner = [at[i] for i in axes]
        return scaled * gamma(*inner).astype(acc) + beta(*inner).astype(acc)

    return _normalize(data, axes, epsilon, affine, "layer_norm")


def _layer_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    compute = partial(layer_norm, axes=axes_of(call), epsilon=float(call.attrs.epsilon))
    return builder.call_te(compute, *call.args, primfunc_name_hint="layer_norm", primfunc_attrs=OUT_FUSABLE)


def _instance_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    channel = int(call.attrs.channel_axis) % call.args[0].ty.ndim

    def compute(data: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        acc = accumulator(str(data.dtype))

        def affine(at: Sequence[Any], scaled: Any) -> Any:
            return scaled * gamma(at[channel]).astype(acc) + beta(at[channel]).astype(acc)

        return _normalize(data, axes_of(call), float(call.attrs.epsilon), affine, "instance_norm")

    return builder.call_te(compute, *call.args, primfunc_name_hint="instance_norm", primfunc_attrs=OUT_FUSABLE)


def _group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Splits the channels into (group, channel in the group), normalizes over the second and `axes`, merges again."""
    channel = int(call.attrs.channel_axis) % call.args[0].ty.ndim
    groups = int(call.attrs.num_groups)
    data = call.args[0]
    sizes = list(data.ty.shape)
    width = tirx.floordiv(sizes[channel], groups)
    split = [*sizes[:channel], tirx.IntImm("int64", groups), width, *sizes[channel + 1 :]]
    axes = [channel + 1, *(axis + (axis > channel) for axis in axes_of(call) if axis != channel)]

    def compute(data: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        acc = accumulator(str(data.dtype))

        def affine(at: Sequence[Any], scaled: Any) -> Any:
            at_channel = at[channel] * width + at[channel + 1]
            return scaled * gamma(at_channel).astype(acc) + beta(at_channel).astype(acc)

        return _normalize(data, axes, float(call.attrs.epsilon), affine, "group_norm")

    grouped = builder.emit(relax.op.reshape(data, split))
    normalized = builder.emit(
        builder.call_te(compute, grouped, *call.args[1:], primfunc_name_hint="group_norm", primfunc_attrs=OUT_FUSABLE)
    )
    return relax.op.reshape(normalized, sizes)


def _rms_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """`x / √(Σ x² / n + ε) · gamma`: TVM's own, but of float64, which that rounds to float32."""
    if str(call.ty.dtype) != "float64":
        return call.op.get_attr("FLegalize")(builder, call)
    axes, epsilon = axes_of(call), tirx.const(float(call.attrs.epsilon), "float64")

    def compute(data: te.Tensor, gamma: te.Tensor) -> te.Tensor:
        kept = [i for i in range(len(data.shape)) if i not in axes]
        over = [te.reduce_axis((0, data.shape[i]), f"k{i}") for i in axes]
        count = math.prod((data.shape[i] for i in axes), start=tirx.const(1, "int64")).astype("float64")

        def square(*group: Any) -> Any:
            at = dict(zip(kept, group, strict=True)) | dict(zip(axes, over, strict=True))
            x = data(*(at[i] for i in range(len(data.shape))))
            return te.sum(x * x, axis=over)

        squares = te.compute([data.shape[i] for i in kept], square, name="rms_norm_squares")

        def output(*at: Any) -> Any:
            scale = tirx.rsqrt(squares(*(at[i] for i in kept)) / count + epsilon)
            return data(*at) * scale * gamma(*(at[i] for i in axes))

        return te.compute(data.shape, output, name="rms_norm")

    return builder.call_te(compute, *call.args, primfunc_name_hint="rms_norm", primfunc_attrs=OUT_FUSABLE)


def _softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """`exp(x - max) * (1 / Σ exp(x - max))`: one division a row, of a sum that is at least 1."""
    axis = int(call.attrs.axis) % call.args[0].ty.ndim

    def compute(data: te.Tensor) -> te.Tensor:
        acc, shape = accumulator(str(data.dtype)), list(data.shape)
        rows = [*shape[:axis], *shape[axis + 1 :]]

        def over(row: Sequence[Any], position: Any) -> list[Any]:
            return [*row[:axis], position, *row[axis:]]

        def row_of(at: Sequence[Any]) -> list[Any]:
            return [*at[:axis], *at[axis + 1 :]]

        across, along = (te.reduce_axis((0, shape[axis]), "k") for _ in range(2))
        top = te.compute(
            rows,
            lambda *row: te.max(data(*over(row, across)).astype(acc), axis=across),
            name="softmax_maxelem",
            attrs=SHIFT,
        )
        power = te.compute(shape, lambda *at: tirx.exp(data(*at).astype(acc) - top(*row_of(at))), name="softmax_exp")
        total = te.compute(rows, lambda *row: te.sum(power(*over(row, along)), axis=along), name="softmax_expsum")
        scale = te.compute(rows, lambda *row: tirx.const(1, acc) / total(*row), name="softmax_scale")
        return te.compute(
            shape, lambda *at: (power(*at) * scale(*row_of(at))).astype(str(data.dtype)), name="softmax_norm"
        )

    return builder.call_te(compute, *call.args, primfunc_name_hint="softmax", primfunc_attrs=OUT_FUSABLE)


NORMS: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.instance_norm": _instance_norm,
    "relax.nn.group_norm": _group_norm,
    "relax.nn.rms_norm": _rms_norm,
    "relax.nn.softmax": _softmax,
}
