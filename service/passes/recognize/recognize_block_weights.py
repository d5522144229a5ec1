"""Products with constant weights that are quantized keep the weights so, where a template computes from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.block_weights import BlockWeights, block_weights, emit_block_weights
from relaxc.service.passes.common.constants import Array
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, rows_of
from relaxc.service.passes.recognize.recognize_integer_products import evaluated
from relaxc.service.passes.simplify.fold_constants import COMPUTE

__all__ = ["RecognizeBlockWeights"]

_MOVES = ("relax.reshape", "relax.permute_dims")

_CODES = {"uint8": 0, "int8": 128}
"""What is added to a byte to make it a code; signed ones of 4 bits get 8."""

Takes = Callable[[int, BlockWeights], bool]


@tvm.transform.module_pass(opt_level=0, name="RecognizeBlockWeights")
class RecognizeBlockWeights:
    """`A @ move(dequantize(b, s, z))` of constants keeps the codes, as `passes.common.block_weights` has them.

    `move` are reshapes and transposes: so MatMulNBits, DequantizeLinear with and without blocks, and torch's
    `quantized_decomposed` come. A block is as long as scale and zero point stay the same along the depth. `takes` says
    of the rows of A and the weights whether there is a template for them; other weights are dequantized when constants
    are folded. Not of products whose A is quantized too, which are products of bytes by now.
    """

    def __init__(self, takes: Takes) -> None:
        self.takes = takes

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with codes in the place of weights; the same object if it has none."""
        return rewrite_calls(module, {"matmul": partial(_product, takes=self.takes)})


def _product(call: relax.Call, scope: Scope, *, takes: Takes) -> relax.Expr | None:
    data, right = call.args
    rows = rows_of(data)
    dtypes = {str(each.ty.dtype) for each in (call, data, right)}
    if rows is None or dtypes != {"float32"} or right.ty.ndim != 2:
        return None
    if block_weights(right, scope) is not None:
        return None
    found = _found(right, scope)
    if found is None or not takes(rows, found):
        return None
    return relax.op.matmul(data, emit_block_weights(found, scope))


def _found(expr: relax.Expr, scope: Scope) -> BlockWeights | None:
    """The weights that `expr` dequantizes; None where it does not, or not in blocks of the depth."""
    moves: list[relax.Call] = []
    value = scope.value(expr)
    while op_name(value) in _MOVES:
        moves.append(value)
        value = scope.value(value.args[0])
    if op_name(value) != "relax.dequantize" or str(value.args[0].ty.dtype) not in _CODES:
        return None
    data, scale, zero = (evaluated(arg, scope) for arg in value.args)
    if data is None or scale is None or zero is None or not data.size or scale.dtype != np.float32:
        return None
    axis = int(value.attrs.axis) % max(1, data.ndim)
    along = [-1 if at == axis else 1 for at in range(data.ndim)]
    places = np.broadcast_to(np.arange(data.shape[axis], dtype=np.int32).reshape(along), data.shape)
    data, places = _moved(moves, data), _moved(moves, places)
    return _in_blocks(data, places, scale.reshape(-1), zero.reshape(-1).astype(np.int32))


def _moved(moves: list[relax.Call], array: Array) -> Array:
    """An array after the moves, of which the last is first."""
    for move in reversed(moves):
        moved = COMPUTE[op_name(move).removeprefix("relax.")](move, [array])
        assert moved is not None, "a move of data is always known"
        array = moved
    return array


def _in_blocks(data: Array, places: Array, scale: Array, zero: Array) -> BlockWeights | None:
    """The weights `data[K, N]`, where `places[k, n]` are the indices into the scales and zero points."""
    codes, zeros = _codes(data.T, zero)
    if codes is None or zeros is None:
        return None
    depth = codes.shape[1]
    if scale.size == 1 and zeros.size == 1:
        scales = np.full((codes.shape[0], 1), scale[0], np.float32)
        return BlockWeights(codes, scales, zeros.reshape(1, 1))
    places = places.T
    changes = np.flatnonzero(np.diff(places[0]))
    block = int(changes[0]) + 1 if changes.size else depth
    if depth % block:
        return None
    starts = np.ascontiguousarray(places[:, ::block])
    if not (places.reshape(*starts.shape, block) == starts[:, :, None]).all():
        return None
    scales = np.broadcast_to(scale, 1 + places.max(initial=0))[starts] if scale.size == 1 else scale[starts]
    zeros = zeros[:1].reshape(1, 1) if (zeros == zeros[0]).all() else zeros[starts]
    return BlockWeights(codes, scales.astype(np.float32), zeros[:1, :1] if zeros.size == 1 else zeros)


def _codes(data: Array, zero: Array) -> tuple[Array | None, Array | None]:
    """Bytes and their zero points as codes from 0 on, of 4 bits where they fit; None where a zero point is no code."""
    is_signed = data.dtype == np.int8
    few = is_signed and data.min() >= -8 and data.max() < 8 and zero.min() >= -8 and zero.max() < 8
    added = 8 if few else _CODES[str(data.dtype)]
    zeros = zero + added
    if zeros.min() < 0 or zeros.max() > 255:
        return None, None
    return np.ascontiguousarray((data.astype(np.int16) + added).astype(np.uint8)), zeros.astype(np.uint8)
