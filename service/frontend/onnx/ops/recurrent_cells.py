"""The cells of recurrent layers: activations, and one step of an LSTM, a GRU and an RNN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.activation import exponential_unit, hard_sigmoid, softplus
from relaxc.service.frontend.onnx.ops.common import reshaped, scalar
from relaxc.service.frontend.onnx.ops.matmul import matmul

__all__ = ["DEFAULT", "GATES", "STEP", "Direction", "activations"]

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
class Direction:
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
        """Return the gates of a `[batch, gates · hidden]`."""
        node, size = self.node, self.size
        return [
            node.emit(relax.op.strided_slice(x, [1], [g * size], [(g + 1) * size], [1], assume_inbound=True))
            for g in range(count)
        ]

    def clipped(self, x: Any) -> Any:
        """Return a gate's sum, within ±clip when there is one."""
        if self.clip is None:
            return x
        low = self.node.emit(relax.op.maximum(x, scalar(-self.clip, x)))
        return self.node.emit(relax.op.minimum(low, scalar(self.clip, x)))


def _lstm_step(d: Direction, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
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


def _gru_step(d: Direction, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
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


def _split_bias(d: Direction) -> list[Any | None]:
    if d.recurrent_bias is None:
        return [None] * 3
    row = reshaped(d.node, d.recurrent_bias, [1, 3 * d.size])
    return d.gates(row, 3)


def _sum(node: Node, *terms: Any) -> Any:
    total, *rest = [term for term in terms if term is not None]
    for term in rest:
        total = node.emit(relax.op.add(total, term))
    return total


def _rnn_step(d: Direction, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
    total = _sum(d.node, x, matmul(d.node, hidden, d.recurrent), d.recurrent_bias)
    return d.activations[0](d.clipped(total)), None


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEP = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}
DEFAULT = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def activations(node: Node, place: int) -> list[Callable[[Any], Any]]:
    """Return the direction's functions; alphas and betas are listed only for those functions that have them, in
    order.
    """
    default = DEFAULT[node.op]
    names = list(node.attr("activations", ())) or default * 2
    alphas, betas = list(node.attr("activation_alpha", ())), list(node.attr("activation_beta", ()))
    made: list[Callable[[Any], Any]] = []
    for name in names[: (place + 1) * len(default)]:
        if name.lower() not in _ACTIVATIONS:
            raise Refused(f"the activation {name}")
        function, alpha, beta = _ACTIVATIONS[name.lower()]
        alpha = alphas.pop(0) if alphas and alpha else alpha
        beta = betas.pop(0) if betas and beta else beta
        made.append(_bound(node, function, alpha, beta))
    return made[place * len(default) :]


def _bound(node: Node, function: Activation, alpha: float, beta: float) -> Callable[[Any], Any]:
    return lambda x: function(node, x, alpha, beta)
