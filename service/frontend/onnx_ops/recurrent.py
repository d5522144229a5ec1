"""LSTM, GRU and RNN, unrolled over a static number of steps: one product for all inputs, one small product a step.

`X` is `[steps, batch, input]` (`[batch, steps, input]` with layout=1); `W` and `R` have a row block for each direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from service.frontend.onnx_node import Node, Refused, dtype_of
from service.frontend.onnx_ops.activation import exponential_unit, hard_sigmoid, softplus
from service.frontend.onnx_ops.common import permuted, relax_dim, reshaped, scalar
from service.frontend.onnx_ops.matmul import matmul
from service.frontend.onnx_ops.registry import op

MAX_STEPS = 1024
"""Steps times directions over which unrolling would take minutes to compile."""

Activation = Callable[[Node, Any, float, float], Any]


def _scaled_tanh(node: Node, x: Any, alpha: float, beta: float) -> Any:
    inner = node.emit(relax.op.multiply(x, scalar(beta, x)))
    return node.emit(relax.op.multiply(node.emit(relax.op.tanh(inner)), scalar(alpha, x)))


def _affine(node: Node, x: Any, alpha: float, beta: float) -> Any:
    return node.emit(relax.op.add(node.emit(relax.op.multiply(x, scalar(alpha, x))), scalar(beta, x)))


def _softsign(node: Node, x: Any, alpha: float, beta: float) -> Any:
    return node.emit(relax.op.divide(x, node.emit(relax.op.add(node.emit(relax.op.abs(x)), scalar(1, x)))))


def _thresholded(node: Node, x: Any, alpha: float, beta: float) -> Any:
    return node.emit(relax.op.where(node.emit(relax.op.greater_equal(x, scalar(alpha, x))), x, scalar(0, x)))


# name → function, default alpha, default beta (the table in the specification of LSTM).
_ACTIVATIONS: dict[str, tuple[Activation, float, float]] = {
    "sigmoid": (lambda n, x, a, b: n.emit(relax.op.sigmoid(x)), 0, 0),
    "tanh": (lambda n, x, a, b: n.emit(relax.op.tanh(x)), 0, 0),
    "relu": (lambda n, x, a, b: n.emit(relax.op.nn.relu(x)), 0, 0),
    "leakyrelu": (lambda n, x, a, b: n.emit(relax.op.nn.leakyrelu(x, a)), 0.01, 0),
    "thresholdedrelu": (_thresholded, 1.0, 0),
    "scaledtanh": (_scaled_tanh, 1.0, 1.0),
    "hardsigmoid": (hard_sigmoid, 0.2, 0.5),
    "elu": (lambda n, x, a, b: n.emit(exponential_unit(n, x, a)), 1.0, 0),
    "softsign": (_softsign, 0, 0),
    "softplus": (lambda n, x, a, b: softplus(n, x), 0, 0),
    "affine": (_affine, 1.0, 0),
}


@dataclass
class _Direction:
    """One direction's weights, ready for products, its activations and its initial state."""

    inputs: Any  # x · Wᵀ + Wb for every step: [steps, batch, gates · hidden]
    recurrent: Any  # Rᵀ: [hidden, gates · hidden]
    recurrent_bias: Any | None  # [gates · hidden]
    peepholes: list[Any] | None
    activations: list[Callable[[Any], Any]]
    hidden: Any
    cell: Any | None
    size: int
    clip: float | None
    node: Node

    def gates(self, x: Any, count: int) -> list[Any]:
        """The gates of a `[batch, gates · hidden]`."""
        node, size = self.node, self.size
        return [
            node.emit(relax.op.strided_slice(x, [1], [g * size], [(g + 1) * size], [1], assume_inbound=True))
            for g in range(count)
        ]

    def clipped(self, x: Any) -> Any:
        """A gate's sum, within ±clip when there is one."""
        if self.clip is None:
            return x
        low = self.node.emit(relax.op.maximum(x, scalar(-self.clip, x)))
        return self.node.emit(relax.op.minimum(low, scalar(self.clip, x)))


def _lstm_step(d: _Direction, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
    """Gates in the order input, output, forget, cell."""
    node = d.node
    add, multiply = relax.op.add, relax.op.multiply
    total = node.emit(add(x, matmul(node, hidden, d.recurrent)))
    if d.recurrent_bias is not None:
        total = node.emit(add(total, d.recurrent_bias))
    i, o, f, c = d.gates(total, 4)
    if d.peepholes is not None:
        i = node.emit(add(i, node.emit(multiply(d.peepholes[0], cell))))
        f = node.emit(add(f, node.emit(multiply(d.peepholes[2], cell))))
    gate, squash, out = d.activations
    i, f, c = gate(d.clipped(i)), gate(d.clipped(f)), squash(d.clipped(c))
    if d.node.attr("input_forget", 0):
        f = node.emit(relax.op.subtract(scalar(1, i), i))
    new = node.emit(add(node.emit(multiply(f, cell)), node.emit(multiply(i, c))))
    if d.peepholes is not None:
        o = node.emit(add(o, node.emit(multiply(d.peepholes[1], new))))
    return node.emit(multiply(gate(d.clipped(o)), out(new))), new


def _gru_step(d: _Direction, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
    """Gates in the order update, reset, hidden; `linear_before_reset` resets the product instead of its operand."""
    node, size = d.node, d.size
    add, multiply = relax.op.add, relax.op.multiply
    gate, squash = d.activations
    xz, xr, xh = d.gates(x, 3)
    if node.attr("linear_before_reset", 0):
        total = matmul(node, hidden, d.recurrent)
        if d.recurrent_bias is not None:
            total = node.emit(add(total, d.recurrent_bias))
        rz, rr, rh = d.gates(total, 3)
        update = gate(d.clipped(node.emit(add(xz, rz))))
        reset = gate(d.clipped(node.emit(add(xr, rr))))
        inner = node.emit(add(xh, node.emit(multiply(reset, rh))))
    else:
        zr = node.emit(relax.op.strided_slice(d.recurrent, [1], [0], [2 * size], [1], assume_inbound=True))
        last = node.emit(relax.op.strided_slice(d.recurrent, [1], [2 * size], [3 * size], [1], assume_inbound=True))
        rz, rr = d.gates(matmul(node, hidden, zr), 2)
        bz, br, bh = _split_bias(d)
        update = gate(d.clipped(_sum(node, xz, rz, bz)))
        reset = gate(d.clipped(_sum(node, xr, rr, br)))
        inner = _sum(node, xh, matmul(node, node.emit(multiply(reset, hidden)), last), bh)
    new = squash(d.clipped(inner))
    kept = node.emit(multiply(update, hidden))
    fresh = node.emit(multiply(node.emit(relax.op.subtract(scalar(1, update), update)), new))
    return node.emit(add(fresh, kept)), None


def _split_bias(d: _Direction) -> list[Any | None]:
    if d.recurrent_bias is None:
        return [None] * 3
    row = reshaped(d.node, d.recurrent_bias, [1, 3 * d.size])
    return d.gates(row, 3)


def _sum(node: Node, *terms: Any) -> Any:
    total, *rest = [term for term in terms if term is not None]
    for term in rest:
        total = node.emit(relax.op.add(total, term))
    return total


def _rnn_step(d: _Direction, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
    total = _sum(d.node, x, matmul(d.node, hidden, d.recurrent), d.recurrent_bias)
    return d.activations[0](d.clipped(total)), None


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_STEP = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}
_DEFAULT = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@op("LSTM", "GRU", "RNN")
def _recurrent(node: Node) -> Any:
    batch_first = bool(node.attr("layout", 0))
    x = node.tensor(0)
    if batch_first:
        x = permuted(node, x, [1, 0, 2])
    steps = node.shape_of(x)[0]
    directions = (
        ["forward", "reverse"]
        if node.attr("direction", "forward") == "bidirectional"
        else [node.attr("direction", "forward")]
    )
    if not isinstance(steps, int):
        raise Refused("a sequence of symbolic length")
    if steps * len(directions) > MAX_STEPS:
        raise Refused(f"{steps} steps; up to {MAX_STEPS} are unrolled")
    lengths = _lengths(node, steps)
    outputs = [
        _run(node, _direction(node, x, place, batch_first), steps, backwards=name == "reverse", lengths=lengths)
        for place, name in enumerate(directions)
    ]
    sequence = _stacked(
        node, [_stacked(node, step, 0) for step in zip(*(rows for rows, _, _ in outputs), strict=True)], 0
    )
    last = _stacked(node, [hidden for _, hidden, _ in outputs], 0)
    results = [sequence, last]
    if node.op == "LSTM":
        results.append(_stacked(node, [cell for _, _, cell in outputs], 0))
    if batch_first:
        results = [permuted(node, results[0], [2, 0, 1, 3]), *(permuted(node, r, [1, 0, 2]) for r in results[1:])]
    return results


def _lengths(node: Node, steps: int) -> Any | None:
    """`sequence_lens`, or None where every sequence is as long as the tensor."""
    if not node.has(4):
        return None
    if node.is_known(4) and (node.inputs[4].array == steps).all():
        return None
    return reshaped(node, node.tensor(4), [*node.shape(4), 1])


def _direction(node: Node, x: Any, place: int, batch_first: bool) -> _Direction:
    gates, size = _GATES[node.op], int(node.attr("hidden_size") or node.static_shape(2, "R")[-1])
    batch = node.shape_of(x)[1]
    weight, recurrent = (permuted(node, _pick(node, index, place), [1, 0]) for index in (1, 2))
    inputs = matmul(node, x, weight)
    recurrent_bias = None
    if node.has(3):
        bias = _pick(node, 3, place)
        halves = [
            node.emit(relax.op.strided_slice(bias, [0], [h * gates * size], [(h + 1) * gates * size])) for h in (0, 1)
        ]
        inputs, recurrent_bias = node.emit(relax.op.add(inputs, halves[0])), halves[1]
    peepholes = None
    if node.op == "LSTM" and node.has(7):
        row = _pick(node, 7, place)
        peepholes = [node.emit(relax.op.strided_slice(row, [0], [p * size], [(p + 1) * size])) for p in range(3)]
    return _Direction(
        inputs,
        recurrent,
        recurrent_bias,
        peepholes,
        _activations(node, place),
        _initial(node, 5, place, batch, size, batch_first),
        _initial(node, 6, place, batch, size, batch_first) if node.op == "LSTM" else None,
        size,
        node.attr("clip"),
        node,
    )


def _pick(node: Node, index: int, place: int, axis: int = 0) -> Any:
    x = node.emit(relax.op.strided_slice(node.tensor(index), [axis], [place], [place + 1]))
    shape = node.shape_of(x)
    return reshaped(node, x, [dim for i, dim in enumerate(shape) if i != axis])


def _initial(node: Node, index: int, place: int, batch: Any, size: int, batch_first: bool) -> Any:
    if node.has(index):
        return _pick(node, index, place, 1 if batch_first else 0)
    dtype = node.dtype(0)
    return node.emit(relax.op.full(relax.ShapeExpr([relax_dim(batch), relax_dim(size)]), relax.const(0, dtype), dtype))


def _activations(node: Node, place: int) -> list[Callable[[Any], Any]]:
    """The direction's functions; alphas and betas are listed only for those functions that have them, in order."""
    default = _DEFAULT[node.op]
    names = list(node.attr("activations", ())) or default * 2
    alphas, betas = list(node.attr("activation_alpha", ())), list(node.attr("activation_beta", ()))
    made = []
    for name in names[: (place + 1) * len(default)]:
        if name.lower() not in _ACTIVATIONS:
            raise Refused(f"the activation {name}")
        function, alpha, beta = _ACTIVATIONS[name.lower()]
        alpha = alphas.pop(0) if alphas and alpha else alpha
        beta = betas.pop(0) if betas and beta else beta
        made.append(lambda x, f=function, a=alpha, b=beta: f(node, x, a, b))
    return made[place * len(default) :]


def _run(
    node: Node, d: _Direction, steps: int, *, backwards: bool, lengths: Any | None
) -> tuple[Sequence[Any], Any, Any]:
    """The hidden state after each step (in the order of the sequence), and the last states.

    A sequence that is shorter than the tensor keeps its state when it is over, and its outputs there are 0.
    """
    hidden, cell = d.hidden, d.cell
    rows: list[Any] = [None] * steps
    for step in reversed(range(steps)) if backwards else range(steps):
        x = node.emit(relax.op.strided_slice(d.inputs, [0], [step], [step + 1]))
        x = reshaped(node, x, node.shape_of(x)[1:])
        new_hidden, new_cell = _STEP[node.op](d, x, hidden, cell)
        if lengths is None:
            hidden, cell, rows[step] = new_hidden, new_cell, new_hidden
            continue
        going = node.emit(relax.op.less(relax.const(step, dtype_of(lengths)), lengths))
        rows[step] = node.emit(relax.op.where(going, new_hidden, scalar(0, new_hidden)))
        hidden = node.emit(relax.op.where(going, new_hidden, hidden))
        cell = node.emit(relax.op.where(going, new_cell, cell)) if cell is not None else None
    return rows, hidden, cell


def _stacked(node: Node, tensors: Sequence[Any], axis: int) -> Any:
    rows = [node.emit(relax.op.expand_dims(tensor, axis)) for tensor in tensors]
    return rows[0] if len(rows) == 1 else node.emit(relax.op.concat(rows, axis))
