"""Facts about a PrimFunc: its loop nests, and the axes and accesses of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Buffer, For, IterVar, LoopRV, PrimFunc, SBlock, Size, Stmt, TirSchedule, Var

__all__ = [
    "Nest",
    "common_rows",
    "has_reduction",
    "is_contiguous_over",
    "is_injective",
    "is_reduction",
    "nest_of",
    "nests",
    "readers",
    "reduces",
    "static_parameters",
    "writes_at_axes",
]


@dataclass(frozen=True)
class Nest:
    """A block alone in perfectly nested loops, one loop an axis, in the order of the axes; or in no loops at all."""

    loops: tuple[For, ...]
    block: SBlock

    @property
    def extents(self) -> list[Size]:
        """The extents of the axes: ints, or expressions where symbolic."""
        return [tir.product([iv.dom.extent]) for iv in self.block.iter_vars]

    def spatial_loops(self, sch: TirSchedule, name: str) -> list[LoopRV]:
        """Return the schedule's loops over the parallel axes."""
        return self._loops(sch, name, tirx.IterVar.DataPar)

    def reduction_loops(self, sch: TirSchedule, name: str) -> list[LoopRV]:
        """Return the schedule's loops over the reduced axes."""
        return self._loops(sch, name, tirx.IterVar.CommReduce)

    def _loops(self, sch: TirSchedule, name: str, kind: int) -> list[LoopRV]:
        pairs = zip(sch.get_loops(name), self.block.iter_vars, strict=True)
        return [loop for loop, iv in pairs if iv.iter_type == kind]


def static_parameters(func: PrimFunc) -> list[Buffer] | None:
    """Return the parameters of `func` if all are buffers of known sizes, else None."""
    parameters = [param for param in func.params if tirx.is_buffer_var(param)]
    known = all(tir.as_int(dim) is not None for param in parameters for dim in param.shape)
    return parameters if known and len(parameters) == len(func.params) else None


def nests(func: PrimFunc) -> list[Nest | None]:
    """Return the statements of `func` in order: None for what is not one block in its own plain loops."""
    return [_nest(statement) for statement in tir.statements(func.body.block.body)]


def nest_of(func: PrimFunc, name: str) -> Nest | None:
    """Return the nest of the block `name`, if it is one."""
    return next((nest for nest in nests(func) if nest is not None and nest.block.name_hint == name), None)


def _nest(statement: Stmt) -> Nest | None:
    loops = []
    while isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.SERIAL and not statement.annotations:
        loops.append(statement)
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize) or tir.collect(statement.block.body, s_tir.SBlockRealize):
        return None
    values = list(statement.iter_values)
    if not loops:
        return Nest((), statement.block)
    if len(values) != len(loops) or tir.as_int(statement.predicate) != 1:
        return None
    plain = all(tir.same_var(value, loop.loop_var) for value, loop in zip(values, loops, strict=True))
    return Nest(tuple(loops), statement.block) if plain else None


def is_contiguous_over(block: SBlock, axes: Sequence[Var]) -> bool:
    """Return whether each access moves through memory by 1 with the row-major position in `axes`, or does not move.

    At least one access must move. Conditions do not count: where they hold for a whole vector is tested later.
    """
    extents = {iv.var: iv.dom.extent for iv in block.iter_vars}
    sizes = [extents[axis] for axis in axes]
    if any(tir.as_int(size) == 0 for size in extents.values()):
        return False
    spot = tir.fresh("spot")
    place = dict(zip(axes, tir.unflatten(spot, sizes), strict=True))
    bounds = {var: extent for var, extent in extents.items() if var not in axes} | {spot: tir.size(tir.product(sizes))}
    accesses = [(load.indices, load.source.shape) for load in tir.loads(block.body.value)]
    accesses.append((block.body.indices, block.body.buffer.shape))
    moves = False
    for indices, shape in accesses:
        if not tir.uses(list(indices), axes):
            continue
        if any(tir.uses([inner for load in tir.loads(index) for inner in load.indices], axes) for index in indices):
            return False
        position = tir.substitute(tir.flatten(indices, shape), place)
        if not tir.steps_by_one(position, spot, bounds):
            return False
        moves = True
    return moves


def is_injective(block: SBlock) -> bool:
    """Return whether each iteration of `block` writes an element of its own, at its plain axes, and reduces nothing."""
    if block.init is not None or not isinstance(block.body, tirx.BufferStore) or block.match_buffers:
        return False
    if any(iv.iter_type != tirx.IterVar.DataPar for iv in block.iter_vars):
        return False
    return writes_at_axes(block)


def writes_at_axes(block: SBlock) -> bool:
    """Return whether the store's indices are the block's spatial axes, each once, or constants, and none is missing."""
    own = [iv.var for iv in block.iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    seen: list[Var] = []
    for index in block.body.indices:
        if tir.as_int(index) is not None:
            continue
        if not isinstance(index, tirx.Var) or index not in own or index in seen:
            return False
        seen.append(index)
    missing = [iv for iv in block.iter_vars if iv.var in own and iv.var not in seen]
    return all(tir.as_int(iv.dom.extent) == 1 for iv in missing)


def is_reduction(block: SBlock) -> bool:
    """Return whether `block` reduces into the elements at its plain axes, from an initial value."""
    kinds = {iv.iter_type for iv in block.iter_vars}
    return (
        block.init is not None
        and kinds <= {tirx.IterVar.DataPar, tirx.IterVar.CommReduce}
        and isinstance(block.body, tirx.BufferStore)
        and writes_at_axes(block)
    )


def has_reduction(func: PrimFunc) -> bool:
    """Return whether a block of `func` reduces."""
    return any(realize.block.init is not None for realize in block_realizes(func))


def reduces(iter_var: IterVar) -> bool:
    """Return whether an axis of a block is reduced over."""
    return bool(iter_var.iter_type == tirx.IterVar.CommReduce)


def readers(func: PrimFunc, buffer: Buffer) -> list[SBlock]:
    """Return the blocks that load from `buffer` and do not store to it."""
    blocks = [realize.block for realize in block_realizes(func)]
    return [
        block
        for block in blocks
        if any(load.source.same_as(buffer) for load in tir.loads(block))
        and not any(store.buffer.same_as(buffer) for store in tir.collect(block, tirx.BufferStore))
    ]


def common_rows(blocks: list[SBlock]) -> int | None:
    """Return how many leading axes every stage has in common; every reduction comes after them."""
    kept = [[iv for iv in block.iter_vars if not reduces(iv)] for block in blocks]
    rows = min(len(axes) for axes, block in zip(kept, blocks, strict=True) if is_reduction(block))
    rows = min(rows, len(kept[-1]))
    for axes, block in zip(kept, blocks, strict=True):
        if len(axes) < rows or [iv.var for iv in block.iter_vars[:rows]] != [iv.var for iv in axes[:rows]]:
            return None
        pairs = zip(axes[:rows], kept[-1][:rows], strict=True)
        if not all(tir.same_size(axis.dom.extent, last.dom.extent) for axis, last in pairs):
            return None
    return rows
