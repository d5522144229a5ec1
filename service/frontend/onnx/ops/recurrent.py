"""LSTM, GRU and RNN: one product for the inputs of all steps, and one small product a step.

A static number of steps is unrolled, so that a step's kernels are scheduled as any other; else one nest loops over it.

`X` is `[steps, batch, input]` (`[batch, steps, input]` with layout=1); `W` and `R` have a row block for each direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops import lstm_scan, recurrent_scan
from relaxc.service.frontend.onnx.ops.common import cast, permuted, relax_dim, reshaped, scalar
from relaxc.service.frontend.onnx.ops.matmul import matmul
from relaxc.service.frontend.onnx.ops.recurrent_cells import DEFAULT, GATES, STEP, Direction, activations
from relaxc.service.frontend.onnx.ops.registry import op

__all__ = ["first_state", "packed", "part", "stacked"]

FEW_STEPS = 16
"""Steps times directions up to which unrolling is as quick to compile as one loop nest, and lets each step be fused."""

MAX_STEPS = 1024
"""Steps times directions over which unrolling would take minutes to compile."""


@op("LSTM", "GRU", "RNN")
def _recurrent(node: Node) -> Any:
    if node.rank(0) != 3:
        raise ValueError(f"X has {node.rank(0)} axes instead of 3")
    batch_first = bool(node.attr("layout", 0))
    x = node.tensor(0)
    if batch_first:
        x = permuted(node, x, [1, 0, 2])
    steps, batch = node.shape_of(x)[:2]
    directions = (
        ["forward", "reverse"]
        if node.attr("direction", "forward") == "bidirectional"
        else [node.attr("direction", "forward")]
    )
    lengths = _lengths(node, steps, batch)
    run = _way(node, steps * len(directions), lengths)
    outputs = [
        run(node, _direction(node, x, place, batch_first), steps, backwards=name == "reverse", lengths=lengths)
        for place, name in enumerate(directions)
    ]
    sequence = stacked(node, [rows for rows, _, _ in outputs], 1)
    last = stacked(node, [hidden for _, hidden, _ in outputs], 0)
    results = [sequence, last]
    if node.op == "LSTM":
        results.append(stacked(node, [cell for _, _, cell in outputs], 0))
    if batch_first:
        results = [permuted(node, results[0], [2, 0, 1, 3]), *(permuted(node, r, [1, 0, 2]) for r in results[1:])]
    return results


def _way(node: Node, steps: Any, lengths: Any | None) -> Callable[..., tuple[Any, Any, Any]]:
    """Unrolled for a few steps; the loop nest for many, but it has the usual cell only."""
    usual = [name.lower() for name in DEFAULT[node.op]]
    plain = lengths is None and not node.has(7) and not node.attr("clip") and not node.attr("input_forget", 0)
    plain = plain and [name.lower() for name in node.attr("activations", ())] in ([], usual, usual * 2)
    if isinstance(steps, int) and steps <= (FEW_STEPS if plain else MAX_STEPS):
        return _unroll
    if not plain:
        raise Refused("sequence_lens, clip, peepholes or other activations with a long or symbolic sequence")
    return _scan


def _lengths(node: Node, steps: Any, batch: Any) -> Any | None:
    """`sequence_lens`, or None where every sequence is as long as the tensor."""
    if not node.has(4):
        return None
    node.require(node.shape(4)[0], "==", batch, "has a batch of {right} and {left} sequence_lens")
    if node.is_known(4) and isinstance(steps, int) and (node.inputs[4].array == steps).all():
        return None
    return reshaped(node, node.tensor(4), [*node.shape(4), 1])


def _direction(node: Node, x: Any, place: int, batch_first: bool) -> Direction:
    gates, size = GATES[node.op], int(node.attr("hidden_size") or node.static_shape(2, "R")[-1])
    batch = node.shape_of(x)[1]
    weight, recurrent = (permuted(node, part(node, index, place), [1, 0]) for index in (1, 2))
    inputs = matmul(node, x, weight)
    recurrent_bias = None
    if node.has(3):
        bias = part(node, 3, place)
        halves = [
            node.emit(relax.op.strided_slice(bias, [0], [h * gates * size], [(h + 1) * gates * size])) for h in (0, 1)
        ]
        inputs, recurrent_bias = node.emit(relax.op.add(inputs, halves[0])), halves[1]
    peepholes = None
    if node.op == "LSTM" and node.has(7):
        row = part(node, 7, place)
        peepholes = [node.emit(relax.op.strided_slice(row, [0], [p * size], [(p + 1) * size])) for p in range(3)]
    return Direction(
        inputs,
        recurrent,
        recurrent_bias,
        peepholes,
        activations(node, place),
        first_state(node, 5, place, batch, size, batch_first),
        first_state(node, 6, place, batch, size, batch_first) if node.op == "LSTM" else None,
        size,
        node.attr("clip"),
        node,
    )


def part(node: Node, index: int, place: int, axis: int = 0) -> Any:
    """Return a direction's part of an input, without the axis of directions."""
    x = node.emit(relax.op.strided_slice(node.tensor(index), [axis], [place], [place + 1]))
    shape = node.shape_of(x)
    return reshaped(node, x, [dim for i, dim in enumerate(shape) if i != axis])


def first_state(node: Node, index: int, place: int, batch: Any, size: int, batch_first: bool) -> Any:
    """Return the state `[batch, hidden]` that a direction begins with."""
    if node.has(index):
        have = node.shape(index)[0 if batch_first else 1]
        node.require(have, "==", batch, "has a batch of {right} and first states for {left}")
        return part(node, index, place, 1 if batch_first else 0)
    dtype = node.dtype(0)
    return node.emit(relax.op.full(relax.ShapeExpr([relax_dim(batch), relax_dim(size)]), relax.const(0, dtype), dtype))


def _unroll(node: Node, d: Direction, steps: int, *, backwards: bool, lengths: Any | None) -> tuple[Any, Any, Any]:
    """The hidden states `[steps, batch, hidden]` in the order of the sequence, and the last states.

    A sequence that is shorter than the tensor keeps its state when it is over, and its outputs there are 0.
    """
    hidden, cell = d.hidden, d.cell
    rows: list[Any] = [None] * steps
    for step in reversed(range(steps)) if backwards else range(steps):
        x = node.emit(relax.op.strided_slice(d.inputs, [0], [step], [step + 1]))
        x = reshaped(node, x, node.shape_of(x)[1:])
        new_hidden, new_cell = STEP[node.op](d, x, hidden, cell)
        if lengths is None:
            hidden, cell, rows[step] = new_hidden, new_cell, new_hidden
            continue
        going = node.emit(relax.op.less(relax.const(step, dtype_of(lengths)), lengths))
        rows[step] = node.emit(relax.op.where(going, new_hidden, scalar(0, new_hidden)))
        hidden = node.emit(relax.op.where(going, new_hidden, hidden))
        cell = node.emit(relax.op.where(going, new_cell, cell)) if cell is not None else None
    return stacked(node, rows, 0), hidden, cell


def _scan(node: Node, d: Direction, steps: Any, *, backwards: bool, lengths: Any | None) -> tuple[Any, Any, Any]:
    """The same as one loop nest, for a sequence whose length is symbolic or long."""
    dtype, size = dtype_of(d.inputs), d.size
    bias = d.recurrent_bias
    if bias is None:
        gates = node.shape_of(d.recurrent)[1]
        bias = node.emit(relax.op.zeros(relax.ShapeExpr([gates]), dtype))
    states = [d.hidden] if d.cell is None else [d.hidden, d.cell]
    recurrent = d.recurrent if d.cell is None else packed(node, d.recurrent, size)
    wide = "float64" if dtype == "float64" else "float32"
    arguments = [node.emit(cast(value, wide)) for value in (d.inputs, recurrent, bias, *states)]
    length, batch = node.shape_of(d.inputs)[:2]
    shapes = [[length, batch, size], *[[batch, size]] * len(states)]
    types = [relax.TensorType(list(map(relax_dim, shape)), wide) for shape in shapes]
    place = node.builder.add_func(
        _kernel(node, size, backwards, wide).without_attr("global_symbol"), f"{node.op.lower()}_scan"
    )
    both = node.emit(relax.call_tir(place, relax.Tuple(arguments), types))
    results = [node.emit(cast(node.emit(relax.TupleGetItem(both, i)), dtype)) for i in range(len(types))]
    return results[0], results[1], results[2] if len(results) > 2 else None


def packed(node: Node, recurrent: Any, size: int) -> Any:
    """Return `[hidden, gates · hidden]` as `[block, hidden, gate, unit]`, with zeros past the last unit."""
    block = lstm_scan.BLOCK
    gates = reshaped(node, recurrent, [size, 4, size])
    gates = node.emit(relax.op.nn.pad(gates, [0, 0, 0, 0, 0, -size % block]))
    return permuted(node, reshaped(node, gates, [size, 4, -(-size // block), block]), [2, 0, 1, 3])


def _kernel(node: Node, size: int, backwards: bool, dtype: str) -> Any:
    if node.op == "LSTM":
        return lstm_scan.lstm(size, backwards, dtype)
    if node.op == "GRU":
        return recurrent_scan.gru(size, backwards, bool(node.attr("linear_before_reset", 0)), dtype)
    return recurrent_scan.rnn(size, backwards, dtype)


def stacked(node: Node, tensors: Sequence[Any], axis: int) -> Any:
    """Return the tensors along a new axis."""
    rows = [node.emit(relax.op.expand_dims(tensor, axis)) for tensor in tensors]
    return rows[0] if len(rows) == 1 else node.emit(relax.op.concat(rows, axis))
