"""The same model in double precision, node by node: what rounds in float32 is computed, and kept, in float64.

Convolutions are sums of products in numpy (`onnx.double_convs`), for which ONNX Runtime has no double kernels; sigmoids
are numpy's. The rest is ONNX Runtime's where it has one, and else the ONNX project's evaluator's. Of that, what steps
through an output in Python would take for ever: such operators (`_FLAT`), of few sums an element, run in float32 and
round once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relaxc.service.errors import ModelMalformed, ModelTooLarge
from relaxc.service.frontend.model import Reference
from relaxc.service.frontend.onnx.double_convs import conv, conv_transpose
from relaxc.service.frontend.onnx.evaluator import evaluator
from relaxc.service.frontend.onnx.file import one_line, subgraphs, tensors
from relaxc.service.frontend.onnx.function import inlined, with_types
from relaxc.service.frontend.onnx.sessions import bare_session, runtime_errors
from relaxc.service.frontend.onnx.widen import DOUBLE, FLOAT32, widened

__all__ = ["Node", "in_double"]

Array = np.ndarray[Any, Any]

_MOST_BYTES = 1 << 31
"""Of the values that are alive at once, weights included, in double precision."""
_MOST_PRODUCTS = 1 << 37
"""Of a run, in convolutions and matrix products: about ten seconds of a core."""

_FLAT = frozenset({"AveragePool", "Col2Im", "GridSample", "LpPool"})
_IR = 8
"""Of the models of one node: what opsets 23 and before ask for at most, and ONNX Runtime takes of any of them."""


def _sigmoid(x: Array) -> Array:
    """ONNX Runtime's is by tanh, of which nothing under 1e-16 is left."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


_CONVOLUTIONS = {"Conv": conv, "ConvTranspose": conv_transpose}
_OWN: Mapping[str, Callable[..., Array]] = {**_CONVOLUTIONS, "Sigmoid": _sigmoid}


def in_double(model: Any) -> Reference | None:
    """Return what runs `model`, which is changed; None where it has loops, outputs of no known dtype, or nothing in
    float32.

    Outputs are rounded to what the model declares. A run raises ModelTooLarge where it would take more than
    `_MOST_BYTES` or `_MOST_PRODUCTS`, and ModelMalformed where a node runs nowhere.
    """
    import onnx

    graphs = [model.graph, *subgraphs(model.graph.node)]
    holders = [node for graph in graphs for node in graph.node if next(subgraphs([node]), None) is not None]
    if any(node.op_type != "If" for node in holders):
        return None
    declared = {value.name: value.type.tensor_type.elem_type for value in with_types(model).graph.output}
    if not all(declared.values()):
        return None
    model = widened(inlined(model), FLOAT32, DOUBLE)
    if not any(tensor.data_type == DOUBLE for tensor in tensors(model)):
        return None
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(dtype) for name, dtype in declared.items()}
    nodes = [Node(node, model.opset_import) for node in model.graph.node]
    del model.graph.initializer[:]

    def run(inputs: Mapping[str, Any], /) -> dict[str, Any]:
        values = {**held, **{name: _widened(value) for name, value in inputs.items()}}
        _run(nodes, values, dtypes)
        return {name: values[name].astype(dtype, copy=False) for name, dtype in dtypes.items()}

    return run


def _run(nodes: Sequence[Node], values: dict[str, Any], kept: Mapping[str, Any]) -> None:
    """Compute the values of all nodes; those that no later node reads are let go."""
    last = {name: at for at, node in enumerate(nodes) for name in node.reads}
    products = 0
    for at, node in enumerate(nodes):
        operands = [values[name] if name else None for name in node.inputs]
        products += _products(node.kind, operands)
        alive = sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))
        if products > _MOST_PRODUCTS or alive > _MOST_BYTES:
            raise ModelTooLarge(f"it takes over {_MOST_PRODUCTS} products or {_MOST_BYTES} bytes in float64")
        found = node.run(operands) if node.kind != "If" else _of_branch(node, values)
        values.update(zip(node.outputs, found, strict=False))
        for name in {*node.reads, *node.outputs}:
            if last.get(name, -1) <= at and name not in kept:
                values.pop(name, None)


def _of_branch(node: Node, values: Mapping[str, Any]) -> list[Any]:
    """What the branch that is taken gives; it sees the values outside of it."""
    from onnx import numpy_helper

    graph = node.attributes["then_branch" if np.asarray(values[node.inputs[0]]).reshape(-1)[0] else "else_branch"]
    inner = {**values, **{tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}}
    names = [value.name for value in graph.output]
    _run([Node(each, node.opsets) for each in graph.node], inner, dict.fromkeys([*values, *names]))
    return [inner[name] for name in names]


def _products(kind: str, operands: Sequence[Any]) -> int:
    """About how many multiplications a node takes; 0 of what is not made of products."""
    if kind in _CONVOLUTIONS:  # of strides that are 1
        return int(operands[0].size // operands[0].shape[1] * operands[1].size)
    if kind in ("MatMul", "Gemm"):
        return int(operands[0].size * operands[1].shape[-1])
    return 0


def _widened(value: Any) -> Any:
    return value.astype(np.float64) if value.dtype == np.float32 else value


class Node:
    """One node of the graph, and what runs it, which its first run finds out."""

    def __init__(self, node: Any, opsets: Any) -> None:
        """`node` is of a model `widened` to float64, whose `opset_import` these are."""
        from onnx.helper import get_attribute_value

        self.node, self.opsets = node, list(opsets)
        self.kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        self.inputs, self.outputs = list(node.input), [name for name in node.output if name]
        inner = [*subgraphs([node])]
        self.reads = [*self.inputs, *(name for graph in inner for each in graph.node for name in each.input)]
        self.reads += [value.name for graph in inner for value in graph.output]
        self.attributes = {each.name: get_attribute_value(each) for each in node.attribute}
        self.ways: list[Callable[[Sequence[Any]], Sequence[Any]]] = [self.by_runtime, self.by_evaluator]
        if self.kind in _OWN:
            self.ways = [lambda operands: [_OWN[self.kind](*operands, **self.attributes)]]
        elif self.kind in _FLAT:
            self.ways = [self.in_float]
        self.built: Any = None

    def run(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Return its outputs. Raise ModelMalformed where nothing takes it."""
        refused: tuple[type[Exception], ...] = (*runtime_errors(), ArithmeticError, LookupError, RuntimeError)
        refused += (AttributeError, TypeError, ValueError)  # what the evaluator raises for what it does not take
        why: Exception | None = None
        for way in list(self.ways):
            try:
                return way(operands)
            except refused as error:
                why, self.built = error, None
                self.ways.remove(way)
        raise ModelMalformed(f"{self.kind} does not run in float64: {one_line(why)}") from why

    def by_runtime(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Run it alone in ONNX Runtime."""
        self.built = self.built or bare_session(self.alone(operands).SerializeToString())
        found: Sequence[Any] = self.built.run(self.outputs, self.given(operands))
        return found

    def in_float(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Run it alone in ONNX Runtime, in float32."""
        return [_widened(value) for value in self.by_runtime([_narrowed(value) for value in operands])]

    def by_evaluator(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Run it alone in the ONNX project's evaluator."""
        self.built = self.built or evaluator(self.alone(operands))
        return [np.asarray(value) for value in self.built.run(self.outputs, self.given(operands))]

    def given(self, operands: Sequence[Any]) -> dict[str, Any]:
        return {name: value for name, value in zip(self.inputs, operands, strict=True) if name}

    def alone(self, operands: Sequence[Any]) -> Any:
        """Return the model that is this node, of inputs of any shape."""
        from onnx import ValueInfoProto, helper

        kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in self.given(operands).items()}
        inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
        graph = helper.make_graph([self.node], "node", inputs, [ValueInfoProto(name=name) for name in self.outputs])
        return helper.make_model(graph, opset_imports=self.opsets, ir_version=_IR)


def _narrowed(value: Any) -> Any:
    return value.astype(np.float32) if value is not None and value.dtype == np.float64 else value
