"""How attention is blocked: register tiles, keys in a softmax step, and tasks; the default and the space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from relaxc.schedules.cpu.attention.form import MOST_VECTORS
from relaxc.schedules.cpu.common.register_tile import divisors, fits, step_cycles
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Attention

__all__ = ["PARAMETERS", "default", "estimate", "lanes_of", "points", "refusal", "value_lanes_of"]

PARAMETERS = ("vectors", "keys", "rows", "columns", "block", "tiles", "copies")

_TILE = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14)
"""Keys of a tile of scores, and rows of one of results."""
_BLOCKS = (32, 64, 128, 256, 512, 1024)
_MOST_TILES = 8
_BEST_TILES, _BEST_TASKS = 2, 4
"""Register tiles of a kind, and sizes of a task, for each number of vectors, that are worth a trial."""
_AS_GOOD = 1.5
"""How much more than the fewest cycles a number of vectors may take and still be tried."""
_EXPONENTIAL = 10
"""Instructions of an exponential and of what the softmax does to its result."""
_USUAL = 128
"""Queries, or keys, where their number is not known: it does not change which point is better."""


def lanes_of(op: Attention, cpu: Cpu) -> int:
    """Return the queries of a vector."""
    return cpu.lanes(op.sum_bits)


def value_lanes_of(op: Attention, cpu: Cpu) -> int:
    """Return the columns of a vector of values: as many as fit one and divide a head."""
    return divisors(op.width, lanes_of(op, cpu))[-1]


def default(op: Attention, cpu: Cpu) -> dict[str, int]:
    """Return the parameters that the hardware row gives."""
    row_bytes = lanes_of(op, cpu) * op.sum_bytes
    vectors = min(range(1, MOST_VECTORS + 1), key=lambda v: (_cost(op, cpu, v), v))
    rows, columns = _result_tiles(op, cpu, vectors)[0]
    tiles = _tasks(op, cpu, _blocks_of(op, cpu, vectors))[0]
    return {
        "vectors": vectors,
        "keys": _score_tiles(op, cpu, vectors)[0],
        "rows": rows,
        "columns": columns,
        "block": _keys_at_once(op, cpu, vectors * row_bytes),
        "tiles": tiles,
        "copies": int(tiles > 1 and 0 < _value_bytes(op) <= cpu.l2_bytes // 4),
    }


def refusal(op: Attention, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    if set(parameters) != set(PARAMETERS):
        return f"the template's parameters are {', '.join(PARAMETERS)}"
    vectors, keys, rows, columns, block, tiles, copies = (parameters[name] for name in PARAMETERS)
    lanes = lanes_of(op, cpu)
    if not 1 <= vectors <= min(MOST_VECTORS, _vectors(op, cpu) or MOST_VECTORS):
        return "there are not so many vectors of queries"
    if keys not in _TILE or not fits(keys, vectors, cpu) or keys > (op.keys or keys):
        return "keys do not fit the registers"
    if rows not in _TILE or vectors * lanes % rows or columns not in _columns(op, cpu):
        return "rows and columns do not divide the block of queries and the head"
    if not fits(rows, columns, cpu):
        return "rows and columns do not fit the registers"
    if block not in _blocks(op):
        return "a softmax step is of 32 to 1024 keys, and of no more than there are"
    if not 1 <= tiles <= min(_MOST_TILES, _blocks_of(op, cpu, vectors) or _MOST_TILES):
        return "tiles are not so many blocks of queries"
    if copies not in ((0, 1) if op.keys else (0,)):
        return "copies is 0, or 1 where the number of keys is known"
    return ""


def points(op: Attention, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial: the numbers of vectors and the tiles of the least estimates."""
    most = min(MOST_VECTORS, _vectors(op, cpu) or MOST_VECTORS)
    costs = {vectors: _cost(op, cpu, vectors) for vectors in range(1, most + 1)}
    for vectors in (each for each, cost in costs.items() if cost <= _AS_GOOD * min(costs.values())):
        scores, results = _score_tiles(op, cpu, vectors), _result_tiles(op, cpu, vectors)
        first = _keys_at_once(op, cpu, vectors * lanes_of(op, cpu) * op.sum_bytes)
        steps = [block for block in _blocks(op) if first / 2 <= block <= 2 * first]
        tasks = _tasks(op, cpu, _blocks_of(op, cpu, vectors))[:_BEST_TASKS]
        copies = (0, 1) if op.keys else (0,)
        tiles = product(scores[:_BEST_TILES], results[:_BEST_TILES])
        for (keys, (rows, columns)), block, task, copy in product(tiles, steps, tasks, copies):
            values = (vectors, keys, rows, columns, block, task, copy)
            yield dict(zip(PARAMETERS, values, strict=True))


def estimate(op: Attention, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the cycles of the busiest core: both products, the exponentials, and what begins and ends each step."""
    vectors, keys, rows, columns, block, tiles, copies = (parameters[name] for name in PARAMETERS)
    all_keys, lanes = op.keys or _USUAL, lanes_of(op, cpu)
    needed = _vectors(op, cpu) or -(-_USUAL // lanes)
    blocks = -(-needed // vectors)
    parts = op.width // (columns * value_lanes_of(op, cpu))
    scores = -(-all_keys // keys) * (op.depth * (step_cycles(keys, vectors, cpu) + 1) + cpu.costs.tile)
    exponentials = all_keys * vectors * _EXPONENTIAL / cpu.fma_per_cycle
    steps = -(-all_keys // block)
    results = all_keys * (step_cycles(rows, columns, cpu) + 1) + steps * cpu.costs.tile
    of_block = (scores + exponentials + vectors * lanes // rows * parts * results) * needed / (blocks * vectors)
    tiles = min(tiles, blocks)
    tasks = _heads(op, cpu) * -(-blocks // tiles)
    # To pack values for one block of queries, or out of L2, is no better than to read them where they are.
    packs = copies and tiles > 1 and _value_bytes(op) <= cpu.l2_bytes
    packing = cpu.costs.value_copy * (1 if packs else 2 * tiles)
    return -(-tasks // cpu.cores) * (tiles + packing) * of_block


def _vectors(op: Attention, cpu: Cpu) -> int:
    """All vectors of queries, 0 where that is not known."""
    return -(-op.queries // lanes_of(op, cpu))


def _blocks_of(op: Attention, cpu: Cpu, vectors: int) -> int:
    """The blocks of queries, 0 where that is not known."""
    return -(-op.queries // (vectors * lanes_of(op, cpu)))


def _blocks(op: Attention) -> tuple[int, ...]:
    """The keys that a softmax step may have: all of them are the least number that is no less."""
    return tuple(block for block in _BLOCKS if not op.keys or block == _BLOCKS[0] or block // 2 < op.keys)


def _columns(op: Attention, cpu: Cpu) -> tuple[int, ...]:
    return divisors(op.width // value_lanes_of(op, cpu), MOST_VECTORS)


def _heads(op: Attention, cpu: Cpu) -> int:
    """Heads of the whole batch; as many as cores where that is not known."""
    return op.batch * op.heads or cpu.cores


def _value_bytes(op: Attention) -> int:
    """Bytes of a head's values, 0 where that is not known."""
    return op.keys * op.width * op.sum_bytes


def _rate(cpu: Cpu, rows: int, vectors: int) -> float:
    """Multiply-adds a cycle of a register tile; 0 where it does not fit."""
    return rows * vectors / (step_cycles(rows, vectors, cpu) + 1) if fits(rows, vectors, cpu) else 0.0


def _score_tiles(op: Attention, cpu: Cpu, vectors: int) -> list[int]:
    """Keys of a tile of scores with `vectors` of queries, what gives the most useful work in a cycle first."""

    def useful(rows: int) -> float:
        return 1.0 if not op.keys else op.keys / (-(-op.keys // rows) * rows)

    fitting = [keys for keys in _TILE if fits(keys, vectors, cpu) and keys <= (op.keys or keys)]
    return sorted(fitting, key=lambda rows: (useful(rows) * _rate(cpu, rows, vectors), -rows), reverse=True)


def _result_tiles(op: Attention, cpu: Cpu, vectors: int) -> list[tuple[int, int]]:
    """Rows and columns of a tile of results; of equal ones the wide one where the values stay in L1, else the high one.

    For each key, a tile reads its columns of the values and its rows of the scores.
    """
    rows = [each for each in divisors(vectors * lanes_of(op, cpu), _TILE[-1]) if each in _TILE]
    wide = 1 if 0 < _value_bytes(op) <= cpu.l1_bytes else -1
    fitting = [tile for tile in product(rows, _columns(op, cpu)) if fits(*tile, cpu)]
    return sorted(fitting, key=lambda tile: (_rate(cpu, *tile), wide * tile[1]), reverse=True)


def _cost(op: Attention, cpu: Cpu, vectors: int) -> float:
    """Cycles for a vector of queries, a key and a column, with blocks of `vectors`."""

    def of_block(size: int) -> float:
        if not size:
            return 0.0
        scores = _rate(cpu, _score_tiles(op, cpu, size)[0], size)
        return size / scores + size / _rate(cpu, *_result_tiles(op, cpu, size)[0])

    needed = _vectors(op, cpu)
    if not needed:
        return of_block(vectors) / vectors
    return (needed // vectors * of_block(vectors) + of_block(needed % vectors)) / needed


def _keys_at_once(op: Attention, cpu: Cpu, row_bytes: int) -> int:
    """All keys in one step where the scores of a block, `row_bytes` a key, nearly fit L1; else what fits half of it."""
    if op.keys and op.keys <= _BLOCKS[-1] and op.keys * row_bytes <= 2 * cpu.l1_bytes:
        return next(block for block in _BLOCKS if block >= op.keys)
    return max((block for block in _BLOCKS if block * row_bytes <= cpu.l1_bytes // 2), default=_BLOCKS[0])


def _tasks(op: Attention, cpu: Cpu, blocks: int) -> list[int]:
    """Blocks of queries in a task: what ends first, when each task packs values and the cores share the tasks, first.

    Of those that make equally many tasks, the one that fills them. One block where their number is not known comes
    first, as the fewer queries there are, the more tasks they must make.
    """
    if not blocks:
        return [tiles for tiles in (1, 2, 4, 8) if tiles <= _MOST_TILES]

    def rounds(tiles: int) -> float:
        tasks = _heads(op, cpu) * -(-blocks // tiles)
        return -(-tasks // cpu.cores) * (min(tiles, blocks) + cpu.costs.value_copy * (1 if tiles > 1 else 2))

    every = sorted(range(1, min(blocks, _MOST_TILES) + 1), key=lambda tiles: (rounds(tiles), -tiles))
    return [tiles for at, tiles in enumerate(every) if -(-blocks // tiles) not in [-(-blocks // t) for t in every[:at]]]
