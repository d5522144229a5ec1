"""How attention of 16-bit operands is blocked for instructions on pairs of them: the space, and its best estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from relaxc.schedules.cpu.attention.form import MOST_VECTORS
from relaxc.schedules.cpu.attention.words import PAIR, Blocking
from relaxc.schedules.cpu.common.dot_product import STEPS, instruction
from relaxc.schedules.cpu.common.register_tile import divisors, fits, step_cycles
from relaxc.schedules.cpu.common.tile_registers import MATRIX, REGISTERS
from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Attention

__all__ = ["blocking", "default", "estimate", "instruction_of", "is_of_words", "points", "refusal"]

dtypes = ("bfloat16", "bfloat16")
"""Operands of both products."""

_BY_TILES = ("vectors", "block", "tiles", STEPS, MATRIX)
_BY_VECTORS = ("vectors", "keys", "rows", "block", "tiles", STEPS)

_MOST_SUMS = 4
_MOST_TILES = 8
_MOST_STEP = 1024
"""Keys."""
_ROWS = (4, 6, 8, 10, 12, 14)
_EXPONENTIAL = 12
"""Instructions of an exponential, of what the softmax does to its result, and of the rounding."""
_SHUFFLES = 8
"""Instructions for a vector of an operand that is packed: to be read, rounded, transposed and written."""


def is_of_words(parameters: Mapping[str, int]) -> bool:
    """Return whether the parameters are of this plan."""
    return STEPS in parameters


def instruction_of(op: Attention, cpu: Cpu, *, tiles: bool) -> Dot | None:
    """Return the instruction of both products, on tile registers or on vectors; None without one."""
    if op.operands != (*dtypes, dtypes[1]):
        return None
    if not tiles:
        return instruction(dtypes, op.accumulate, PAIR, cpu)
    wanted = (dtypes, op.accumulate, cpu.lanes(op.sum_bits))
    return next((dot for dot in cpu.dots if dot.in_tiles and (dot.operands, dot.accumulate, dot.n) == wanted), None)


def blocking(op: Attention, parameters: Mapping[str, int], cpu: Cpu) -> Blocking:
    """Return the sizes of these parameters."""
    lanes = cpu.lanes(op.sum_bits)
    high = parameters.get(MATRIX, 0) * lanes
    sizes = {"keys": high, "rows": high, **parameters}
    named = ("vectors", "keys", "rows", "block", "tiles")
    return Blocking(lanes=lanes, value_lanes=lanes, **{name: sizes[name] for name in named})


def default(op: Attention, cpu: Cpu) -> dict[str, int] | None:
    """Return the point of the least estimate; None where the CPU has no such instruction, or a size is not known."""
    return min(points(op, cpu), key=lambda point: estimate(op, point, cpu), default=None)


def refusal(op: Attention, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    by_tiles = MATRIX in parameters
    names = _BY_TILES if by_tiles else _BY_VECTORS
    if set(parameters) != set(names):
        return f"the template's parameters are {', '.join(names)}"
    if min(parameters.values()) < 1:
        return "a parameter is less than 1"
    dot, lanes = instruction_of(op, cpu, tiles=by_tiles), cpu.lanes(op.sum_bits)
    if dot is None:
        return "the target has no such instruction for its operands"
    if not op.keys or not op.queries:
        return "the numbers of queries and keys must be known"
    vectors, block, p = parameters["vectors"], parameters["block"], blocking(op, parameters, cpu)
    blocks = -(-op.queries // (vectors * lanes))
    wrong = {
        "an instruction takes pairs": parameters[STEPS] != PAIR,
        "there are not so many vectors of queries": vectors > min(MOST_VECTORS, -(-op.queries // lanes)),
        "the register tile does not fit": not _fits(parameters, cpu),
        "rows do not divide the head": bool(op.width % p.rows) or bool(op.width % lanes),
        "the steps of the softmax are not even": block > _MOST_STEP or block not in _blocks(op, lanes),
        "tiles are not so many blocks of queries": not parameters["tiles"] <= min(_MOST_TILES, blocks),
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def _fits(parameters: Mapping[str, int], cpu: Cpu) -> bool:
    vectors = parameters["vectors"]
    if MATRIX in parameters:
        sums = parameters[MATRIX] * vectors
        return sums <= _MOST_SUMS and sums + parameters[MATRIX] + 1 <= REGISTERS
    return all(parameters[name] <= _ROWS[-1] and fits(parameters[name], vectors, cpu) for name in ("keys", "rows"))


def _blocks(op: Attention, lanes: int) -> tuple[int, ...]:
    """The keys of a step: whole vectors of pairs, as many in each step as in the others, but for what fills them."""
    whole = PAIR * lanes
    steps = range(1, -(-op.keys // whole) + 1)
    return tuple(dict.fromkeys(-(-op.keys // (step * whole)) * whole for step in steps))


def points(op: Attention, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial; none where it does not compute the operator."""
    if not op.keys or not op.queries:
        return
    lanes = cpu.lanes(op.sum_bits)
    blocks = [block for block in _blocks(op, lanes) if block <= _MOST_STEP][:3]
    for vectors in range(1, min(MOST_VECTORS, -(-op.queries // lanes)) + 1):
        most = min(_MOST_TILES, -(-op.queries // (vectors * lanes)))
        for shape, block, tiles in product(_shapes(op, vectors, cpu), blocks, range(1, most + 1)):
            point = {"vectors": vectors, "block": block, "tiles": tiles, STEPS: PAIR, **shape}
            if not refusal(op, point, cpu):
                yield point


def _shapes(op: Attention, vectors: int, cpu: Cpu) -> Iterator[dict[str, int]]:
    if instruction_of(op, cpu, tiles=True) is not None:
        yield from ({MATRIX: matrix} for matrix in (1, 2))
    if instruction_of(op, cpu, tiles=False) is not None:
        high = [rows for rows in _ROWS if fits(rows, vectors, cpu)]
        for rows in [rows for rows in divisors(op.width, _ROWS[-1]) if rows in high][-1:]:
            yield from ({"keys": keys, "rows": rows} for keys in high[-2:])


def estimate(op: Attention, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the cycles of the busiest core: what packs a task's keys and values, both products, and the softmax."""
    dot, p = instruction_of(op, cpu, tiles=MATRIX in parameters), blocking(op, parameters, cpu)
    assert dot is not None, op
    lanes, steps = p.lanes, -(-op.keys // p.block)
    needed = -(-op.queries // lanes)
    blocks = -(-needed // p.vectors)

    def of_product(rows: int, high: int, words: int) -> float:
        """Cycles of `rows` in tiles, of which each has so many words of depth."""
        if dot.in_tiles:
            of_tile = words * PAIR // dot.k * max(high // dot.m * p.vectors / dot.throughput, dot.latency)
        else:
            of_tile = words * (step_cycles(high, p.vectors, cpu, dot) + 1)
        # The sums go through memory
        written = 2 * high * p.vectors / cpu.fma_per_cycle
        return -(-rows // high) * (of_tile + written + cpu.costs.tile)

    depth = -(-op.depth // (PAIR * lanes)) * lanes
    scores = of_product(op.keys, p.keys, depth)
    results = steps * of_product(op.width, p.rows, p.block // PAIR)
    powers = op.keys * p.vectors * _EXPONENTIAL / cpu.fma_per_cycle
    again = (2 * steps if steps > 1 else 0) * op.width * p.vectors
    ends = (depth + op.width) * p.vectors * _SHUFFLES / cpu.fma_per_cycle
    of_block = (scores + results + powers + again + ends) * needed / (blocks * p.vectors)
    packing = op.keys * (depth + op.width // PAIR) / lanes * _SHUFFLES / cpu.fma_per_cycle
    tiles = min(p.tiles, blocks)
    heads = op.batch * op.heads or cpu.cores
    return -(-heads * -(-blocks // tiles) // cpu.cores) * (tiles * of_block + packing)
