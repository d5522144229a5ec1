"""A forest of decision trees as arrays, and the kernel that walks it: for each row and tree from the root to a leaf.

All tests become one, `x[feature] <= split`: what is less than a split is at most the number before it, and what equals
one is at most it, and not at most the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

__all__ = ["Forest", "walk"]

_MOST_NODES = 1 << 24


@dataclass
class Forest:
    """Nodes in the order in which they are added; a leaf is its own child, on both sides, and has a row of `leaves`."""

    dtype: Any
    targets: int
    features: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)
    """Whether NaN goes to the first child."""
    rows: list[int] = field(default_factory=list)
    leaves: list[dict[int, float]] = field(default_factory=list)
    """What a leaf adds to each target that it is of."""
    roots: list[int] = field(default_factory=list)

    def leaf(self, values: dict[int, float]) -> int:
        """Add a leaf."""
        place = self._node(0, 0.0, False, len(self.leaves))
        self.leaves.append(values)
        self.children[place] = [place, place]
        return place

    def test(self, mode: str, feature: int, split: float, missing: bool, yes: int, no: int) -> int:
        """Add a node that goes to `yes` where `x[feature] <mode> split` holds, to `no` where it does not.

        NaN, of which nothing holds but NEQ, goes to `no`, or to `yes` where `missing` says so. Raise KeyError for
        another mode.
        """
        before = float(np.nextafter(self.dtype(split), self.dtype(-np.inf)))
        nan_yes = missing or mode == "NEQ"
        if mode in ("GT", "GTE", "NEQ"):
            yes, no, nan_yes = no, yes, not nan_yes
        if mode in ("EQ", "NEQ"):
            at_most = yes if split == -np.inf else self._node(feature, before, False, 0, no, yes)
            return self._node(feature, split, nan_yes, 0, at_most, no)
        if mode in ("LT", "GTE"):
            split = np.nan if split == -np.inf else before  # nothing is less than that, and nothing at most NaN
        elif mode not in ("LEQ", "GT"):
            raise KeyError(mode)
        return self._node(feature, split, nan_yes, 0, yes, no)

    def _node(self, feature: int, split: float, missing: bool, row: int, yes: int = 0, no: int = 0) -> int:
        if len(self.rows) >= _MOST_NODES:
            raise ValueError(f"the forest has more than {_MOST_NODES} nodes")
        self.features.append(feature)
        self.splits.append(split)
        self.missing.append(missing)
        self.rows.append(row)
        self.children.append([yes, no])
        return len(self.rows) - 1

    def depths(self) -> list[int]:
        """Return the length of each tree's longest path. A child is added before its parent."""
        depth = [0] * len(self.rows)
        for place, (yes, no) in enumerate(self.children):
            depth[place] = 0 if yes == place else 1 + max(depth[yes], depth[no])
        return [depth[root] for root in self.roots]

    def table(self, nothing: float) -> Any:
        """Return the leaves' values `[leaf, target]`, with `nothing` where a leaf is not of a target."""
        table = np.full((max(len(self.leaves), 1), self.targets), nothing, self.dtype)
        for place, values in enumerate(self.leaves):
            for target, value in values.items():
                table[place, target] = value
        return table

    def arrays(self, nothing: float) -> list[Any]:
        """Return what `walk` reads behind `x`."""
        integers: Sequence[Any] = (self.features, self.children, self.rows, self.roots, self.depths())
        feature, child, row, root, depth = (np.array(each, "int32") for each in integers)
        missing = np.array(self.missing, "bool")
        return [feature, np.array(self.splits, self.dtype), missing, child, row, root, depth, self.table(nothing)]


def walk(columns: int, forest: Forest, join: str, nothing: float) -> Any:
    """Return a PrimFunc `(x, *forest.arrays()) -> y`, `y[row, target]` the `sum`, `min` or `max` of its leaves' values,
    from `nothing` on.
    """
    dtype = np.dtype(forest.dtype).name
    nodes, trees, targets, leaves = len(forest.rows), len(forest.roots), forest.targets, max(len(forest.leaves), 1)
    start = tirx.const(nothing, dtype)
    tells_missing = any(forest.missing)
    joined = {"sum": lambda a, b: a + b, "min": tirx.min, "max": tirx.max}[join]

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def forest_walk(
        x: T.handle,
        feature: T.handle,
        split: T.handle,
        missing: T.handle,
        child: T.handle,
        row: T.handle,
        root: T.handle,
        depth: T.handle,
        table: T.handle,
        y: T.handle,
    ) -> None:
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        rows = T.int64()
        X = T.match_buffer(x, (rows, columns), dtype)
        feature_of = T.match_buffer(feature, (nodes,), "int32")
        split_of = T.match_buffer(split, (nodes,), dtype)
        missing_of = T.match_buffer(missing, (nodes,), "bool")
        child_of = T.match_buffer(child, (nodes, 2), "int32")
        row_of = T.match_buffer(row, (nodes,), "int32")
        root_of = T.match_buffer(root, (trees,), "int32")
        depth_of = T.match_buffer(depth, (trees,), "int32")
        value_of = T.match_buffer(table, (leaves, targets), dtype)
        Y = T.match_buffer(y, (rows, targets), dtype)
        at = T.sblock_alloc_buffer((1,), "int32", scope="local")
        total = T.sblock_alloc_buffer((targets,), dtype, scope="local")
        for n in T.parallel(rows):
            for k in T.serial(targets):
                total[k] = start
            for tree in T.serial(trees):
                at[0] = root_of[tree]
                for _ in T.serial(depth_of[tree]):
                    at[0] = child_of[
                        at[0],
                        T.if_then_else(
                            T.bool(tells_missing) and T.isnan(X[n, feature_of[at[0]]]),
                            T.if_then_else(missing_of[at[0]], 0, 1),
                            T.if_then_else(X[n, feature_of[at[0]]] <= split_of[at[0]], 0, 1),
                        ),
                    ]
                for k in T.serial(targets):
                    total[k] = joined(total[k], value_of[row_of[at[0]], k])
            for k in T.serial(targets):
                Y[n, k] = total[k]

    return forest_walk
