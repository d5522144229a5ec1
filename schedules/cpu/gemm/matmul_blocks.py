"""Products of a few rows with weights of 4 or 8 bits: unpacked in registers, at the speed of the memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tvm import s_tir

from schedules.cpu.common.register_tile import fits, flatten_rows
from schedules.hardware import Cpu
from schedules.ir import analysis, moves
from schedules.ir.blocks import block_realizes
from schedules.ir.types import LoopRV, PrimFunc, SBlock, TirSchedule
from schedules.ir.work import work_of, worth_parallel
from schedules.operators import BlockMatmul
from schedules.planned import Planned
from schedules.template import Declined, Parameters

__all__ = ["MOST_ROWS", "MatmulBlocks", "default"]

SUMS, PARTIAL, BLOCK = "sums", "partial", "matmul"

MOST_ROWS = 8
"""Rows up to which reading the weights takes the time, and not the arithmetic."""

_MOST_VECTORS = 4

_PANELS_PER_CORE = 4

_PAGE_WORDS = 1024
"""How far ahead words are fetched: a page of 4 KiB, at whose end hardware prefetchers stop, so that a core waits."""

PARAMETERS = ("block", "vectors", "unroll")


class MatmulBlocks(Planned[BlockMatmul]):
    """`C[m, n] = epilogue(sum over blocks b of scale[b, n] * (sum over k in b of A[m, k] * value[k, n] - A's share))`.

        share[m, b] = sum over k in b of A[m, k]
        for panel of columns in parallel:
            C[all m, vectors][lanes] = 0
            for b in blocks of the depth:
                acc[m, vectors][lanes] = 0
                for word in b, code in word: acc[m, n] += broadcast(A[m, k]) * value(word, code)
                C[m, n] += scale[b, n] * (acc[m, n] - (1 + zero[b, n] / 2^bits) * share[m, b])
            C = epilogue(C)

    A word has the codes of several steps of one column, so that a vector of words is as many columns; each code becomes
    a float by a shift and a mask (`blocks_compute`). All bytes of a panel are read once, from start to end, and
    fetched a page ahead.

    Parameters: `vectors` of a panel, of `block` lanes; `unroll` words without a branch between them. `dtypes` are those
    of A, of the words, and of the sums.
    """

    name = "cpu.matmul_blocks"
    version = 2
    layout = ("block", "vectors")
    computes = BlockMatmul
    dtypes = (("float32", "int32", "float32"),)

    def refusal(self, operator: BlockMatmul, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """See `Planned`."""
        if wrong := self.wrong_dtypes(operator):
            return wrong
        if set(parameters) != set(PARAMETERS) or min(parameters.values()) < 1:
            return f"the template's parameters are {', '.join(PARAMETERS)}, all positive"
        wrongs = {
            "it takes a few rows": operator.m > MOST_ROWS,
            "a block is no whole words": bool(operator.block % operator.codes_in_word),
            "blocks do not divide the depth": bool(operator.k % operator.block),
            "the block is not a vector": parameters["block"] != cpu.lanes(operator.sum_bits),
            "the sums do not fit the registers": not fits(operator.m, parameters["vectors"], cpu),
            "unroll does not divide the words of a block": bool(_words(operator) % parameters["unroll"]),
        }
        return next((reason for reason, is_so in wrongs.items() if is_so), "")

    def space(self, operator: BlockMatmul, cpu: Cpu) -> Iterable[dict[str, int]]:
        """See `Planned`."""
        for vectors in range(1, _MOST_VECTORS + 1):
            for unroll in (1, 2, 4):
                point = {"block": cpu.lanes(operator.sum_bits), "vectors": vectors, "unroll": unroll}
                if not self.refusal(operator, point, cpu):
                    yield point

    def estimate(self, operator: BlockMatmul, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """Return the cycles of the busiest core: its arithmetic, or the arrival of its part of the weights."""
        width = parameters["block"] * parameters["vectors"]
        panels = -(-operator.n // width)
        unpacking = 2 * parameters["vectors"] / cpu.fma_per_cycle
        step = max(unpacking + operator.m * parameters["vectors"] / cpu.fma_per_cycle, cpu.fma_latency)
        compute = -(-panels // cpu.cores) * operator.k * step
        size = panels * width * (operator.k // operator.codes_in_word + operator.k // operator.block)
        return max(compute, size * operator.sum_bytes / cpu.cores / cpu.memory_bytes_per_cycle)

    def emit(
        self, func: PrimFunc, operator: BlockMatmul, parameters: Mapping[str, int], cpu: Cpu
    ) -> PrimFunc | Declined:
        """See `Planned`."""
        blocks = [realize.block for realize in block_realizes(func)]
        names = [block.name_hint for block in blocks]
        if any(names.count(name) != 1 for name in (PARTIAL, BLOCK)) or names.count(SUMS) > 1:
            return Declined("it has no single block of each stage")
        ours = {at for at, name in enumerate(names) if name in (SUMS, PARTIAL, BLOCK)}
        others = [block for at, block in enumerate(blocks) if at not in ours]
        if not others or not all(analysis.is_injective(block) for block in others):
            return Declined("what is before or behind it is not elementwise")
        if names[-1] in (SUMS, PARTIAL, BLOCK) or len(blocks[-1].iter_vars) < 2:
            return Declined("its epilogue is not over the product's rows and columns")
        return _schedule(func, operator, others, parameters)


def _words(op: BlockMatmul) -> int:
    """Words of a block, a column."""
    return op.block // op.codes_in_word


def _schedule(func: PrimFunc, op: BlockMatmul, others: list[SBlock], chosen: Parameters) -> PrimFunc:
    sch = s_tir.Schedule(func)
    last = others[-1].name_hint
    for block in others[:-1]:
        sch.compute_inline(block.name_hint)
    flatten_rows(sch, last, others[-1])
    lanes = chosen["block"]
    row, column = sch.get_loops(last)
    panel, vector, lane = sch.split(column, [None, chosen["vectors"], lanes])
    sch.reorder(panel, row, vector, lane)
    sch.compute_at(BLOCK, panel, preserve_unit_loops=True)
    sch.set_scope(BLOCK, 0, "local")
    if worth_parallel(work_of(func).known_flops):
        sch.parallel(panel)
    _in_registers(sch, (row, vector), lane)
    *_, row, column, block = sch.get_loops(BLOCK)
    vector, lane = sch.split(column, [None, lanes])
    sch.reorder(block, row, vector, lane)
    sch.compute_at(PARTIAL, block, preserve_unit_loops=True)
    sch.set_scope(PARTIAL, 0, "local")
    _in_registers(sch, (row, vector), lane)
    *_, row, column, _, word, code = sch.get_loops(PARTIAL)
    vector, lane = sch.split(column, [None, lanes])
    word, unrolled = sch.split(word, [None, chosen["unroll"]])
    sch.reorder(word, unrolled, code, row, vector, lane)
    moves.prefetch_stream(sch, word, _PAGE_WORDS, chosen["unroll"] * chosen["vectors"] * lanes)
    _in_registers(sch, (unrolled, code, row, vector), lane)
    sch.decompose_reduction(PARTIAL, word)
    sch.decompose_reduction(BLOCK, block)
    return sch.mod["main"]


def _in_registers(sch: TirSchedule, loops: Sequence[LoopRV], lane: LoopRV) -> None:
    for loop in loops:
        sch.unroll(loop)
    sch.vectorize(lane)


def default(op: BlockMatmul, cpu: Cpu) -> dict[str, int]:
    """Return the parameters that the hardware row gives: sums that hide the latency, panels for every core."""
    fitting = max(1, (cpu.vector_registers - 1) // (op.m + 1) // 2)
    spread = op.n // (cpu.lanes(op.sum_bits) * cpu.cores * _PANELS_PER_CORE)
    unroll = next(steps for steps in (2, 1) if _words(op) % steps == 0)
    vectors = max(1, min(_MOST_VECTORS, fitting, spread))
    return {"block": cpu.lanes(op.sum_bits), "vectors": vectors, "unroll": unroll}
