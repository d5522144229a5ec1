"""The LSTM of `lstm_scan` whose recurrent products are of codes: each step rounds the state to 8 bits by its own range.

Codes and weights are whole numbers in fp32, whose sums of up to 258 products of bytes are exact, as in integers.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from relaxc.service.frontend.onnx.ops.lstm_scan import BLOCK, WORTH_THREADS

__all__ = ["lstm"]


def lstm(hidden: int, backwards: bool) -> Any:
    """Return a PrimFunc `(XW, R, S, B, H0, C0) -> (Y, H, C)` as `lstm_scan.lstm` has it, with `S[gate, unit]` the scale
    of a column of codes.
    """
    blocks = -(-hidden // BLOCK)
    gates, zero, one, most = 4 * hidden, tirx.const(0, "float32"), tirx.const(1, "float32"), tirx.const(255, "float32")
    units = T.parallel if 4 * gates * hidden >= WORTH_THREADS else T.serial

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def scan(
        xw: T.handle,
        r: T.handle,
        s: T.handle,
        bias: T.handle,
        h0: T.handle,
        c0: T.handle,
        y: T.handle,
        h: T.handle,
        c: T.handle,
    ) -> None:
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        steps, batch = T.int64(), T.int64()
        XW = T.match_buffer(xw, (steps, batch, gates), "float32")
        R = T.match_buffer(r, (blocks, hidden, 4, BLOCK), "float32")
        S = T.match_buffer(s, (gates,), "float32")
        B = T.match_buffer(bias, (gates,), "float32")
        H0, C0 = T.match_buffer(h0, (batch, hidden), "float32"), T.match_buffer(c0, (batch, hidden), "float32")
        Y = T.match_buffer(y, (steps, batch, hidden), "float32")
        H, C = T.match_buffer(h, (batch, hidden), "float32"), T.match_buffer(c, (batch, hidden), "float32")
        codes = T.sblock_alloc_buffer((batch, hidden), "float32")
        # The range, the scale and the zero point of a step's codes.
        low, high = T.sblock_alloc_buffer((1,), "float32"), T.sblock_alloc_buffer((1,), "float32")
        scale, point = T.sblock_alloc_buffer((1,), "float32"), T.sblock_alloc_buffer((1,), "float32")
        total = T.sblock_alloc_buffer((4, BLOCK), "float32", scope="local")
        for b, j in T.grid(batch, hidden):
            H[b, j] = H0[b, j]
            C[b, j] = C0[b, j]
        for step in T.serial(steps):
            low[0] = zero
            high[0] = zero
            for b, j in T.grid(batch, hidden):
                low[0] = T.min(low[0], H[b, j])
                high[0] = T.max(high[0], H[b, j])
            scale[0] = T.if_then_else(low[0] == high[0], one, (high[0] - low[0]) / most)
            point[0] = T.nearbyint(T.max(T.min(zero - low[0] / scale[0], most), zero))
            for b, j in T.grid(batch, hidden):
                codes[b, j] = T.max(T.min(T.nearbyint(H[b, j] / scale[0]) + point[0], most), zero) - point[0]
            for block in units(blocks):
                for b in T.serial(batch):
                    for gate in T.unroll(4):
                        for lane in T.vectorized(BLOCK):
                            total[gate, lane] = zero
                    for k in T.serial(hidden):
                        for gate in T.unroll(4):
                            for lane in T.vectorized(BLOCK):
                                total[gate, lane] = total[gate, lane] + codes[b, k] * R[block, k, gate, lane]
                    for gate in T.unroll(4):
                        for lane in T.vectorized(BLOCK):
                            if block * BLOCK + lane < hidden:
                                total[gate, lane] = (
                                    total[gate, lane] * (scale[0] * S[gate * hidden + block * BLOCK + lane])
                                    + XW[
                                        T.if_then_else(backwards, steps - 1 - step, step),
                                        b,
                                        gate * hidden + block * BLOCK + lane,
                                    ]
                                    + B[gate * hidden + block * BLOCK + lane]
                                )
                    for lane in T.vectorized(BLOCK):
                        if block * BLOCK + lane < hidden:
                            C[b, block * BLOCK + lane] = T.sigmoid(total[2, lane]) * C[
                                b, block * BLOCK + lane
                            ] + T.sigmoid(total[0, lane]) * T.tanh(total[3, lane])
                    for lane in T.vectorized(BLOCK):
                        if block * BLOCK + lane < hidden:
                            H[b, block * BLOCK + lane] = T.sigmoid(total[1, lane]) * T.tanh(C[b, block * BLOCK + lane])
                    for lane in T.vectorized(BLOCK):
                        if block * BLOCK + lane < hidden:
                            Y[T.if_then_else(backwards, steps - 1 - step, step), b, block * BLOCK + lane] = H[
                                b, block * BLOCK + lane
                            ]

    return scan
