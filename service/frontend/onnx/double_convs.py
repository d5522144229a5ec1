"""Convolutions of any number of axes as sums of matrix products over the places of their kernel, in numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["conv", "conv_transpose"]

Array = np.ndarray[Any, Any]


def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: bytes = b"NOTSET",
    kernel_shape: Sequence[int] = (),
) -> Array:
    """Return ONNX's Conv: `y[n, o, p] = b[o] + sum over i, k of w[o, i, k] x[n, i, strides p + dilations k - pads]`."""
    del kernel_shape  # w's own
    spatial = w.ndim - 2
    strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
    reach = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], dilations, strict=True)]
    low, high = _pads(x.shape[2:], reach, strides, pads, auto_pad)
    x = np.pad(x, [(0, 0), (0, 0), *zip(low, high, strict=True)])
    out = [(size - far) // step + 1 for size, far, step in zip(x.shape[2:], reach, strides, strict=True)]
    y = np.zeros((len(x), group, w.shape[0] // group, math.prod(out)), x.dtype)
    for at in _places(w):
        window = x[_behind(_steps(at, out, strides, dilations))]
        y += _of(w, at, group) @ window.reshape(len(x), group, x.shape[1] // group, -1)
    return _biased(y.reshape(len(x), w.shape[0], *out), b)


def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    auto_pad: bytes = b"NOTSET",
    kernel_shape: Sequence[int] = (),
) -> Array:
    """Return ONNX's ConvTranspose: what `conv` reads of y for a place of x is added there."""
    del kernel_shape
    spatial = w.ndim - 2
    strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
    more = output_padding or [0] * spatial
    sizes = zip(x.shape[2:], w.shape[2:], strides, dilations, more, strict=True)
    whole = [step * (size - 1) + (kernel - 1) * apart + 1 + extra for size, kernel, step, apart, extra in sizes]
    if not output_shape and auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
        output_shape = [size * step for size, step in zip(x.shape[2:], strides, strict=True)]
    if output_shape:
        total = [max(size - wanted, 0) for size, wanted in zip(whole, output_shape, strict=True)]
        low, high = _halves(total, upper=auto_pad == b"SAME_UPPER")
        whole = [max(sizes) for sizes in zip(whole, output_shape, strict=True)]
    else:
        low, high = list(pads[:spatial]) or [0] * spatial, list(pads[spatial:]) or [0] * spatial
    y = np.zeros((len(x), group * w.shape[1], *whole), x.dtype)
    given = x.reshape(len(x), group, x.shape[1] // group, -1)
    for at in _places(w):
        kernel = w[_behind(at)].reshape(group, -1, w.shape[1]).swapaxes(1, 2)
        part = (kernel @ given).reshape(len(x), -1, *x.shape[2:])
        y[_behind(_steps(at, x.shape[2:], strides, dilations))] += part
    kept = [slice(start, size - end) for start, end, size in zip(low, high, whole, strict=True)]
    return _biased(y[_behind(kept)], b)


def _behind(places: Sequence[int | slice]) -> Any:
    """The index of these along the last axes."""
    return (..., *places)


def _places(w: Array) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, w.shape[2:]))


def _of(w: Array, at: tuple[int, ...], group: int) -> Array:
    """The matrices of one place of the kernel, one a group."""
    found: Array = w[_behind(at)]
    return found.reshape(group, w.shape[0] // group, w.shape[1])


def _steps(at: Sequence[int], out: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[slice]:
    starts = [place * apart for place, apart in zip(at, dilations, strict=True)]
    return [slice(s, s + step * (size - 1) + 1, step) for s, size, step in zip(starts, out, strides, strict=True)]


def _pads(
    sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int], pads: Sequence[int], auto_pad: bytes
) -> tuple[list[int], list[int]]:
    if auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
        steps = zip(sizes, reach, strides, strict=True)
        total = [max((-(-size // step) - 1) * step + far - size, 0) for size, far, step in steps]
        return _halves(total, upper=auto_pad == b"SAME_UPPER")
    nothing = [0] * len(sizes)
    return list(pads[: len(sizes)]) or nothing, list(pads[len(sizes) :]) or nothing


def _halves(total: Sequence[int], *, upper: bool) -> tuple[list[int], list[int]]:
    """What is before and behind; of an odd number the larger half is behind where it is `upper`."""
    less, more = [each // 2 for each in total], [each - each // 2 for each in total]
    return (less, more) if upper else (more, less)


def _biased(y: Array, b: Array | None) -> Array:
    return y if b is None else y + b.reshape(-1, *[1] * (y.ndim - 2))
