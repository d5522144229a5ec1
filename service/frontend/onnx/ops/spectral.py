"""Fourier transforms of a known length, as products with cosines and sines; a windowed one is a convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import constant, permuted, reshaped
from relaxc.service.frontend.onnx.ops.registry import op

_LONGEST = 1 << 13
"""The most numbers that are transformed at once: the matrices have the square of it."""


def _waves(length: int, bins: int, *, inverse: bool = False) -> tuple[Any, Any]:
    """Cosines and sines `[n, k]`, so that `X[k] = sum over n of x[n] (cos[n, k] + i sin[n, k])`, in float64."""
    if length > _LONGEST:
        raise Refused(f"a transform of {length} numbers; the longest is {_LONGEST}")
    angle = 2 * np.pi * (np.outer(np.arange(length), np.arange(bins)) % length) / length
    scale = 1 / length if inverse else 1.0
    return np.cos(angle) * scale, np.sin(angle) * (scale if inverse else -scale)


@op("DFT")
def _dft(node: Node) -> Any:
    """Transform the numbers along an axis; the last axis has their real and imaginary parts."""
    x, shape, dtype = node.tensor(0), node.shape(0), node.dtype(0)
    axis = node.attr("axis", 1) if node.opset < 20 else int(node.scalar(2, "axis")) if node.has(2) else -2
    axis %= len(shape)
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if inverse and onesided:
        raise Refused("inverse=1 with onesided=1")
    length = int(node.scalar(1, "dft_length")) if node.has(1) else shape[axis]
    if not isinstance(length, int) or not isinstance(shape[axis], int) or shape[-1] not in (1, 2):
        raise Refused("a transform along an axis of symbolic size")
    bins = length // 2 + 1 if onesided else length
    cosines, sines = (each[: shape[axis]] for each in _waves(length, bins, inverse=inverse))
    order = [*(i for i in range(len(shape)) if i != axis), axis]  # the parts come before the numbers
    turned = permuted(node, x, order)
    if shape[axis] > length:
        turned = node.emit(relax.op.strided_slice(turned, [len(shape) - 1], [0], [length], [1], assume_inbound=True))
    rows = [size for i, size in enumerate(shape[:-1]) if i != axis]
    if shape[-1] == 1:
        weights = np.concatenate([cosines, sines], 1)
        flat = reshaped(node, turned, [*rows, len(cosines)])
    else:
        weights = np.block([[cosines, sines], [-sines, cosines]])
        flat = reshaped(node, turned, [*rows, 2 * len(cosines)])
    made = node.emit(relax.op.matmul(flat, constant(weights.astype(dtype))))
    parts = reshaped(node, made, [*rows, 2, bins])
    rank = len(shape)
    back = list(range(rank - 2))
    back.insert(axis, rank - 1)
    return permuted(node, parts, [*back, rank - 2])


@op("STFT")
def _stft(node: Node) -> Any:
    """Transform frames of a real signal in a window: a convolution whose filters are waves in that window."""
    shape, dtype = node.shape(0), node.dtype(0)
    if len(shape) == 3 and shape[2] != 1:
        raise Refused("a signal of complex numbers")
    step = int(node.scalar(1, "frame_step"))
    length = int(node.scalar(3, "frame_length")) if node.has(3) else node.shape(2)[0] if node.has(2) else 0
    if not isinstance(length, int) or length < 1:
        raise Refused("frames of unknown length")
    window = np.ones(length)
    if node.has(2):
        if not node.is_known(2):
            raise Refused("a window that is computed from the inputs' values")
        given = node.inputs[2].array.astype(np.float64)
        window = np.zeros(length)
        begin = (length - len(given)) // 2
        window[begin : begin + len(given)] = given
    bins = length // 2 + 1 if node.attr("onesided", 1) else length
    filters = [(wave * window[:, None]).T for wave in _waves(length, bins)]
    weights = constant(np.concatenate(filters)[:, None, :].astype(dtype))
    signal = reshaped(node, node.tensor(0), [shape[0], 1, shape[1]])
    made = node.emit(relax.op.nn.conv1d(signal, weights, strides=step))
    frames = node.shape_of(made)[2]
    parts = reshaped(node, made, [shape[0], 2, bins, frames])
    return permuted(node, parts, [0, 3, 2, 1])
