"""`MatMulNBits` of ONNX Runtime (domain com.microsoft): a product with weights of 4 or 8 bits, quantized in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import relax

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import aligned, cast, is_float
from relaxc.service.frontend.onnx.ops.quantize import blocked
from relaxc.service.frontend.onnx.ops.registry import op

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_BITS = (4, 8)


@op("com.microsoft::MatMulNBits")
def _matmul(node: Node) -> Any:
    """`A @ W' + bias`, `W[n, k] = (B[n, k] - zero[n, k / block]) * scale[n, k / block]`; inputs A, B, scales, zeros,
    g_idx, bias. It is computed in float32, whatever `accuracy_level` allows.
    """
    dtype = node.dtype(0)
    weights = _weights(node)
    product = node.emit(relax.op.matmul(node.emit(cast(node.tensor(0), "float32")), weights))
    if node.has(5):
        product = node.emit(relax.op.add(*aligned(node, product, node.emit(cast(node.tensor(5), "float32")))))
    return cast(product, dtype)


def _weights(node: Node) -> Any:
    """`W'[k, n]` in float32, from codes that stay as they are."""
    depth, columns, block, bits = (int(node.attr(name, 0)) for name in ("K", "N", "block_size", "bits"))
    bits = bits or 4
    if bits not in _BITS:
        raise Refused(f"{bits} bits: there are kernels for 4 and 8")
    if block < 16 or block & (block - 1):
        raise Refused(f"blocks of {block}: they are powers of two from 16 on")
    if node.has(4):
        raise Refused("g_idx, an order of its own for the depth")
    if not all(node.is_known(index) for index in (1, 2)) or (node.has(3) and not node.is_known(3)):
        raise Refused("weights that are computed at run time")
    last = node.shape(0)[-1]
    if depth < 1 or columns < 1 or (isinstance(last, int) and last != depth):
        raise ModelMalformed(f"{node.name or node.op}: K is {depth} and N {columns}, A has {node.shape(0)}")
    blocks = -(-depth // block)
    codes = _unpacked(node, 1, columns * blocks, block, bits).reshape(columns, blocks * block)
    scales = _array(node, 2, columns * blocks).astype("float32").reshape(columns, blocks)
    zeros = _zeros(node, columns, blocks, bits)
    if zeros.dtype.kind == "f" or depth % block:
        whole = (codes.reshape(columns, blocks, block) - zeros.astype("float32")[..., None]) * scales[..., None]
        return relax.const(whole.reshape(columns, -1)[:, :depth].T.astype("float32").copy(), "float32")
    zero = relax.const(zeros.reshape(-1), "uint8") if zeros.size > 1 else relax.const(int(zeros[0, 0]), "uint8")
    return blocked(node, relax.const(codes, "uint8"), relax.const(scales, "float32"), zero, block, turned=True)


def _zeros(node: Node, columns: int, blocks: int, bits: int) -> Array:
    """The zero points `[N, blocks]`: packed as the codes are, or floats as they are; or one for all."""
    import numpy as np

    if not node.has(3):
        return np.full((1, 1), 1 << bits - 1, np.uint8)
    if is_float(node.known_dtype(3)):
        return _array(node, 3, columns * blocks).astype("float32").reshape(columns, blocks)
    return _unpacked(node, 3, columns, blocks, bits)


def _unpacked(node: Node, index: int, rows: int, count: int, bits: int) -> Array:
    """The codes `[rows, count]`, a byte each, of rows of whole bytes; the first code is in a byte's lowest bits."""
    import numpy as np

    packed = _array(node, index, rows * -(-count * bits // 8))
    if packed.dtype != np.uint8:
        raise ModelMalformed(f"{node.name or node.op}: input {index} is {packed.dtype}, not uint8")
    packed = packed.reshape(rows, -1, 1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    mask = np.uint8((1 << bits) - 1)
    return np.ascontiguousarray((packed >> shifts & mask).reshape(rows, -1)[:, :count])


def _array(node: Node, index: int, size: int) -> Array:
    """An input's array. Raise ModelMalformed where it has not `size` elements."""
    array: Array = node.inputs[index].array
    if array.size != size:
        what = node.name or node.op
        raise ModelMalformed(
            f"{what}: input {index} has {array.size} elements; K, N, bits and block_size ask for {size}"
        )
    return array
