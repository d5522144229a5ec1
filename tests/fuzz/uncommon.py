"""How nodes are drawn of operators whose operands are sizes, places, boxes or signals."""

from __future__ import annotations

import numpy as np
import onnx

from tests.fuzz.pool import Pool
from tests.fuzz.rules import Drawn, NoDraw, rule
from tests.fuzz.values import DTYPES

__all__: list[str] = []

F32 = DTYPES["float32"]


@rule("BitCast")
def _bit_cast(pool: Pool) -> Drawn:
    value = pool.value(None)
    size = pool.dtype(value).itemsize
    others = [dtype for name, dtype in DTYPES.items() if dtype.itemsize == size and name != "bool"]
    return [value], {"to": int(onnx.helper.np_dtype_to_tensor_dtype(pool.choice(others)))}


@rule("Col2Im")
def _col2im(pool: Pool) -> Drawn:
    image = [pool.integer(2, 6) for _ in range(pool.choice((1, 2, 2)))]
    block = [pool.integer(1, min(3, size)) for size in image]
    strides, pads = [pool.integer(1, 2) for _ in image], [pool.integer(0, 1) for _ in image * 2]
    rank = len(image)
    steps = [
        (size + low + high - each) // stride + 1
        for size, low, high, each, stride in zip(image, pads[:rank], pads[rank:], block, strides, strict=True)
    ]
    shape = (pool.integer(1, 2), pool.integer(1, 3) * int(np.prod(block)), int(np.prod(steps)))
    operands = [pool.constant(np.array(each, np.int64)) for each in (image, block)]
    return [pool.made(shape, F32, ""), *operands], {"strides": strides, "pads": pads}


@rule("DeformConv")
def _deform_conv(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(4,))
    batch, channels, height, width = pool.shape(value)
    kernel = [pool.integer(1, min(3, size)) for size in (height, width)]
    out = [height - kernel[0] + 1, width - kernel[1] + 1]
    spread = pool.choice([each for each in (1, 2) if channels % each == 0])
    filters = pool.choice((1, 2, 4))
    taps = spread * kernel[0] * kernel[1]
    offsets = pool.rng.uniform(-2, 2, (batch, 2 * taps, *out)).astype(np.float32)
    inputs = [value, pool.constant_of((filters, channels, *kernel), F32), pool.constant(offsets)]
    if pool.chance(0.5):
        inputs.append(pool.constant_of((filters,), F32) if pool.chance(0.5) else "")
        inputs.append(pool.constant_of((batch, taps, *out), F32))
    return inputs, {"kernel_shape": kernel, "offset_group": spread, "pads": [0, 0, 0, 0]}


@rule("Det")
def _det(pool: Pool) -> Drawn:
    size = pool.integer(1, 5)
    return [pool.made((*pool.shape_drawn(1), size, size), DTYPES[pool.choice(("float32", "float64"))], "")], {}


@rule("TensorScatter")
def _tensor_scatter(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float16", "int64"), ranks=(3, 4))
    shape = list(pool.shape(value))
    axis = pool.integer(1, len(shape) - 1)
    room, mode = shape[axis], pool.choice(("linear", "circular"))
    shape[axis] = pool.integer(1, room)
    most = room - shape[axis] if mode == "linear" else room - 1
    starts = [pool.constant(pool.rng.integers(0, most + 1, shape[0]))] if pool.chance(0.8) else []
    return [value, pool.made(shape, pool.dtype(value), value), *starts], {"axis": axis, "mode": mode}


@rule("NonMaxSuppression")
def _suppression(pool: Pool) -> Drawn:
    images, classes, places = pool.integer(1, 2), pool.integer(1, 3), pool.integer(1, 9)
    corners = np.sort(pool.rng.uniform(0, 1, (images, places, 2, 2)), 2).reshape(images, places, 4)
    scores = pool.rng.permutation(images * classes * places).reshape(images, classes, places) / 100
    inputs = [pool.constant(each.astype(np.float32)) for each in (corners, scores)]
    inputs.append(pool.constant(np.array([pool.choice((1, 3, 10))], np.int64)))
    inputs += [pool.constant(np.array([each], np.float32)) for each in (pool.choice((0.2, 0.5)), 0.15)]
    return inputs[: pool.choice((3, 4, 5, 5))], {"center_point_box": pool.integer(0, 1)}


@rule("DFT")
def _dft(pool: Pool) -> Drawn:
    shape = (pool.integer(1, 2), pool.size(), pool.choice((1, 3)), pool.choice((1, 2)))
    shape = pool.choice((shape, (*shape[:2], shape[3])))
    axis = pool.integer(0, len(shape) - 2)
    parts = pool.choice(({}, {"inverse": 1}, {"onesided": 1} if shape[-1] == 1 else {}))
    value = pool.made(shape, DTYPES[pool.choice(("float32", "float64"))], "")
    length = pool.constant(np.array(pool.size(), np.int64)) if pool.chance(0.4) else ""
    if pool.opset >= 20:
        return [value, length, pool.constant(np.array(axis, np.int64))], parts
    return [value, length] if length else [value], {**parts, "axis": axis}


@rule("STFT")
def _stft(pool: Pool) -> Drawn:
    signal, frame = pool.integer(8, 24), pool.choice((4, 5, 8))
    if signal < frame:
        raise NoDraw
    value = pool.made((pool.integer(1, 2), signal, 1), F32, "")
    window = pool.constant(pool.rng.uniform(0.1, 1, frame).astype(np.float32)) if pool.chance(0.7) else ""
    step = pool.constant(np.array(pool.integer(1, 4), np.int64))
    length = [pool.constant(np.array(frame, np.int64))] if not window or pool.chance(0.5) else []
    return [value, step, window, *length], {"onesided": pool.integer(0, 1)}
