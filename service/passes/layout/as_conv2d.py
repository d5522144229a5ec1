"""Convolutions of any rank, transposed, grouped, of any number of channels, as dense ones of images."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from math import ceil, prod
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax, te, tirx

from relaxc.schedules.cuda.common.sizes import guess
from relaxc.schedules.cuda.conv.compute import VECTOR
from relaxc.service.passes.common.constants import Array, constant
from relaxc.service.passes.common.rewrite import Rule, Scope, dims_of, rewrite_calls
from relaxc.service.passes.precision.dtypes import LOW, is_low

__all__ = ["AsConv2d"]

_OPS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_MOST_DENSE_FLOPS = 4e10
"""With zeros in the place of what other groups have: a tenth of a millisecond of tensor cores."""
_MOST_DENSE = 1 << 22
"""Elements of a weight with zeros."""
_MOST_PARTS = 16
_OPAQUE = 8
"""TVM's pattern of what is fused with nothing: each element is read under several taps, and made once."""
_FEW_TAPS = 8
"""Taps of a row of a kernel; an image of fewer channels than a vector has is read by rows (`nhwc_conv2d`)."""


@tvm.transform.module_pass(opt_level=0, name="AsConv2d")
class AsConv2d:
    """What has no template becomes what has one: a dense conv2d of channels in multiples of 8.

    - `conv1d(x[N, C, W]) → conv2d(x[N, C, 1, W])`;
    - `conv3d`: the slices of the image under the taps of the depth are channels, and each depth an image;
    - a transposed convolution by strides s: a convolution whose channels are s * s neighbours of the result, the
      sub-pixels (Shi et al., 'Real-time single image and video super-resolution', 2016);
    - groups: zeros in the weight for the channels of others, where that is little arithmetic;
    - channels up to the next multiple of 8, with zeros.

    Of 16-bit values, or of `taken` dtypes, with constant weights; the batch may be known at the call alone, and lines
    and columns where they stay as they are. fp32 stays where a zero in a weight would be multiplied by a value that the
    model does not read: that may be infinite.
    """

    def __init__(self, taken: Collection[str] = LOW) -> None:
        self._rules = {name: partial(_taken, rule=rule, taken=frozenset(taken)) for name, rule in RULES.items()}

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with such convolutions; the same object if it has none."""
        return rewrite_calls(module, self._rules)


def _taken(call: relax.Call, scope: Scope, *, rule: Rule, taken: frozenset[str]) -> relax.Expr | None:
    return rule(call, scope) if str(call.args[0].ty.dtype) in taken else None


def _operands(
    call: relax.Call, scope: Scope, *, any_places: bool = False
) -> tuple[tuple[Any, ...], Array, tuple[Any, ...]] | None:
    """The shape of the data, the weight and the shape of the result of what may be rewritten.

    The batch may be known at the call alone; with `any_places` all but the channels.
    """
    data, weight = call.args
    shape, array, made = dims_of(data), scope.constant(weight), dims_of(call)
    plain = str(call.attrs.data_layout).startswith("NC") and str(call.attrs.out_layout or "NC").startswith("NC")
    if shape is None or array is None or made is None or not plain:
        return None
    needed = [shape[1], made[1]] if any_places else [*shape[1:], *made[1:]]
    if not all(isinstance(size, int) for size in needed) or any(isinstance(size, int) and not size for size in made):
        return None
    return shape, array, made


def _is_pixel(made: Sequence[Any]) -> bool:
    return all(isinstance(size, int) and size == 1 for size in made[2:])


def _ints(values: Sequence[Any]) -> list[int]:
    return [int(value) for value in values]


def _conv(scope: Scope, data: relax.Expr, weight: Array, like: relax.Call, **attributes: Any) -> relax.Var:
    """A convolution of the weight's rank, with the result's dtype of `like`."""
    made = _OPS[weight.ndim - 2](data, constant(weight), **attributes, out_dtype=str(like.ty.dtype))
    return scope.emit(made)


def _conv1d(call: relax.Call, scope: Scope) -> relax.Expr | None:
    found = _operands(call, scope, any_places=True)
    if found is None:
        return None
    (n, c, width), weight, made = found
    left, right = _ints(call.attrs.padding)
    image = scope.emit(relax.op.reshape(call.args[0], (n, c, 1, width)))
    result = _conv(
        scope, image, weight[:, :, None], call, strides=[1, *_ints(call.attrs.strides)], padding=[0, left, 0, right],
        dilation=[1, *_ints(call.attrs.dilation)], groups=int(call.attrs.groups),
    )  # fmt: skip
    return relax.op.reshape(result, made)


def _conv2d(call: relax.Call, scope: Scope) -> relax.Expr | None:
    found = _operands(call, scope, any_places=True)
    if found is None or str(call.attrs.kernel_layout) != "OIHW":
        return None
    (_, c, *_), weight, made = found
    if int(call.attrs.groups) > 1:
        return _of_groups(call, scope, weight, c, made)
    filters, _, _, across = weight.shape
    by_rows = c < VECTOR and across <= _FEW_TAPS and int(call.attrs.dilation[1]) == 1
    more, new = (0 if by_rows or _is_of_patches(call, weight) else -c % VECTOR), -filters % VECTOR
    if not (more or new) or _is_pixel(made):
        return None
    data = call.args[0]
    if more:
        data = scope.emit(relax.op.nn.pad(data, [0, 0, 0, more, 0, 0, 0, 0]))
    weight = np.pad(weight, ((0, new), (0, more), (0, 0), (0, 0)))
    result = _conv(scope, data, weight, call, **_same(call))
    return relax.op.strided_slice(result, [1], [0], [filters]) if new else result


def _is_of_patches(call: relax.Call, weight: Array) -> bool:
    """Whether windows are beside each other: a product of patches (`nhwc_conv2d`), its columns in multiples of 8."""
    same = _same(call)
    beside = same["strides"] == list(weight.shape[2:]) and not any(same["padding"]) and max(same["dilation"]) == 1
    return beside and weight.shape[3] > _FEW_TAPS and prod(weight.shape[1:]) % VECTOR == 0


def _same(call: relax.Call) -> dict[str, Any]:
    attrs = call.attrs
    return {name: _ints(getattr(attrs, name)) for name in ("strides", "padding", "dilation")}


def _of_groups(
    call: relax.Call, scope: Scope, weight: Array, channels: int, made: tuple[Any, ...]
) -> relax.Expr | None:
    """Dense, or some groups at a time where zeros would be most of a lot; not where each channel is a group."""
    groups, (filters, depth, *kernel) = int(call.attrs.groups), weight.shape
    flops = 2.0 * prod(map(guess, made)) * channels * prod(kernel)
    if (depth == 1 and filters == groups) or _is_pixel(made) or not is_low(call.args[0]):
        return None
    fitting = [
        parts
        for parts in range(1, _MOST_PARTS + 1)
        if groups % parts == 0
        and flops / parts <= _MOST_DENSE_FLOPS
        and filters * channels * prod(kernel) / parts <= _MOST_DENSE
    ]
    if not fitting:
        return None
    parts = fitting[0]
    wide, deep = filters // parts, channels // parts
    results = []
    for part in range(parts):
        dense = np.zeros((wide, deep, *kernel), weight.dtype)
        for group in range(groups // parts):
            rows = slice(group * (filters // groups), (group + 1) * (filters // groups))
            dense[rows, group * depth : (group + 1) * depth] = weight[part * wide :][rows]
        first = part * deep
        data = call.args[0] if parts == 1 else relax.op.strided_slice(call.args[0], [1], [first], [first + deep])
        data = data if parts == 1 else scope.emit(data)
        results.append(_conv(scope, data, dense, call, **_same(call)))
    return results[0] if parts == 1 else relax.op.concat(results, 1)


def _conv3d(call: relax.Call, scope: Scope) -> relax.Expr | None:
    found = _operands(call, scope)
    if found is None:
        return None
    shape, weight, made = found
    n, c, deep, *_ = shape
    if int(call.attrs.groups) > 1:
        return _of_groups(call, scope, weight, c, made)
    front, top, left, _, bottom, right = _ints(call.attrs.padding)
    (stride, *strides), (step, *dilation) = _ints(call.attrs.strides), _ints(call.attrs.dilation)
    filters, _, taps, *kernel = weight.shape
    images, low, sides = made[2], str(call.args[0].ty.dtype), shape[3:]
    last = scope.emit(relax.op.permute_dims(call.args[0], [0, 2, 3, 4, 1]))
    if (taps, stride, front, images) != (1, 1, 0, deep):
        under = partial(depths, taps=taps, stride=stride, step=step, front=front, images=images)
        last = scope.emit_te(under, last, name="depths", attrs={"op_pattern": _OPAQUE})
    flat = scope.emit(relax.op.reshape(last, (n * images, *sides, taps * c)))
    flat = scope.emit(relax.op.permute_dims(flat, [0, 3, 1, 2]))
    packed = np.ascontiguousarray(weight.transpose(0, 2, 1, 3, 4)).reshape(filters, taps * c, *kernel)
    padding = [top, left, bottom, right]
    result = _conv(scope, flat, packed, call, strides=strides, padding=padding, dilation=dilation)
    turned = scope.emit(relax.op.permute_dims(_rounded(scope, result, low), [0, 2, 3, 1]))
    whole = scope.emit(relax.op.reshape(turned, (n, images, *made[3:], filters)))
    return relax.op.astype(scope.emit(relax.op.permute_dims(whole, [0, 4, 1, 2, 3])), str(call.ty.dtype))


def depths(image: te.Tensor, *, taps: int, stride: int, step: int, front: int, images: int) -> te.Tensor:
    """Compute `C[n, z, y, x, t * channels + c] = A[n, z * stride + t * step - front, y, x, c]`, zero outside of A."""
    n, (deep, height, width, channels) = image.shape[0], map(int, image.shape[1:])

    def value(i: Any, z: Any, y: Any, x: Any, k: Any) -> Any:
        at = z * stride + k // channels * step - front
        inside = tirx.all(at >= 0, at < deep)
        return tirx.if_then_else(inside, image[i, at, y, x, k % channels], tirx.const(0, image.dtype))

    return te.compute((n, images, height, width, taps * channels), value, name="depths")


def _rounded(scope: Scope, value: relax.Var, low: str) -> relax.Var:
    """In 16 bits, as the model has it in memory: what follows writes it once more."""
    return value if str(value.ty.dtype) == low else scope.emit(relax.op.astype(value, low))


def _transposed(call: relax.Call, scope: Scope) -> relax.Expr | None:
    found = _operands(call, scope)
    attrs = call.attrs
    if found is None or int(attrs.groups) != 1 or any(step != 1 for step in _ints(attrs.dilation)):
        return None
    (n, _, *_), weight, made = found
    given, filters, *kernel = weight.shape
    rank, strides, low = len(kernel), _ints(attrs.strides), str(call.args[0].ty.dtype)
    before = _ints(attrs.padding)[:rank]
    if not is_low(call.args[0]) and any(size % stride for size, stride in zip(kernel, strides, strict=True)):
        return None  # zeros fill the kernel up
    taps = [ceil(size / stride) for size, stride in zip(kernel, strides, strict=True)]
    shape = found[0]
    places = [size + tap - 1 for size, tap in zip(shape[2:], taps, strict=True)]
    whole = [place * stride for place, stride in zip(places, strides, strict=True)]
    if any(pad + size > full for pad, size, full in zip(before, made[2:], whole, strict=True)):
        return None
    packed = _sub_pixels(weight, taps, strides).reshape(prod(strides) * filters, given, *taps)
    padding = [tap - 1 for tap in taps] * 2
    result = _rounded(scope, _conv(scope, call.args[0], packed, call, padding=padding), low)
    parts = scope.emit(relax.op.reshape(result, (n, *strides, filters, *places)))
    order = [0, 1 + rank, *(axis for i in range(rank) for axis in (2 + rank + i, 1 + i))]
    joined = scope.emit(relax.op.reshape(scope.emit(relax.op.permute_dims(parts, order)), (n, filters, *whole)))
    if list(made[2:]) != whole:
        axes = list(range(2, 2 + rank))
        ends = [pad + size for pad, size in zip(before, made[2:], strict=True)]
        joined = scope.emit(relax.op.strided_slice(joined, axes, before, ends))
    return relax.op.astype(joined, str(call.ty.dtype))


def _sub_pixels(weight: Array, taps: Sequence[int], strides: Sequence[int]) -> Array:
    """`w'[r…, o, i, t…] = w[i, o, (taps - 1 - t) * stride + r…]`, zeros behind the kernel."""
    given, filters, *kernel = weight.shape
    rank = len(kernel)
    more = [tap * stride - size for tap, stride, size in zip(taps, strides, kernel, strict=True)]
    padded = np.pad(weight, ((0, 0), (0, 0), *((0, each) for each in more)))
    parts = padded.reshape(given, filters, *(n for pair in zip(taps, strides, strict=True) for n in pair))
    parts = np.flip(parts, tuple(range(2, 2 + 2 * rank, 2)))
    return np.ascontiguousarray(parts.transpose(*range(3, 3 + 2 * rank, 2), 1, 0, *range(2, 2 + 2 * rank, 2)))


RULES: dict[str, Rule] = {
    "nn.conv1d": _conv1d,
    "nn.conv2d": _conv2d,
    "nn.conv3d": _conv3d,
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), _transposed),
}
