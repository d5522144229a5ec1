"""An LSTM over many steps, or a symbolic number of them: one loop nest whose threads share the hidden units.

A step reads all recurrent weights, so it is bound by the cache that holds them: 256 units have 1 MiB of fp32, of which
each of two cores reads its half from its own L2. The weights are packed by `BLOCK` units, `R[block, k, gate, unit]`,
so that a task reads them in order with a cache line's units of all gates in registers, and applies the gates to those.
A layer of 64 such steps takes 0.35 ms; its halves of 512 KiB, at the speed of L2, would take 0.18.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

__all__ = ["BLOCK", "lstm"]

BLOCK = 16
"""Hidden units of a task: a cache line of fp32, whole vectors on every machine."""

WORTH_THREADS = 64 << 10
"""Bytes of weights from which a step is worth waking threads for, which takes a microsecond or two."""


def lstm(hidden: int, backwards: bool, dtype: str) -> Any:
    """Return a PrimFunc `(XW, R, B, H0, C0) -> (Y, H, C)` for gates in the order input, output, forget, cell.

    `R[j / BLOCK, k, gate, j % BLOCK]` has zeros past the last unit; the others are as in ONNX.
    """
    blocks = -(-hidden // BLOCK)
    gates, zero = 4 * hidden, tirx.const(0, dtype)
    units = T.parallel if 4 * gates * hidden >= WORTH_THREADS else T.serial

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def scan(
        xw: T.handle, r: T.handle, bias: T.handle, h0: T.handle, c0: T.handle, y: T.handle, h: T.handle, c: T.handle
    ) -> None:
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        steps, batch = T.int64(), T.int64()
        XW = T.match_buffer(xw, (steps, batch, gates), dtype)
        R = T.match_buffer(r, (blocks, hidden, 4, BLOCK), dtype)
        B = T.match_buffer(bias, (gates,), dtype)
        H0, C0 = T.match_buffer(h0, (batch, hidden), dtype), T.match_buffer(c0, (batch, hidden), dtype)
        Y = T.match_buffer(y, (steps, batch, hidden), dtype)
        H, C = T.match_buffer(h, (batch, hidden), dtype), T.match_buffer(c, (batch, hidden), dtype)
        # One state is read by all tasks while each writes its units of the other.
        state = T.sblock_alloc_buffer((2, batch, hidden), dtype)
        total = T.sblock_alloc_buffer((4, BLOCK), dtype, scope="local")
        for b, j in T.grid(batch, hidden):
            state[0, b, j] = H0[b, j]
            C[b, j] = C0[b, j]
        for step in T.serial(steps):
            for block in units(blocks):
                for b in T.serial(batch):
                    for gate in T.unroll(4):
                        for lane in T.vectorized(BLOCK):
                            total[gate, lane] = zero
                    for k in T.serial(hidden):
                        for gate in T.unroll(4):
                            for lane in T.vectorized(BLOCK):
                                total[gate, lane] = total[gate, lane] + state[step % 2, b, k] * R[block, k, gate, lane]
                    for gate in T.unroll(4):
                        for lane in T.vectorized(BLOCK):
                            if block * BLOCK + lane < hidden:
                                total[gate, lane] = (
                                    total[gate, lane]
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
                            state[(step + 1) % 2, b, block * BLOCK + lane] = T.sigmoid(total[1, lane]) * T.tanh(
                                C[b, block * BLOCK + lane]
                            )
                    for lane in T.vectorized(BLOCK):
                        if block * BLOCK + lane < hidden:
                            Y[T.if_then_else(backwards, steps - 1 - step, step), b, block * BLOCK + lane] = state[
                                (step + 1) % 2, b, block * BLOCK + lane
                            ]
        for b, j in T.grid(batch, hidden):
            H[b, j] = state[steps % 2, b, j]

    return scan
