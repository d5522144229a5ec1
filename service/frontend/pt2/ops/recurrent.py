"""LSTM, GRU and RNN layers, kept whole by torch and unrolled here over a sequence of known length.

The products with the input are one matrix product for the whole sequence; a step adds the product with the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter, is_prim
from relaxc.service.frontend.pt2.ops.linear import matmul
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op

_MAX_STEPS = 2048
"""Steps over all layers and directions: each is about a dozen operators."""

State = tuple[Any, ...]
Step = Callable[[Emitter, Any, State, Any, Any], State]


@converts("aten.lstm.input", keep=True)
def _lstm(em: Emitter, x: Any, states: Sequence[Any], weights: Sequence[Any], *options: Any) -> Any:
    return _run(em, x, tuple(states), weights, options, _lstm_step, merge_bias=True)


@converts("aten.gru.input", keep=True)
def _gru(em: Emitter, x: Any, state: Any, weights: Sequence[Any], *options: Any) -> Any:
    return _run(em, x, (state,), weights, options, _gru_step, merge_bias=False)


@converts("aten.rnn_tanh.input", "aten.rnn_relu.input", keep=True)
def _rnn(em: Emitter, x: Any, state: Any, weights: Sequence[Any], *options: Any) -> Any:
    step = _tanh_step if "tanh" in em.node.target.name() else _relu_step
    return _run(em, x, (state,), weights, options, step, merge_bias=True)


def _run(
    em: Emitter,
    x: Any,
    states: State,
    weights: Sequence[Any],
    options: tuple[Any, ...],
    step: Step,
    *,
    merge_bias: bool,
) -> Any:
    """(outputs, final state, …) of a stack of layers; `options` are the rest of the operator's schema."""
    has_biases, layers, dropout, train, bidirectional, batch_first = options
    if train and dropout:
        raise em.refuse("dropout between layers at inference")
    if batch_first:
        x = em.permute(x, [1, 0, 2])
    directions = 2 if bidirectional else 1
    length = em.shape(x)[0]
    if is_prim(length) or length * layers * directions > _MAX_STEPS:
        raise em.refuse(f"a sequence of {length} steps: the length must be known, and at most {_MAX_STEPS} in all")
    stride = 4 if has_biases else 2
    if len(weights) != stride * layers * directions:
        raise em.refuse("a projection of the state (proj_size)")
    finals: list[State] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            start = tuple(_row(em, state, cell) for state in states)
            sequence, final = _layer(
                em, x, start, weights[cell * stride : (cell + 1) * stride], step, bool(direction), merge_bias
            )
            outputs.append(sequence)
            finals.append(final)
        x = outputs[0] if directions == 1 else em(op.concat(outputs, axis=2))
    if batch_first:
        x = em.permute(x, [1, 0, 2])
    return x, *(_stacked(em, [final[index] for final in finals]) for index in range(len(states)))


def _layer(
    em: Emitter, x: Any, state: State, weights: Sequence[Any], step: Step, backward: bool, merge_bias: bool
) -> tuple[Any, State]:
    """One direction of one layer over x[t, b, i]: outputs[t, b, h] and the final state."""
    dtype = em.dtype(x)
    gates = matmul(em, x, em.permute(weights[0], [1, 0]), dtype)
    inner = em.permute(weights[1], [1, 0])
    bias = None
    if len(weights) == 4:
        gates = em(op.add(gates, em(op.add(weights[2], weights[3])) if merge_bias else weights[2]))
        bias = None if merge_bias else weights[3]
    length = em.shape(x)[0]
    outputs: list[Any] = [None] * length
    for time in reversed(range(length)) if backward else range(length):
        state = step(em, _row(em, gates, time), state, inner, bias)
        outputs[time] = state[0]
    return _stacked(em, outputs), state


def _row(em: Emitter, x: Any, index: int) -> Any:
    return em.reshape(em.slice(x, 0, index, 1), em.shape(x)[1:])


def _stacked(em: Emitter, rows: list[Any]) -> Any:
    apart = [em.reshape(row, [1, *em.shape(row)]) for row in rows]
    return apart[0] if len(apart) == 1 else em(op.concat(apart, axis=0))


def _parts(em: Emitter, x: Any, count: int) -> list[Any]:
    width = em.shape(x)[-1] // count
    return [em.slice(x, em.rank(x) - 1, index * width, width) for index in range(count)]


def _half(em: Emitter, function: Callable[[Any], Any], x: Any) -> Any:
    return em.cast(em(function(em.wide(x))), em.dtype(x))


def _lstm_step(em: Emitter, gates: Any, state: State, inner: Any, bias: Any) -> State:
    """i, f, g, o = gates + h W; c' = sigmoid(f) c + sigmoid(i) tanh(g); h' = sigmoid(o) tanh(c')."""
    h, c = state
    total = em(op.add(gates, matmul(em, h, inner, em.dtype(h))))
    i, f, g, o = _parts(em, total, 4)
    keep = em(op.multiply(_half(em, op.sigmoid, f), c))
    take = em(op.multiply(_half(em, op.sigmoid, i), _half(em, op.tanh, g)))
    c = em(op.add(keep, take))
    return em(op.multiply(_half(em, op.sigmoid, o), _half(em, op.tanh, c))), c


def _gru_step(em: Emitter, gates: Any, state: State, inner: Any, bias: Any) -> State:
    """r, z = sigmoid(gates + h W); n = tanh(gates_n + r (h W_n + b_n)); h' = (1 - z) n + z h."""
    (h,) = state
    hidden = matmul(em, h, inner, em.dtype(h))
    if bias is not None:
        hidden = em(op.add(hidden, bias))
    input_r, input_z, input_n = _parts(em, gates, 3)
    hidden_r, hidden_z, hidden_n = _parts(em, hidden, 3)
    r = _half(em, op.sigmoid, em(op.add(input_r, hidden_r)))
    z = _half(em, op.sigmoid, em(op.add(input_z, hidden_z)))
    n = _half(em, op.tanh, em(op.add(input_n, em(op.multiply(r, hidden_n)))))
    return (em(op.add(n, em(op.multiply(z, em(op.subtract(h, n)))))),)


def _tanh_step(em: Emitter, gates: Any, state: State, inner: Any, bias: Any) -> State:
    return (_half(em, op.tanh, em(op.add(gates, matmul(em, state[0], inner, em.dtype(state[0]))))),)


def _relu_step(em: Emitter, gates: Any, state: State, inner: Any, bias: Any) -> State:
    return (em(op.nn.relu(em(op.add(gates, matmul(em, state[0], inner, em.dtype(state[0])))))),)
