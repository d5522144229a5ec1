"""Attention on a CPU: `softmax(q kᵀ + mask) v` of every head in one kernel, with no scores in memory."""

from __future__ import annotations

from typing import Any

from schedules.cpu.attention.form import MOST_VECTORS, Blocking, attention_of
from schedules.cpu.attention.form import Attention as Form
from schedules.cpu.attention.loops import attention_loops
from schedules.cpu.common.register_tile import divisors, fits, step_cycles
from schedules.hardware import Cpu, cpu_of
from schedules.ir import analysis, tir
from schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["Attention"]

_KEYS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14)
_BLOCKS = (32, 64, 128, 256, 512, 1024)
_MAX_TILES = 8


class Attention:
    """`out[b, m, h, e] = sum over n of softmax over n of (q[b, m, h, :] · k[b, n, h, :] + mask) * v[b, n, h, e]`.

    Operands in any layout with contiguous values in a head, heads merged or not; sizes of the batch, queries and keys
    symbolic or not; operands of any float type, sums in that of the scores. See `attention_loops` for the loops.
    Parameters: `vectors` of queries in a block, `keys` in a register tile of scores, `rows` (at most) and `columns` of
    one of results, in vectors, `block` keys in a softmax step, `tiles` blocks of queries in a task, and `copies`,
    whether a task packs its head's values.

    The limit: 2 * queries * keys * (depth + width) operations a head at the peak of the multiply-adds, and
    queries * keys exponentials of about ten instructions a vector.
    """

    name = "cpu.attention"
    version = 1

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.template.Rule`."""
        cpu = cpu_of(target)
        form = attention_of(func, cpu)
        if isinstance(form, Declined):
            return form
        chosen = _default(form, cpu) if parameters is None else dict(parameters)
        check(chosen, _choices(form, cpu))
        parallel = cpu.cores > 1 and analysis.worth_parallel(analysis.work_of(func).known_flops)
        blocking = _blocking(form, cpu, chosen)
        return Schedule(func.with_body(attention_loops(form, blocking, parallel=parallel)), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.template.Rule`."""
        cpu = cpu_of(target)
        form = attention_of(func, cpu)
        return form if isinstance(form, Declined) else _choices(form, cpu)


def _lanes(form: Form, cpu: Cpu) -> int:
    return cpu.lanes(tir.dtype_bits(form.dtype))


def _value_lanes(form: Form, cpu: Cpu) -> int:
    return divisors(form.width, _lanes(form, cpu))[-1]


def _choices(form: Form, cpu: Cpu) -> Choices:
    return {
        "vectors": tuple(range(1, MOST_VECTORS + 1)),
        "keys": _KEYS,
        "rows": _KEYS,
        "columns": divisors(form.width // _value_lanes(form, cpu), MOST_VECTORS),
        "block": _BLOCKS,
        "tiles": tuple(range(1, _MAX_TILES + 1)),
        "copies": (0, 1) if tir.as_int(form.keys) is not None else (0,),
    }


def _blocking(form: Form, cpu: Cpu, chosen: Parameters) -> Blocking:
    sizes = {name: value for name, value in chosen.items() if name != "copies"}
    return Blocking(
        lanes=_lanes(form, cpu), value_lanes=_value_lanes(form, cpu), copies=bool(chosen["copies"]), **sizes
    )


def _default(form: Form, cpu: Cpu) -> dict[str, int]:
    lanes, element_bytes = _lanes(form, cpu), tir.dtype_bytes(form.dtype)
    queries, keys = tir.as_int(form.queries), tir.as_int(form.keys)
    vectors = min(range(1, MOST_VECTORS + 1), key=lambda v: (_cost(form, cpu, queries, v), v))
    rows, columns = _result_tile(form, cpu, vectors)
    tiles = _tiles(form, cpu, -(-queries // (vectors * lanes))) if queries is not None else 1
    panel_bytes = 0 if keys is None else keys * form.width * element_bytes
    return {
        "vectors": vectors,
        "keys": _score_tile(cpu, keys, vectors),
        "rows": rows,
        "columns": columns,
        "block": _keys_at_once(cpu, keys, vectors * lanes * element_bytes),
        "tiles": tiles,
        "copies": int(tiles > 1 and 0 < panel_bytes <= cpu.l2_bytes // 4),
    }


def _rate(cpu: Cpu, rows: int, vectors: int) -> float:
    """Multiply-adds a cycle of a register tile; 0 where it does not fit."""
    return rows * vectors / (step_cycles(rows, vectors, cpu) + 1) if fits(rows, vectors, cpu) else 0.0


def _score_tile(cpu: Cpu, keys: int | None, vectors: int) -> int:
    """Keys of a tile of scores with `vectors` of queries: what gives the most useful work in a cycle."""

    def useful(rows: int) -> float:
        return 1.0 if keys is None else keys / (-(-keys // rows) * rows)

    return max(_KEYS, key=lambda rows: (useful(rows) * _rate(cpu, rows, vectors), -rows))


def _result_tile(form: Form, cpu: Cpu, vectors: int) -> tuple[int, int]:
    """Rows and columns of a tile of results; of equal ones the wide one where the values stay in L1, else the high one.

    For each key, a tile reads its columns of the values and its rows of the scores.
    """
    columns = divisors(form.width // _value_lanes(form, cpu), MOST_VECTORS)
    rows = [each for each in divisors(vectors * _lanes(form, cpu), _KEYS[-1]) if each in _KEYS]
    keys = tir.as_int(form.keys)
    panel_bytes = 0 if keys is None else keys * form.width * tir.dtype_bytes(form.dtype)
    wide = 1 if 0 < panel_bytes <= cpu.l1_bytes else -1
    return max(((r, c) for r in rows for c in columns), key=lambda tile: (_rate(cpu, *tile), wide * tile[1]))


def _cost(form: Form, cpu: Cpu, queries: int | None, vectors: int) -> float:
    """Cycles for a vector of queries, a key and a column, with blocks of `vectors`; infinite where no tile fits."""

    def of_block(size: int) -> float:
        if not size:
            return 0.0
        scores = _rate(cpu, _score_tile(cpu, tir.as_int(form.keys), size), size)
        results = _rate(cpu, *_result_tile(form, cpu, size))
        return size / scores + size / results if scores and results else float("inf")

    if queries is None:
        return of_block(vectors) / vectors
    needed = -(-queries // _lanes(form, cpu))
    return (needed // vectors * of_block(vectors) + of_block(needed % vectors)) / needed


def _keys_at_once(cpu: Cpu, keys: int | None, row_bytes: int) -> int:
    """All keys in one step where the scores of a block, `row_bytes` a key, nearly fit L1; else what fits half of it."""
    if keys is not None and keys <= _BLOCKS[-1] and keys * row_bytes <= 2 * cpu.l1_bytes:
        return next(block for block in _BLOCKS if block >= keys)
    return max((block for block in _BLOCKS if block * row_bytes <= cpu.l1_bytes // 2), default=_BLOCKS[0])


def _tiles(form: Form, cpu: Cpu, blocks: int) -> int:
    """Blocks of queries in a task: what ends first, when each task packs values and the cores share the tasks."""
    batch = tir.product(form.batch)
    heads = batch if isinstance(batch, int) else cpu.cores

    def rounds(tiles: int) -> float:
        tasks = heads * -(-blocks // tiles)
        return -(-tasks // cpu.cores) * (min(tiles, blocks) + cpu.costs.value_copy * (1 if tiles > 1 else 2))

    return min(range(1, min(blocks, _MAX_TILES) + 1), key=lambda tiles: (rounds(tiles), -tiles))
