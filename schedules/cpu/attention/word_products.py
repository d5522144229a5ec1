"""Both products of attention on pairs of 16 bits: by tile registers (AMX), or by an instruction on vectors."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from relaxc.schedules.cpu.attention.word_exponential import CODE, exponential
from relaxc.schedules.cpu.attention.words import PAIR
from relaxc.schedules.cpu.common.dot_product import PAIRED
from relaxc.schedules.cpu.common.matrix_code import configuration, declarations, product, release, rows_by_panel
from relaxc.schedules.cpu.common.register_tile import unrolled_steps
from relaxc.schedules.dots import Dot
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import (
    block,
    buffer,
    call,
    loop,
    of_whole,
    ramp,
    sequence,
    store,
    unrolled,
    with_code,
)
from relaxc.schedules.ir.types import Buffer, Expr, Stmt

__all__ = ["ByTiles", "ByVectors"]

Left = Callable[[Expr | int, Expr | int], Expr]


class _Product:
    """What both share: the exponential of the softmax between the products; `fast` is whether the CPU has ours."""

    def __init__(self, dot: Dot, *, fast: bool) -> None:
        self.dot, self.fast = dot, fast

    def exponential(self, value: Expr) -> Expr:
        """See `Product`."""
        return exponential(value) if self.fast else tirx.exp(value)

    def around(self, task: Stmt) -> Stmt:
        """Return a task with what must be done before it and behind."""
        return task

    def with_code(self, body: Stmt) -> Stmt:
        """Return the loop of tasks with what they call; what the lowering brings is not among that."""
        code = (CODE if self.fast else "") + self._code()
        return with_code(code, body) if code else body

    def _code(self) -> str:
        return ""


class ByTiles(_Product):
    """Calls of products on tile registers, `matrix` of them down, and their code by name."""

    def __init__(self, dot: Dot, matrix: int, *, fast: bool) -> None:
        super().__init__(dot, fast=fast)
        self.matrix = matrix
        self.code: dict[str, str] = {}

    def sums(self, c: Buffer, first: Expr, rows: int, left: Left, b: Buffer) -> Stmt:
        """See `Product`: all registers are full."""
        assert rows == self.matrix * self.dot.m, rows
        words, span = (int(tir.as_int(size) or 0) for size in b.shape)
        across = span // self.dot.n
        shape, walk = (self.matrix, across), rows_by_panel(words // (self.dot.k // PAIR), across)
        start = tir.index_const(0)
        of_rows = [left(i * self.dot.m, 0) for i in range(self.matrix)]

        def called(c: Buffer, b: Buffer, a: Buffer) -> Stmt:
            elements = [c[first, start], b[start, start], *(a[tuple(load.indices)] for load in of_rows)]
            return self._one(*product(self.dot, shape, walk, self.dot.m), *map(tirx.address_of, elements))

        return of_whole((c, b, of_rows[0].source), called)

    def around(self, task: Stmt) -> Stmt:
        """Return a task with its registers configured and released."""
        begin = self._one(*configuration((self.matrix, 1), [self.dot.m] * self.matrix))
        return sequence(begin, task, self._one(*release()))

    def _code(self) -> str:
        return declarations(self.dot) + "".join(self.code.values())

    def _one(self, name: str, code: str, *arguments: Expr) -> Stmt:
        self.code[name] = code
        return call(name, *arguments)


class ByVectors(_Product):
    """Loops over register tiles; an instruction takes a pair of the left operand for all lanes."""

    def __init__(self, dot: Dot, dtype: str, *, fast: bool) -> None:
        super().__init__(dot, fast=fast)
        self.dtype = dtype

    def sums(self, c: Buffer, first: Expr, rows: int, left: Left, b: Buffer) -> Stmt:
        """See `Product`."""
        lanes = self.dot.n
        words, span = (int(tir.as_int(size) or 0) for size in b.shape)
        sums = buffer("sums", rows, span, dtype=self.dtype, scope="local")
        steps = unrolled_steps(words)
        of_sums = f"{self.dtype}x{lanes}"

        def each(body: Callable[[Expr, Expr], Stmt]) -> Stmt:
            return unrolled(rows, lambda i: unrolled(span // lanes, lambda v: body(i, ramp(v * lanes, lanes))))

        def add(i: Expr, m: Expr, k: Expr) -> Stmt:
            held = tirx.BufferLoad(sums, [i, m])
            right = tirx.BufferLoad(b, [k, m])
            pair = tirx.Broadcast(left(i, k), lanes)
            name = f"{PAIRED}{self.dot.intrinsic}"
            return store(sums, tirx.call_pure_extern(of_sums, name, held, pair, right), i, m)

        def depth(outer: Expr) -> Stmt:
            return unrolled(steps, lambda inner: each(lambda i, m: add(i, m, outer * steps + inner)))

        zero = tirx.Broadcast(tirx.const(0, self.dtype), lanes)
        body = sequence(
            each(lambda i, m: store(sums, zero, i, m)),
            loop(words // steps, depth, name="k"),
            each(lambda i, m: store(c, tirx.BufferLoad(sums, [i, m]), first + i, m)),
        )
        return block("attention_sums", body, [sums])
