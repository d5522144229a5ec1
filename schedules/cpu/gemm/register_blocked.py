"""The register-blocked GEMM template that matrix products and convolutions share on a CPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import gcd

from tvm import s_tir

from relaxc.schedules.cpu.common.register_tile import fits, step_cycles
from relaxc.schedules.cpu.gemm.form import Tile, gemm_form
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import moves, tir
from relaxc.schedules.ir.contraction import Contraction
from relaxc.schedules.ir.dtypes import dtype_bits
from relaxc.schedules.ir.types import PrimFunc, TirSchedule
from relaxc.schedules.template import Choices

__all__ = ["Blocking", "choices", "default", "schedule"]

MAX_ROWS = 14
MAX_VECTORS = 6
MIN_PANEL_LANES = 4

ASSUMED_ROWS = 64
"""Rows taken for a symbolic m when the parameters are derived."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """Parameters: the register block is `rows` x (`vectors` * `lanes`) accumulators.

    With `packed`, the right operand goes through panels `[k, vectors * lanes]`, one a task, and the rows
    of a panel are split over `row_tasks` tasks. Without, a task is one register block.
    """

    rows: int
    vectors: int
    lanes: int
    packed: int
    row_tasks: int

    @property
    def columns(self) -> int:
        """Columns of the register block."""
        return self.vectors * self.lanes

    def to_dict(self) -> dict[str, int]:
        """Return the parameters by name."""
        return asdict(self)


def default(c: Contraction, cpu: Cpu) -> Blocking:
    """Return the blocking that the hardware row gives for `c`: the fewest cycles, the largest block on a tie."""
    lanes, packed = _lanes_and_packing(c, cpu)
    m, n = _rows(c), _columns(c)
    blocks = [(rows, vectors) for rows in range(1, MAX_ROWS + 1) for vectors in range(1, MAX_VECTORS + 1)]
    fitting = [b for b in blocks if fits(*b, cpu) and (packed or _divides(b[1] * lanes, c))]
    rows, vectors = min(fitting, key=lambda b: (_cycles(b, lanes, m, n, cpu), -b[0] * b[1]))
    return Blocking(rows, vectors, lanes, int(packed), _row_tasks(c, rows, vectors * lanes, cpu) if packed else 1)


def choices(c: Contraction, cpu: Cpu) -> Choices:
    """Return the values that each parameter may take for `c`."""
    lanes, packed = _lanes_and_packing(c, cpu)
    first = default(c, cpu)
    vectors = [v for v in range(1, MAX_VECTORS + 1) if packed or _divides(v * lanes, c)]
    rows = [r for r in range(1, MAX_ROWS + 1) if any(fits(r, v, cpu) for v in vectors)]
    return {
        "rows": tuple(rows),
        "vectors": tuple(vectors),
        "lanes": (lanes,),
        "packed": (first.packed,),
        "row_tasks": tuple(range(1, 2 * cpu.cores + 1)) if first.packed and isinstance(c.size(c.m), int) else (1,),
    }


def _rows(c: Contraction) -> int:
    m = c.size(c.m)
    return m if isinstance(m, int) else ASSUMED_ROWS


def _columns(c: Contraction) -> int | None:
    n = c.size(c.n)
    return n if isinstance(n, int) else None


def _divides(columns: int, c: Contraction) -> bool:
    n = _columns(c)
    return n is not None and n % columns == 0


def _cycles(block: tuple[int, int], lanes: int, m: int, n: int | None, cpu: Cpu) -> float:
    """Cycles for each useful multiply-add of a vector; padding is waste."""
    rows, vectors = block
    useful = m * (n or vectors * lanes)
    done = -(-m // rows) * rows * (-(-n // (vectors * lanes)) * vectors * lanes if n else vectors * lanes)
    return step_cycles(rows, vectors, cpu) / (rows * vectors) * (done / useful)


def _lanes_and_packing(c: Contraction, cpu: Cpu) -> tuple[int, bool]:
    """Vector length, and whether the right operand is copied into panels.

    It must be where its columns are not contiguous or do not fill whole vectors; else it pays from about
    four row tiles on, as each panel is then read from the cache that often. A symbolic m counts as few rows:
    the copy would double the traffic of one row, and many rows lose less without it.
    """
    full = cpu.lanes(dtype_bits(c.dtype))
    n, m = _columns(c), c.size(c.m)
    if not _contiguous(c) or n is None:
        return full, True
    lanes = full
    while lanes > 1 and n % lanes:
        lanes //= 2
    if lanes < full // 2 or lanes == 1:
        return full, True
    many_rows = isinstance(m, int) and m >= cpu.costs.panel_rows
    return (full, True) if many_rows else (lanes, False)


def _contiguous(c: Contraction) -> bool:
    """Whether neighbouring columns of the right operand are neighbours in memory, without conditions."""
    loads = tir.loads(c.right)
    if len(loads) != 1 or tir.conditions(c.right):
        return False
    column = tir.fresh("column")
    here = c.at(tir.flatten(loads[0].indices, loads[0].source.shape), n=column)
    extents = {axis: c.extents[axis] for axis in (*c.b, *c.k)} | {column: c.size(c.n)}
    return tir.steps_by_one(here, column, extents)


def _row_tasks(c: Contraction, rows: int, columns: int, cpu: Cpu) -> int:
    """Parts that a panel's rows are split into: the least time, as each part packs the panel for itself.

    With T tasks the slowest core does ceil(T / cores) of them, and a task is its share of the rows plus
    the packing, which takes `costs.gather` cycles an element against `rows of m / (lanes * FMAs a cycle)`.
    """
    m, n, batch = c.size(c.m), c.size(c.n), c.size(c.b)
    if not isinstance(m, int) or not isinstance(n, int) or not isinstance(batch, int):
        return 1
    panels = batch * -(-n // columns)
    packing = cpu.costs.gather * cpu.lanes(dtype_bits(c.dtype)) * cpu.fma_per_cycle / m

    def seconds(parts: int) -> float:
        return -(-panels * parts // cpu.cores) * (1 / parts + packing)

    return min(range(1, max(1, min(2 * cpu.cores, m // rows)) + 1), key=seconds)


def _panel_lanes(c: Contraction, lanes: int) -> int:
    """Lanes that packing can load at once: all, or as many as stay in one row of an image."""
    if _contiguous(c):
        return lanes
    width = c.extents[c.n[-1]]
    return gcd(width, lanes) if isinstance(width, int) else 1


def schedule(func: PrimFunc, c: Contraction, p: Blocking, work: int | None, cores: int) -> TirSchedule:
    """Return `func` with its contraction blocked by `p`, as a `tvm.s_tir.Schedule`.

    for task in parallel(b, n / columns, row_tasks):
        panel[k, columns] = right[k, columns]                      # if packed
        for tile in rows of the task:
            core[rows, columns] = 0                                # registers
            for k: core[row, :] += left[row, k] * panel[k, :]      # unrolled, vectors
            out[rows, columns] = epilogue(core)
    """
    tile = Tile(p.rows * p.row_tasks, p.columns, bool(p.packed))
    sch = s_tir.Schedule(gemm_form(func, c, tile))
    b, m, n, k = sch.get_loops("core")
    m_task, m_tile, m_row = sch.split(m, [p.row_tasks, None, p.rows])
    n_panel, n_vector, n_lane = sch.split(n, [None, p.vectors, p.lanes])
    inner = [k, m_row, n_vector, n_lane]
    if p.packed:
        sch.reorder(b, n_panel, m_task, m_tile, *inner)
        task = moves.parallelize(sch, [b, n_panel, m_task], work, cores)
        sch.compute_at("panel", task, preserve_unit_loops=True)
        panel_lanes = _panel_lanes(c, p.lanes)
        if panel_lanes >= MIN_PANEL_LANES:
            moves.vectorize_inner(sch, sch.get_loops("panel")[-1], panel_lanes)
    else:
        sch.reorder(b, m_task, m_tile, n_panel, *inner)
        m_tile = moves.parallelize(sch, [b, m_task, m_tile, n_panel], work, cores)
    sch.unroll(m_row)
    sch.unroll(n_vector)
    if p.lanes > 1:
        sch.vectorize(n_lane)
    sch.reverse_compute_at("out", m_tile, preserve_unit_loops=True)
    moves.vectorize_inner(sch, sch.get_loops("out")[-1], p.lanes)
    sch.decompose_reduction("core", k)
    return sch
