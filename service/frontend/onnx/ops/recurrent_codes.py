"""DynamicQuantizeLSTM: an LSTM whose weights are codes, and whose products round their other operand to 8 bits."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops import lstm_codes
from relaxc.service.frontend.onnx.ops.common import cast, relax_dim
from relaxc.service.frontend.onnx.ops.quantize import dynamic_codes
from relaxc.service.frontend.onnx.ops.recurrent import first_state, packed, part, stacked
from relaxc.service.frontend.onnx.ops.registry import op

_USUAL = ["sigmoid", "tanh", "tanh"]


@op("com.microsoft::DynamicQuantizeLSTM")
def _lstm(node: Node) -> Any:
    """Inputs: those of LSTM, whose `W` and `R` are turned here, then scale and zero point of each.

    Of a batch ONNX Runtime may round each row by its own range, as it has threads; here all rows have one.
    """
    steps, batch = _plain(node)
    both = node.attr("direction", "forward") == "bidirectional"
    directions = ["forward", "reverse"] if both else [node.attr("direction", "forward")]
    codes, scale, point = dynamic_codes(node, node.tensor(0))
    x = node.emit(relax.op.subtract(*(node.emit(cast(each, "int32")) for each in (codes, point))))
    results = [
        _direction(node, x, scale, place, [steps, batch], backwards=name == "reverse")
        for place, name in enumerate(directions)
    ]
    return [stacked(node, list(each), axis) for each, axis in zip(zip(*results, strict=True), (1, 0, 0), strict=True)]


def _plain(node: Node) -> list[Any]:
    """The steps and the batch. Raise Refused for what ONNX Runtime's quantizer does not write."""
    shape = node.shape(0)
    names = [name.lower() for name in node.attr("activations", ())]
    whole = not node.has(4)
    if node.is_known(4) and isinstance(shape[0], int):
        whole = bool((node.inputs[4].array == shape[0]).all())
    if not whole or node.has(7) or node.attr("clip") or node.attr("input_forget", 0):
        raise Refused("sequence_lens, peepholes, clip or input_forget")
    if names not in ([], _USUAL, _USUAL * 2):
        raise Refused(f"the activations {', '.join(names)}")
    return shape[:2]


def _direction(node: Node, x: Any, scale: Any, place: int, sizes: list[Any], *, backwards: bool) -> list[Any]:
    """The hidden states `[steps, batch, hidden]`, and the last hidden and cell state."""
    size = int(node.attr("hidden_size"))
    weight, step = _weight(node, 1, place, size)
    recurrent, recurrent_step = _weight(node, 2, place, size)
    total = node.emit(cast(node.emit(relax.op.matmul(x, weight)), "float32"))
    inputs = node.emit(relax.op.multiply(total, node.emit(relax.op.multiply(step, scale))))
    bias = node.emit(relax.op.zeros(relax.ShapeExpr([4 * size]), "float32"))
    if node.has(3):
        own = part(node, 3, place)
        bias = node.emit(
            relax.op.add(*(node.emit(relax.op.strided_slice(own, [0], [k * size], [(k + 4) * size])) for k in (0, 4)))
        )
    rows = packed(node, node.emit(cast(recurrent, "float32")), size)
    states = [first_state(node, index, place, sizes[1], size, False) for index in (5, 6)]
    shapes = [[*sizes, size], *[[sizes[1], size]] * 2]
    types = [relax.TensorType(list(map(relax_dim, shape)), "float32") for shape in shapes]
    kernel = lstm_codes.lstm(size, backwards).without_attr("global_symbol")
    kind = node.builder.add_func(kernel, "lstm_of_codes")
    made = node.emit(relax.call_tir(kind, relax.Tuple([inputs, rows, recurrent_step, bias, *states]), types))
    return [node.emit(relax.TupleGetItem(made, index)) for index in range(3)]


def _weight(node: Node, index: int, place: int, size: int) -> tuple[Any, Any]:
    """A direction's codes less their zero points, `[depth, 4 · hidden]` in int32, and the scale of each column."""
    codes = node.emit(cast(part(node, index, place), "int32"))
    at = 8 if index == 1 else 10
    scale = _columns(node, at, place, size)
    if node.has(at + 1):
        codes = node.emit(relax.op.subtract(codes, node.emit(cast(_columns(node, at + 1, place, size), "int32"))))
    return codes, scale


def _columns(node: Node, index: int, place: int, size: int) -> Any:
    """A direction's parameter for each column, which may be one for all."""
    own = part(node, index, place) if node.rank(index) else node.tensor(index)
    return node.emit(relax.op.broadcast_to(own, relax.ShapeExpr([4 * size])))
