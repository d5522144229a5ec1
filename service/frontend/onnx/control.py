"""If, Loop and Scan: a branch that is known is taken, a loop whose trip count is known is unrolled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from relaxc.service.errors import ModelError, ModelMalformed
from relaxc.service.frontend.onnx import branches as onnx_branches
from relaxc.service.frontend.onnx import codes as onnx_codes
from relaxc.service.frontend.onnx import scope as onnx_scope
from relaxc.service.frontend.onnx.file import subgraphs
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.values import Known

__all__ = ["CONTROL"]

MAX_UNROLLED_NODES = 20_000
"""Nodes that unrolling one loop may make; beyond it the compile would take minutes."""


def _if(node: Node, proto: Any) -> list[Any]:
    """The known branch; else both, and a selection by the condition, as no operator has side effects."""
    branches = node.attr("then_branch"), node.attr("else_branch")
    if not node.is_known(0):
        return _both(node, branches)
    condition = node.inputs[0].array.reshape(-1)[0]
    if not node.inputs[0].symbolic:
        return _branch(node, branches[0 if condition else 1])
    if node.name in node.scope.choices:
        holds = node.scope.choices[node.name]
        _require(node, condition, holds=holds)
        return _branch(node, branches[0 if holds else 1])
    try:
        return _both(node, branches)
    except (Refused, ModelError) as error:
        raise onnx_scope.Choice(node.name) from error


def _require(node: Node, condition: Any, *, holds: bool) -> None:
    """Have a condition of sizes hold of every call, or not hold. Raise Refused for what is no comparison."""
    kind = type(condition).__name__
    if kind == "Not":
        return _require(node, condition.a, holds=not holds)
    if kind == ("And" if holds else "Or"):
        _require(node, condition.a, holds=holds)
        return _require(node, condition.b, holds=holds)
    told = "takes a branch for sizes of {left} and {right}"
    if kind in ("EQ", "NE"):
        return node.require(condition.a, "==" if (kind == "EQ") == holds else "!=", condition.b, told)
    if kind not in ("LT", "LE", "GT", "GE"):
        raise Refused("a condition of several sizes of which either may hold: `--shape` fixes them")
    # Each as `more ≥ less` or `more ≥ less + 1`, and its opposite likewise.
    less, more = (condition.a, condition.b) if kind in ("LT", "LE") else (condition.b, condition.a)
    is_strict = kind in ("LT", "GT")
    if not holds:
        less, more, is_strict = more, less, not is_strict
    return node.require(more, ">=", less + int(is_strict), told)


def _both(node: Node, branches: tuple[Any, Any]) -> list[Any]:
    from tvm import relax

    tests = [onnx_branches.test_of(node, holds=holds) for holds in (True, False)]
    if node.scope.branch is None and all(tests):
        found = [
            _apart(node, branch, (node.name, holds), test)
            for branch, holds, test in zip(branches, (True, False), tests, strict=True)
        ]
        results = [each for each in found if each is not None]
        if not results:
            raise ModelMalformed(node.scope.barred[node.name, True], node=node.name)
        if len(results) == 1:
            return results[0]
    else:
        results = [_branch(node, branch, may_be_left=True) for branch in branches]
    condition = node.emit(relax.op.reshape(node.tensor(0), ()))
    return [_select(node, condition, a, b) for a, b in zip(*results, strict=True)]


def _apart(node: Node, graph: Any, key: tuple[str, bool], test: Any) -> list[Any] | None:
    """What a branch gives that is computed for the sizes that it fits: the call's, wherever it is taken. None for one
    that fits none, which no call may take.
    """
    if key in node.scope.barred:
        onnx_branches.bar(node, test, node.scope.barred[key])
        node.require_zero_where(node.emit(_taken(node, holds=key[1])), 1)
        return None
    try:
        return _computed(node, graph, key, test)
    except (ModelMalformed, onnx_scope.Never) as error:
        raise onnx_scope.Barred(key, str(error)) from error


def _computed(node: Node, graph: Any, key: tuple[str, bool], test: Any) -> list[Any]:
    used = {name for each in _all_nodes(graph) for name in each.input} | {value.name for value in graph.output}
    values = {name: value for name, value in node.walk.values.items() if name in used}
    with onnx_branches.within(node, key, test, values) as branch:
        results = _branch(node, graph, values=values)
    back = {size: name for name, size in branch.sizes.items() if type(size).__name__ == "Var"}
    taken = node.emit(_taken(node, holds=key[1]))
    for name, size in branch.sizes.items():
        node.require_zero_where(taken, name - size)
    return [onnx_branches.resized(node, result, back) for result in results]


def _taken(node: Node, *, holds: bool) -> Any:
    """Return 1 where the condition holds, or where it does not, else 0."""
    from tvm import relax

    condition = node.emit(relax.op.reshape(node.tensor(0), ()))
    return relax.op.astype(condition if holds else node.emit(relax.op.logical_not(condition)), "int64")


def _all_nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for inner in subgraphs(graph.node):
        yield from inner.node


def _branch(node: Node, graph: Any, *, may_be_left: bool = False, values: Mapping[str, Any] | None = None) -> list[Any]:
    inner = node.walk.child(node.walk.values if values is None else dict(values))
    inner.may_be_left |= may_be_left
    inner.initialize(graph)
    inner.run(graph.node)
    inner.hand_over()
    return [inner.values[value.name] for value in graph.output]


def _select(node: Node, condition: Any, left: Any, right: Any) -> Any:
    from tvm import relax

    (a, codes), (b, others) = (_tensor(node, value) for value in (left, right))
    shapes = node.shape_of(a), node.shape_of(b)
    if (dtype_of(a), codes) != (dtype_of(b), others) or [str(d) for d in shapes[0]] != [str(d) for d in shapes[1]]:
        raise Refused(
            "branches whose results differ in shape, with a condition that is computed from the inputs' values"
        )
    found = node.emit(relax.op.where(condition, a, b))
    return found if codes is None else onnx_codes.of_codes(node, found, codes)


def _tensor(node: Node, value: Any) -> tuple[Any, str | None]:
    if isinstance(value, tuple):
        raise Refused("a sequence in a branch, with a condition that is computed from the inputs' values")
    return onnx_codes.as_codes(node, value)


def _loop(node: Node, proto: Any) -> list[Any]:
    """Inputs: the trip count, the first condition, the carried values. Scan outputs are stacked."""
    import numpy as np

    body = node.attr("body")
    trips = int(node.scalar(0, "the trip count")) if node.has(0) else None
    going = bool(node.scalar(1, "the first condition")) if node.has(1) else True
    carried = node.inputs[2:]
    stacks: list[list[Any]] = [[] for _ in body.output[1 + len(carried) :]]
    count = 0
    while going and (trips is None or count < trips):
        _limit(body, count + 1)
        inner = node.walk.child(node.walk.values)
        inner.initialize(body)
        given = [Known(np.array(count, "int64"), "int64"), Known(np.array(going), "bool"), *carried]
        inner.values.update(zip((value.name for value in body.input), given, strict=False))
        inner.run(body.node)
        inner.hand_over()
        results = [inner.values[value.name] for value in body.output]
        condition, carried, scanned = results[0], results[1 : 1 + len(carried)], results[1 + len(carried) :]
        if not isinstance(condition, Known) or condition.symbolic:
            raise Refused("a condition that is computed from the inputs' values")
        going = bool(condition.array.reshape(()))
        for stack, value in zip(stacks, scanned, strict=True):
            stack.append(value)
        count += 1
    return [*carried, *(_stack(node, stack, 0) for stack in stacks)]


def _limit(body: Any, trips: int) -> None:
    nodes = 1 + len(body.node) + sum(len(graph.node) for graph in subgraphs(body.node))  # an empty body takes time too
    if nodes * trips > MAX_UNROLLED_NODES:
        raise Refused(f"unrolling makes more than {MAX_UNROLLED_NODES} nodes")


def _stack(node: Node, values: list[Any], axis: int) -> Any:
    from tvm import relax

    if not values:
        raise Refused("a loop of no iterations with a scan output")
    held = [onnx_codes.as_codes(node, value) for value in values]
    tensors = [node.emit(relax.op.expand_dims(tensor, axis)) for tensor, _ in held]
    found = tensors[0] if len(tensors) == 1 else node.emit(relax.op.concat(tensors, axis))
    return found if held[0][1] is None else onnx_codes.of_codes(node, found, held[0][1])


def _scan(node: Node, proto: Any) -> list[Any]:
    """A loop along an axis of the scan inputs, since opset 9 without a batch axis."""
    if node.opset < 9:
        raise Refused("Scan before opset 9")
    body, scans = node.attr("body"), node.attr("num_scan_inputs")
    carried, sequences = node.inputs[: len(node.inputs) - scans], node.inputs[len(node.inputs) - scans :]
    first = len(carried)
    axes = list(node.attr("scan_input_axes", [0] * scans))
    trips = node.shape(first)[axes[0]]
    if not isinstance(trips, int):
        raise Refused("an axis of symbolic size")
    _limit(body, trips)
    backwards = list(node.attr("scan_input_directions", [0] * scans))
    stacks: list[list[Any]] = [[] for _ in body.output[len(carried) :]]
    for step in range(trips):
        slices = [
            _element(node, sequence, axis, trips - 1 - step if back else step)
            for sequence, axis, back in zip(sequences, axes, backwards, strict=True)
        ]
        inner = node.walk.child(node.walk.values)
        inner.initialize(body)
        inner.values.update(zip((value.name for value in body.input), [*carried, *slices], strict=True))
        inner.run(body.node)
        inner.hand_over()
        results = [inner.values[value.name] for value in body.output]
        carried = results[: len(carried)]
        for stack, value in zip(stacks, results[len(carried) :], strict=True):
            stack.append(value)
    out_axes = list(node.attr("scan_output_axes", [0] * len(stacks)))
    out_back = list(node.attr("scan_output_directions", [0] * len(stacks)))
    stacked = [
        _stack(node, stack[::-1] if back else stack, _positive(axis, node, stack))
        for stack, axis, back in zip(stacks, out_axes, out_back, strict=True)
    ]
    return [*carried, *stacked]


def _positive(axis: int, node: Node, stack: list[Any]) -> int:
    rank = len(node.shape_of(onnx_codes.as_codes(node, stack[0])[0])) + 1 if stack else 1
    return axis % rank


def _element(node: Node, sequence: Any, axis: int, place: int) -> Any:
    from tvm import relax

    tensor, codes = onnx_codes.as_codes(node, sequence)
    found = node.emit(relax.op.take(tensor, relax.const(place, "int64"), axis, mode="clip"))
    return found if codes is None else onnx_codes.of_codes(node, found, codes)


CONTROL: dict[str, Callable[[Node, Any], list[Any]]] = {"If": _if, "Loop": _loop, "Scan": _scan}
"""Operator → its outputs from the node and its protobuf."""
