"""Decision trees of ai.onnx.ml: TreeEnsemble of opset 5, and the regressor and classifier that it replaces.

A classifier's scores and labels are those that ONNX Runtime gives, which says more of them than the specification.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import cast, constant, relax_dim, scalar
from relaxc.service.frontend.onnx.ops.forest import Forest, walk
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.ops.scores import column, labels_of, transformed
from relaxc.service.frontend.onnx.values import Known

_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_JOINS = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_DEEPEST = 4096
_MOST_NODES = 1 << 22


@op("ai.onnx.ml::TreeEnsemble")
def _ensemble(node: Node) -> Any:
    dtype = _dtype(node.attr("nodes_splits"))
    forest = Forest(dtype, node.attr("n_targets", 1))
    modes, splits = node.attr("nodes_modes"), node.attr("nodes_splits")
    features, missing = node.attr("nodes_featureids"), node.attr("nodes_missing_value_tracks_true", ())
    sides = [(node.attr(f"nodes_{side}nodeids"), node.attr(f"nodes_{side}leafs")) for side in ("true", "false")]
    targets, weights = node.attr("leaf_targetids"), node.attr("leaf_weights").tolist()
    members = iter(_members(node.attr("membership_values")))
    sets = [next(members) if mode == _MODES.index("MEMBER") else () for mode in modes]
    made: dict[tuple[bool, int], int] = {}

    def leaf(place: int) -> int:
        if (True, place) not in made:
            made[True, place] = forest.leaf({targets[place]: weights[place]})
        return made[True, place]

    def children(place: int) -> list[tuple[bool, int]]:
        return [(bool(is_leaf[place]), ids[place]) for ids, is_leaf in sides]

    def add(place: int) -> int:
        yes, no = (leaf(p) if is_leaf else made[False, p] for is_leaf, p in children(place))
        tracks, feature = bool(missing[place]) if missing else False, features[place]
        if not (values := sets[place]):
            return forest.test(_MODES[int(modes[place])], feature, float(splits[place]), tracks, yes, no)
        for number in values:
            no = forest.test("EQ", feature, number, tracks, yes, no)
        return no

    def below(place: int) -> list[int]:
        return [p for is_leaf, p in children(place) if not is_leaf]

    for root in node.attr("tree_roots"):
        for place in _children_first(root, below):
            made[False, place] = add(place)
        forest.roots.append(made[False, root])
    scores = _scores(node, forest, _JOINS[node.attr("aggregate_function", 1)], None)
    return _results(node, forest, scores, _TRANSFORMS[node.attr("post_transform", 0)])


def _members(values: Any) -> list[list[float]]:
    """The sets of MEMBER nodes, each of which ends with a NaN."""
    sets: list[list[float]] = [[]]
    for value in () if values is None else values.tolist():
        if math.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    return sets


def _children_first(root: int, below: Any) -> list[int]:
    """The nodes under a root, none before its children. Raise Refused for a cycle."""
    order: list[int] = []
    pending = [(root, 0)]
    while pending:
        place, depth = pending.pop()
        if depth > _DEEPEST or len(order) > _MOST_NODES:
            raise Refused(f"a tree of more than {_MOST_NODES} nodes, or a path of more than {_DEEPEST}")
        order.append(place)
        pending += [(each, depth + 1) for each in below(place)]
    return order[::-1]


@op("ai.onnx.ml::TreeEnsembleRegressor")
def _regressor(node: Node) -> Any:
    forest = _listed(node, node.attr("n_targets", 1), "target")
    scores = _scores(node, forest, node.attr("aggregate_function", "SUM"), _list(node, "base_values"))
    return cast(_results(node, forest, scores, node.attr("post_transform", "NONE")), "float32")


def _results(node: Node, forest: Forest, scores: Any, transform: str) -> Any:
    """The scores transformed, but as ONNX Runtime has it no single one."""
    return scores if forest.targets == 1 and transform != "PROBIT" else transformed(node, scores, transform)


@op("ai.onnx.ml::TreeEnsembleClassifier")
def _classifier(node: Node) -> Any:
    labels = labels_of(node, "classlabels_int64s", "classlabels_strings")
    forest = _listed(node, len(labels.array), "class")
    scores = _scores(node, forest, "SUM", None)
    base = _list(node, "base_values")
    count, transform = len(labels.array), node.attr("post_transform", "NONE")
    positive = all(value >= 0 for leaf in forest.leaves for value in leaf.values())
    used = {target for leaf in forest.leaves for target in leaf}
    if count == 2 and len(used) < 2:
        return _one_of_two(node, scores, labels, base, positive, first=used != {1})
    if base and len(base) != count:
        raise Refused(f"{len(base)} base values of {count} classes")
    if base:
        scores = node.emit(relax.op.add(scores, constant(np.array(base, forest.dtype))))
    if count == 2:
        # Whatever the labels are, and however large the first score is.
        named = cast(node.emit(relax.op.greater(column(node, scores, 1), scalar(0, scores))), "int64")
        named = node.emit(relax.op.squeeze(node.emit(named), [1]))
    else:
        which = node.emit(relax.op.argmax(scores, 1))
        named = node.emit(relax.op.take(node.materialize(labels), which, 0, mode="clip"))
    return named, cast(transformed(node, scores, transform), "float32")


def _one_of_two(
    node: Node, scores: Any, labels: Known, base: list[float], positive: bool, *, first: bool
) -> tuple[Any, Any]:
    """Label and scores where one of two classes has weights: for the second, the first one's score is 0; the first is
    taken for the second's, and its own is what is left to 1, or the negative of a score that may be one.
    """
    transform = node.attr("post_transform", "NONE")
    if len(base) > 1 or transform == "PROBIT":
        raise Refused(f"post_transform={transform}, or two base values, where one of two classes has weights")
    score = column(node, scores, 0 if first else 1)
    if base and first:
        score = node.emit(relax.op.add(score, scalar(base[0], score)))
    wins = node.emit(relax.op.greater(score, scalar(0.5 if positive else 0, score)))
    which = node.emit(cast(node.emit(relax.op.squeeze(wins, [1])), "int64"))
    named = node.emit(relax.op.take(node.materialize(labels), which, 0, mode="clip"))
    if not first:
        return named, cast(transformed(node, scores, transform), "float32")
    is_logistic = transform == "LOGISTIC"
    least = scalar(1 if positive and not is_logistic else 0, score)
    both = node.emit(relax.op.concat([node.emit(relax.op.subtract(least, score)), score], 1))
    return named, cast(transformed(node, both, transform if is_logistic else "NONE"), "float32")


def _dtype(array: Any) -> Any:
    return np.float64 if array is not None and array.dtype == np.float64 else np.float32


def _list(node: Node, name: str) -> list[Any]:
    """An attribute of numbers, which may be a tensor of the same name with a suffix."""
    tensor = node.attr(f"{name}_as_tensor")
    return list(node.attr(name, ())) if tensor is None else tensor.reshape(-1).tolist()


def _listed(node: Node, targets: int, kind: str) -> Forest:
    """The forest of the older operators, whose nodes are named by tree and number."""
    forest = Forest(np.float64 if node.dtype(0) == "float64" else np.float32, targets)
    entries: dict[tuple[int, int], dict[int, float]] = {}
    keys = zip(node.attr(f"{kind}_treeids", ()), node.attr(f"{kind}_nodeids", ()), strict=True)
    ids = node.attr(f"{kind}_ids", ())
    for key, target, weight in zip(keys, ids, _list(node, f"{kind}_weights"), strict=True):
        values = entries.setdefault(key, {})
        values[target] = values.get(target, 0.0) + weight
    modes, splits = node.attr("nodes_modes"), _list(node, "nodes_values")
    features = node.attr("nodes_featureids")
    missing = node.attr("nodes_missing_value_tracks_true", ()) or [0] * len(modes)
    trees, numbers = node.attr("nodes_treeids"), node.attr("nodes_nodeids")
    place = {key: at for at, key in enumerate(zip(trees, numbers, strict=True))}
    sides = node.attr("nodes_truenodeids"), node.attr("nodes_falsenodeids")
    is_leaf = [mode == "LEAF" for mode in modes]
    made: dict[int, int] = {}

    def below(at: int) -> list[int]:
        return [] if is_leaf[at] else [place[trees[at], side[at]] for side in sides]

    def add(at: int) -> int:
        if is_leaf[at]:
            return forest.leaf(entries.get((trees[at], numbers[at]), {}))
        yes, no = (made[each] for each in below(at))
        mode = modes[at].removeprefix("BRANCH_")
        return forest.test(mode, features[at], splits[at], bool(missing[at]), yes, no)

    roots: dict[int, int] = {}
    children = {each for at in range(len(modes)) for each in below(at)}
    for at, tree in enumerate(trees):
        if at not in children:
            roots.setdefault(tree, at)
    for root in roots.values():
        for at in _children_first(root, below):
            if at not in made:
                made[at] = add(at)
        forest.roots.append(made[root])
    return forest


def _scores(node: Node, forest: Forest, join: str, base: Sequence[float] | None) -> Any:
    """What the trees say together of each row and target."""
    dtype = np.dtype(forest.dtype).name
    rows, *columns = node.shape(0) if node.rank(0) == 2 else [1, *node.shape(0)]
    if len(columns) != 1 or not isinstance(columns[0], int):
        raise Refused("rows of a symbolic size, or of more axes than one")
    if max(forest.features, default=0) >= columns[0]:
        raise ValueError(f"tests feature {max(forest.features)} of {columns[0]}")
    x = node.emit(cast(node.tensor(0), dtype)) if node.dtype(0) != dtype else node.tensor(0)
    if node.rank(0) == 1:
        x = node.emit(relax.op.expand_dims(x, 0))
    kind = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}[join]
    nothing = {"sum": 0.0, "min": math.inf, "max": -math.inf}[kind]
    kernel = walk(columns[0], forest, kind, nothing).without_attr("global_symbol")
    place = node.builder.add_func(kernel, "forest")
    arrays = [node.materialize(Known(array, str(array.dtype))) for array in forest.arrays(nothing)]
    kept = relax.TensorType([relax_dim(rows), relax_dim(forest.targets)], dtype)
    scores = node.emit(relax.call_tir(place, relax.Tuple([x, *arrays]), kept))
    if kind != "sum":
        finite = node.emit(relax.op.not_equal(scores, scalar(nothing, scores)))
        scores = node.emit(relax.op.where(finite, scores, scalar(0, scores)))
    if join == "AVERAGE":
        scores = node.emit(relax.op.divide(scores, scalar(len(forest.roots), scores)))
    if base:
        scores = node.emit(relax.op.add(scores, constant(np.array(base, forest.dtype))))
    return scores
