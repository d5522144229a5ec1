"""Whether each thread of a scheduled kernel finds in its registers what it reads there."""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer, IntervalSet

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, BufferRegion, Expr, PrimFunc, Var

__all__ = ["reads_of_others"]

Hull = list[tuple[Expr, Expr]]
"""The least and the greatest index of each axis, in terms of the threads."""


@dataclass
class _Walk:
    """What is around a statement: threads by their tag, the values of blocks' axes, and loops with their ranges."""

    threads: dict[str, Var] = field(default_factory=dict)
    values: dict[Var, Expr] = field(default_factory=dict)
    serial: dict[Var, IntervalSet] = field(default_factory=dict)
    analyzer: Analyzer = field(default_factory=Analyzer)
    written: dict[Buffer, list[Hull]] = field(default_factory=dict)
    read: dict[Buffer, list[Hull]] = field(default_factory=dict)

    def loop(self, node: tirx.For) -> None:
        """Bind the loop's variable: to its thread, one for all loops of a tag, or to its range."""
        extent = tvm.ir.Range.from_min_extent(node.min, node.extent)
        if node.kind == tirx.ForKind.THREAD_BINDING:
            tag = node.thread_binding.thread_tag
            if tag in self.threads:
                self.values[node.loop_var] = self.threads[tag]
                return
            self.threads[tag] = node.loop_var
        else:
            self.serial[node.loop_var] = IntervalSet(node.min, node.min + node.extent - 1)
        self.analyzer.bind(node.loop_var, extent)

    def block(self, realize: SBlockRealize) -> None:
        """Keep what the block reads and writes in registers, if it holds no other block."""
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            self.values[axis.var] = tir.substitute(value, self.values)
        if tir.collect(realize.block.body, SBlockRealize):
            return
        for regions, found in ((realize.block.reads, self.read), (realize.block.writes, self.written)):
            for region in regions:
                if region.source.scope() == "local":
                    found.setdefault(region.source, []).append(self._hull(region))

    def _hull(self, region: BufferRegion) -> Hull:
        return [(self._bound(each.min, True), self._bound(each.min + each.extent - 1, False)) for each in region.region]

    def _bound(self, index: Expr, least: bool) -> Expr:
        placed = self.analyzer.simplify(tir.substitute(index, self.values))
        found = self.analyzer.int_set(placed, self.serial)
        return self.analyzer.simplify(found.min_value if least else found.max_value)

    def holds(self, outer: Hull, inner: Hull) -> bool:
        """Return whether all of `inner` is shown to lie within `outer`, for every thread."""
        return all(
            self.analyzer.can_prove(first <= least) and self.analyzer.can_prove(greatest <= last)
            for (first, last), (least, greatest) in zip(outer, inner, strict=True)
        )


def reads_of_others(func: PrimFunc) -> str:
    """Return the name of a buffer in registers of which a thread may read what another one wrote; "" for none.

    dlight's reductions bind an epilogue to threads in another order than what it reads where a result has several
    elements a thread, as in a grouped convolution: TVM builds that, and the numbers are wrong.
    """
    walk = _Walk()
    tvm_ffi.structural_walk(func.body, [(tirx.For, walk.loop), (SBlockRealize, walk.block)], order="pre")
    for buffer, hulls in walk.read.items():
        if not all(any(walk.holds(outer, inner) for outer in walk.written.get(buffer, [])) for inner in hulls):
            return str(buffer.name)
    return ""
