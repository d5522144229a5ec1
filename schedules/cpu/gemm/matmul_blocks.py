"""Products of a few rows with weights of 4 or 8 bits: unpacked in registers, at the speed of the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd
from typing import Any

from tvm import s_tir

from relaxc.schedules.cpu.common.code_dot import tensorize_codes
from relaxc.schedules.cpu.common.dot_product import STEPS, instruction, steps_of
from relaxc.schedules.cpu.common.register_tile import fits, flatten_rows
from relaxc.schedules.cpu.gemm import blocks_compute, open_plan
from relaxc.schedules.cpu.gemm.digits_compute import BYTES, DIGITS, PREPARED, WORD
from relaxc.schedules.cpu.gemm.open_blocks import in_floats, open_blocks
from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import analysis, moves
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import LoopRV, PrimFunc, SBlock, TirSchedule
from relaxc.schedules.ir.work import work_of, worth_parallel
from relaxc.schedules.operators import BlockMatmul
from relaxc.schedules.plan import Plan
from relaxc.schedules.planned import Planned
from relaxc.schedules.template import Declined, Parameters

__all__ = ["MOST_ROWS", "MatmulBlocks"]

PARTIAL, BLOCK = "partial", "matmul"

_BEFORE = ("sums", *PREPARED)
"""What is made of A."""

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

    With `dot` an instruction adds so many products of bytes to a sum of integers, and A becomes three signed bytes a
    value first (`digits_compute`). For four codes that is three instructions and one or two to unpack them, not twelve:

        make digits[m, j, k] of A
        for panel of columns in parallel:
            C[all m, vectors][lanes] = 0
            for b in blocks of the depth:
                acc[m, vectors, j][lanes] = 0
                for word in b, half of its codes: acc[m, n, j] += dot(bytes of the half, digits[m, j, 4 steps])
                C[m, n] += scale[b, n] * factor[m, b] * (sum over j of 2^8j * (acc[m, n, j] - zero * total[m, b, j]))
            C = epilogue(C)

    Parameters: `vectors` of a panel, of `block` lanes; `unroll` words without a branch between them; `dot`. `dtypes`
    are those of A, of the words, and of the sums.
    """

    name = "cpu.matmul_blocks"
    version = 3
    layout = ("block", "vectors", STEPS)
    computes = BlockMatmul
    dtypes = (("float32", "int32", "float32"),)
    kernel = "block_matmul"

    def refusal(self, operator: BlockMatmul, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """See `Planned`."""
        if wrong := self.wrong_dtypes(operator):
            return wrong
        if not operator.m:
            return _unfit(operator) or open_plan.refusal(in_floats(operator), parameters, cpu)
        if set(parameters) - {STEPS} != set(PARAMETERS) or min(parameters.values()) < 1:
            return f"the template's parameters are {', '.join(PARAMETERS)}, all positive, and {STEPS}"
        dot = _dot(operator, cpu)
        wrongs = {
            "it takes a few rows": operator.m > MOST_ROWS,
            "the block is not a vector": parameters["block"] != cpu.lanes(operator.sum_bits),
            "no instruction takes so many steps": STEPS in parameters and (dot is None or parameters[STEPS] != dot.k),
            "the sums do not fit the registers": not fits(_sums(operator, parameters), parameters["vectors"], cpu),
            "unroll does not divide the words of a block": bool(_words(operator) % parameters["unroll"]),
        }
        return _unfit(operator) or next((reason for reason, is_so in wrongs.items() if is_so), "")

    def default(self, operator: BlockMatmul, cpu: Cpu) -> dict[str, int]:
        """See `Planned`: sums that hide the latency, panels for every core.

        An instruction for bytes has fewer to issue than multiply-adds for any number of rows, where its sums fit.
        """
        if not operator.m:
            return open_plan.default(in_floats(operator), cpu)
        dot = _dot(operator, cpu)
        steps = {STEPS: dot.k} if dot is not None and fits(operator.m * DIGITS, 1, cpu) else {}
        fitting = max(1, (cpu.vector_registers - 1) // (_sums(operator, steps) + 1) // (1 if steps else 2))
        spread = operator.n // (cpu.lanes(operator.sum_bits) * cpu.cores * _PANELS_PER_CORE)
        unroll = next(steps for steps in (2, 1) if _words(operator) % steps == 0)
        vectors = max(1, min(_MOST_VECTORS, fitting, spread))
        return {"block": cpu.lanes(operator.sum_bits), "vectors": vectors, "unroll": unroll, **steps}

    def space(self, operator: BlockMatmul, cpu: Cpu) -> Iterable[dict[str, int]]:
        """See `Planned`."""
        if not operator.m:
            yield from () if _unfit(operator) else open_plan.points(in_floats(operator), cpu)
            return
        dot = _dot(operator, cpu)
        for steps in ({STEPS: dot.k}, {}) if dot else ({},):
            for vectors in range(1, _MOST_VECTORS + 1):
                for unroll in (1, 2, 4):
                    point = {"block": cpu.lanes(operator.sum_bits), "vectors": vectors, "unroll": unroll, **steps}
                    if not self.refusal(operator, point, cpu):
                        yield point

    def estimate(self, operator: BlockMatmul, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """Return the cycles of the busiest core: its arithmetic, or the arrival of its part of the weights."""
        if not operator.m:
            return open_plan.estimate(in_floats(operator), parameters, cpu)
        width = parameters["block"] * parameters["vectors"]
        panels = -(-operator.n // width)
        words = operator.k // operator.codes_in_word
        compute = -(-panels // cpu.cores) * words * _word_cycles(operator, parameters, cpu)
        size = panels * width * (words + operator.k // operator.block)
        return max(compute, size * operator.sum_bytes / cpu.cores / cpu.memory_bytes_per_cycle)

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """See `Planned`."""
        return blocks_compute.computation(plan)

    def emit(
        self, func: PrimFunc, operator: BlockMatmul, parameters: Mapping[str, int], cpu: Cpu
    ) -> PrimFunc | Declined:
        """See `Planned`."""
        if steps_of(parameters) > 1 and _dot(operator, cpu) is None:
            return Declined("the target has no instruction for its plan")
        blocks = [realize.block for realize in block_realizes(func)]
        names = [block.name_hint for block in blocks]
        if any(names.count(name) != 1 for name in (PARTIAL, BLOCK)) or any(names.count(name) > 1 for name in _BEFORE):
            return Declined("it has no single block of each stage")
        own = (*_BEFORE, PARTIAL, BLOCK)
        others = [block for block in blocks if block.name_hint not in own]
        if not others or not all(analysis.is_injective(block) for block in others):
            return Declined("what is before or behind it is not elementwise")
        if names[-1] in own or len(blocks[-1].iter_vars) < 2:
            return Declined("its epilogue is not over the product's rows and columns")
        if not operator.m:
            return open_blocks(func, operator, others, parameters, cpu)
        return _schedule(func, operator, others, parameters, cpu)


def _unfit(op: BlockMatmul) -> str:
    """Why its codes are in no words of the depth, whatever the parameters."""
    if op.block % op.codes_in_word:
        return "a block is no whole words"
    return "blocks do not divide the depth" if op.k % op.block else ""


def _dot(op: BlockMatmul, cpu: Cpu) -> Dot | None:
    """The instruction that multiplies codes and digits, if there is one and words have as many codes as it takes."""
    dot = instruction(BYTES, WORD, op.block, cpu)
    return dot if dot is not None and op.bits in (4, 8) and op.codes_in_word % dot.k == 0 else None


def _sums(op: BlockMatmul, parameters: Mapping[str, int]) -> int:
    """Sums of a column."""
    return op.m * DIGITS if steps_of(parameters) > 1 else op.m


def _word_cycles(op: BlockMatmul, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Cycles of a word of each column of a panel; what unpacks it starts on the units of multiply-adds."""
    vectors, dot = parameters["vectors"], _dot(op, cpu) if steps_of(parameters) > 1 else None
    if dot is None:
        unpacking = 2 * vectors / cpu.fma_per_cycle
        return op.codes_in_word * max(unpacking + op.m * vectors / cpu.fma_per_cycle, cpu.fma_latency)
    halves = op.codes_in_word // dot.k
    unpacking = (3 if halves > 1 else 0) * vectors / cpu.fma_per_cycle
    return max(unpacking + halves * DIGITS * op.m * vectors / dot.throughput, halves * dot.latency)


def _words(op: BlockMatmul) -> int:
    """Words of a block, a column."""
    return op.block // op.codes_in_word


def _schedule(func: PrimFunc, op: BlockMatmul, others: list[SBlock], chosen: Parameters, cpu: Cpu) -> PrimFunc:
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
    dot = _dot(op, cpu) if steps_of(chosen) > 1 else None
    if dot is None:
        _by_multiply_adds(sch, chosen)
    else:
        _by_instruction(sch, op, chosen, dot)
        _prepare(sch, op, gcd(op.block, lanes))
    sch.decompose_reduction(BLOCK, block)
    return sch.mod["main"]


def _by_multiply_adds(sch: TirSchedule, chosen: Parameters) -> None:
    lanes = chosen["block"]
    *_, row, column, _, word, code = sch.get_loops(PARTIAL)
    vector, lane = sch.split(column, [None, lanes])
    word, unrolled = sch.split(word, [None, chosen["unroll"]])
    sch.reorder(word, unrolled, code, row, vector, lane)
    moves.prefetch_stream(sch, word, _PAGE_WORDS, chosen["unroll"] * chosen["vectors"] * lanes)
    _in_registers(sch, (unrolled, code, row, vector), lane)
    sch.decompose_reduction(PARTIAL, word)


def _by_instruction(sch: TirSchedule, op: BlockMatmul, chosen: Parameters, dot: Dot) -> None:
    lanes = chosen["block"]
    loops = sch.get_loops(PARTIAL)
    codes = 2 if op.codes_in_word > dot.k else 1
    row, _, digit, column, word = loops[-5 - codes : -codes]
    vector, lane = sch.split(column, [None, lanes])
    word, unrolled = sch.split(word, [None, chosen["unroll"]])
    sch.reorder(word, unrolled, row, digit, vector, lane, *loops[-codes:])
    moves.prefetch_stream(sch, word, _PAGE_WORDS, chosen["unroll"] * chosen["vectors"] * lanes)
    for loop in (unrolled, row, digit, vector):
        sch.unroll(loop)
    zeros = sch.decompose_reduction(PARTIAL, word)
    sch.vectorize(sch.get_loops(zeros)[-1])
    tensorize_codes(sch, lane, dot, op.bits)


def _prepare(sch: TirSchedule, op: BlockMatmul, lanes: int) -> None:
    """Make digits of A in vectors of `lanes`, a divisor of the block."""
    for name in ("largest_lanes", "total_lanes"):
        *_, lane, part = sch.get_loops(name)
        sch.reorder(part, lane)
        _in_registers(sch, (part,), lane)
        sch.decompose_reduction(name, part)
    *_, step = sch.get_loops("fixed")
    _, part, lane = sch.split(step, [None, op.block // lanes, lanes])
    _in_registers(sch, (part,), lane)
    *_, digit, step = sch.get_loops("digits")
    step, lane = sch.split(step, [None, lanes])
    sch.reorder(step, digit, lane)
    _in_registers(sch, (digit,), lane)


def _in_registers(sch: TirSchedule, loops: Sequence[LoopRV], lane: LoopRV) -> None:
    for loop in loops:
        sch.unroll(loop)
    sch.vectorize(lane)
