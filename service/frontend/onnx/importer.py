"""An ONNX graph as a Relax function: one walk, each node folded when its inputs are known, converted otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from relaxc.service.errors import CompileFailed, InvalidOption, ModelError, ModelMalformed
from relaxc.service.frontend.model import NODES_NAMED, Unsupported
from relaxc.service.frontend.nodes import Nodes
from relaxc.service.frontend.onnx import codes as onnx_codes
from relaxc.service.frontend.onnx import control as onnx_control
from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx import scope as onnx_scope
from relaxc.service.frontend.onnx import support as onnx_support
from relaxc.service.frontend.onnx.arithmetic import COMPARISONS
from relaxc.service.frontend.onnx.file import one_line
from relaxc.service.frontend.onnx.fold import FOLDS
from relaxc.service.frontend.onnx.function import body_of
from relaxc.service.frontend.onnx.graph import Graph, op_name
from relaxc.service.frontend.onnx.node import Node, Refused, Value, dtype_of
from relaxc.service.frontend.onnx.ops import converter_of
from relaxc.service.frontend.onnx.ops.sequence import Sequence
from relaxc.service.frontend.onnx.results import check_size, spec_of
from relaxc.service.frontend.onnx.values import MAX_FOLDED, Coded, Known, Undecided, known_ints
from relaxc.service.signature import Condition, TensorSpec

__all__ = ["Walk", "build"]


class _Skipped:
    """Stands for the outputs of a node that was refused, so that the rest of the graph is still looked at."""


_SKIPPED = _Skipped()


def build(
    graph: Graph, inputs: Iterable[TensorSpec], scope: onnx_scope.Scope, fixed: Mapping[str, int] | None = None
) -> tuple[Any, list[TensorSpec]]:
    """Return an IRModule whose `main` takes `inputs` and gives the graph's outputs as one flat tuple; and these
    outputs. It is for `fixed` values of inputs alone, and stops at others.

    Raise UnsupportedModel naming every node that is refused, or CompileFailed when a converter breaks.
    """
    from tvm import relax

    builder = relax.BlockBuilder()
    walk = Walk(graph, builder, scope)
    parameters = walk.declare(inputs)
    with builder.function("main", parameters), _ended(builder):
        with builder.dataflow():
            walk.read_codes()
            for name, number in (fixed or {}).items():
                walk.fix(name, number)
            walk.run(graph.nodes)
            walk.raise_refused()
            results = [walk.output(name) for name in graph.outputs]
            outputs = [tensor for tensor, _ in results]
            # Read here: outside of the function, a size that only the data decides has no name any more.
            named = zip(graph.outputs, results, strict=True)
            specs = [spec_of(name, output, scope, codes) for name, (output, codes) in named]
            result = builder.emit_output(relax.Tuple(outputs))
        builder.emit_func_output(result)
    assert walk.nodes is not None
    return walk.nodes.noted(builder.get()), specs


@contextlib.contextmanager
def _ended(builder: Any) -> Iterator[None]:
    """Ends the block that an error leaves open, of which TVM would complain on stderr."""
    try:
        yield
    except Exception:
        builder._end_block()
        raise


class Walk:
    """The walk over one graph; a subgraph is walked by a child that sees the outer names."""

    def __init__(self, graph: Graph, builder: Any, scope: onnx_scope.Scope) -> None:
        self.graph, self.builder, self.scope = graph, builder, scope
        self.values: dict[str, Any] = {}
        self.refused: dict[str, list[tuple[str, str]]] = {}
        self.constants: dict[int, tuple[Known, Any]] = {}
        self.nodes: Nodes | None = Nodes()
        """Names the node that gave each variable; None inside an operator that is expanded, which has its own nodes."""
        self.may_be_left = False
        """Whether this is a branch that runs with every call, and whose results a call may leave."""

    def declare(self, inputs: Iterable[TensorSpec]) -> list[Any]:
        """Return the function's parameters, under names that TVM allows."""
        from tvm import relax

        parameters: list[Any] = []
        for spec in inputs:
            name = onnx_dims.unique(spec.name, [parameter.name for parameter in parameters])
            check_size(f"input {spec.name!r}", list(spec.shape), spec.dtype)
            shape = [self.scope.expression(dim) for dim in spec.shape]
            parameters.append(relax.Var(name, relax.TensorType(shape, spec.dtype)))
            given = _known_if_empty(parameters[-1])
            self.values[spec.name] = given if spec.codes is None else onnx_codes.numbers_moved(given, spec.codes)
            self.scope.inputs[parameters[-1]] = spec.name
        for name, array in self.graph.weights.items():
            self.values[name] = Known(array, str(array.dtype))
        self.initialize(self.graph.model.graph)
        return parameters

    def read_codes(self) -> None:
        """Take inputs that are codes of what TVM has for that."""
        for name, value in self.values.items():
            if isinstance(value, Coded):
                node = Node("Identity", name, 0, {}, [value], 1, self.builder, self.scope, self)
                self.values[name] = onnx_codes.of_codes(node, value.codes, value.dtype)

    def fix(self, name: str, number: int) -> None:
        """Take an input of one integer for that, and have calls with another be refused. Raise InvalidOption for what
        is no such input, and a number that its dtype lacks.
        """
        import numpy as np
        from tvm import relax

        given = self.values.get(name) if name in self.graph.inputs else None
        shape = [] if given is None else [onnx_dims.number_of(dim) for dim in given.ty.shape.values]
        dtype = "" if given is None else dtype_of(given)
        if not dtype.startswith(("int", "uint")) or any(size != 1 for size in shape):
            raise InvalidOption(f"--value {name}: the model has no input of one integer of that name", option="values")
        if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
            raise InvalidOption(f"--value {name}: {number} is no {dtype}", option="values")
        array = np.full([1] * len(shape), number, dtype)
        node = Node("Identity", name, 0, {}, [given], 1, self.builder, self.scope, self)
        other = node.emit(relax.op.not_equal(given, relax.const(array, dtype)))
        node.require_zero_where(node.emit(relax.op.astype(node.emit(relax.op.reshape(other, ())), "int64")), 1)
        self.values[name] = Known(array, dtype)
        told = f"input {name!r} was fixed to {number} when the model was compiled"
        self.scope.conditions[told] = Condition("0 == 1", told, when=(name, "!=", number))

    def initialize(self, graph: Any) -> None:
        """Take the initializers that are still in the protobuf."""
        import onnx

        for tensor in graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            self.values[tensor.name] = Known(array, str(array.dtype))

    def run(self, nodes: Any) -> None:
        """Convert nodes in order; a refused one is noted."""
        for proto in nodes:
            inputs = [self.values[name] if name else None for name in proto.input]
            if any(value is _SKIPPED for value in inputs):
                results: list[Any] = [_SKIPPED] * len(proto.output)
            else:
                results = self._results(proto, inputs)
            for name, value in zip(proto.output, results, strict=False):
                if name and self.nodes is not None:
                    label = proto.name or proto.output[0]
                    if isinstance(value, Coded):
                        self.nodes.given(self.builder, value.codes, label)
                    value = self.nodes.given(self.builder, value, label)
                if name:
                    self.values[name] = value

    def _results(self, proto: Any, inputs: list[Value | None]) -> list[Any]:
        node = self._node(proto, inputs)
        try:
            results = self._convert(node, proto)
            missing = [n for n, v in zip_longest(proto.output, results[: len(proto.output)]) if n and v is None]
            if missing:
                raise Refused(f"its output {missing[0]!r} is not computed")
            return results
        except Refused as refusal:
            self.refused.setdefault(op_name(proto), []).append(
                (proto.name or proto.output[0], onnx_support.with_option(str(refusal)))
            )
            return [_SKIPPED] * len(proto.output)

    def _node(self, proto: Any, inputs: list[Value | None]) -> Node:
        opset = self.graph.opsets.get(proto.domain, 1)
        attributes = {attribute.name: _attribute(attribute) for attribute in proto.attribute}
        while inputs and inputs[-1] is None:
            inputs.pop()
        name, outputs = proto.name or proto.output[0], len(proto.output)
        return Node(op_name(proto), name, opset, attributes, inputs, outputs, self.builder, self.scope, self)

    def _convert(self, node: Node, proto: Any) -> list[Any]:
        """The outputs; what goes wrong has a name.

        TVM's shape rules and numpy raise ValueError for operands that do not fit, which onnx.checker does not see in
        all operators, and an axis of what has none divides by 0. Every other exception is ours.
        """
        name = proto.name or proto.output[0]
        try:
            return self._outputs(node, proto)
        except (Refused, CompileFailed, ModelError, *onnx_scope.RESTARTS):
            raise
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise ModelMalformed(f"node {name!r} ({node.op}) does not fit its inputs: {one_line(error)}") from error
        except Exception as error:
            cause = f"{type(error).__name__}: {one_line(error)}"
            raise CompileFailed(
                f"importing node {name!r} ({node.op}) failed: {cause}", stage="import", node=name, op=node.op
            ) from error

    def _outputs(self, node: Node, proto: Any) -> list[Any]:
        if node.op in onnx_control.CONTROL:
            return onnx_control.CONTROL[node.op](node, proto)
        results = self.converted(node)
        return self._expand(node, proto) if results is None else results

    def converted(self, node: Node) -> list[Any] | None:
        """Return the outputs of a node that has a converter, or whose inputs decide them now; None for another."""
        folded = self._fold(node)
        if folded is not None:
            return folded
        converter = converter_of(node.op)
        if converter is None:
            return None
        node, dtype = onnx_codes.codes_moved(node)
        results = converter(node)
        results = list(results) if isinstance(results, list | tuple) else [results]
        return [onnx_codes.numbers_moved(self._settle(node, value), dtype) for value in results]

    def _expand(self, node: Node, proto: Any) -> list[Any]:
        """The operator by its definition in the specification, walked with names of its own."""
        types = [type_proto(node, index) for index in range(len(node.inputs))]
        body = body_of(proto, node.opset, types)
        if body is None:
            raise Refused("there is no converter for this operator")
        inner = self.child({}, body.opsets)
        for index, name in enumerate(body.inputs):
            inner.values[name] = node.inputs[index] if index < len(node.inputs) else None
        inner.nodes = None
        inner.run(body.nodes)
        inner.hand_over()
        return [inner.values.get(name) for name in body.outputs[: len(proto.output)]]

    def child(self, values: dict[str, Any], opsets: dict[str, int] | None = None) -> Walk:
        """Return a walk of an inner graph, which sees `values`."""
        graph = self.graph if opsets is None else replace(self.graph, opsets=self.graph.opsets | opsets)
        inner = Walk(graph, self.builder, self.scope)
        inner.values = dict(values)
        inner.constants, inner.may_be_left, inner.nodes = self.constants, self.may_be_left, self.nodes
        return inner

    def hand_over(self) -> None:
        """Give what an inner walk refused to the node that it belongs to."""
        if self.refused:
            inner, nodes = next(iter(self.refused.items()))
            raise Refused(f"inside of it, {inner}: {nodes[0][1]}")

    def _fold(self, node: Node) -> list[Any] | None:
        """The outputs when the inputs decide them now; None otherwise."""
        import numpy as np

        if node.op in ("Shape", "Size"):
            return [_shape(node)]
        function = FOLDS.get(node.op)
        if function is None or not node.inputs:
            return None
        if not all(
            value is None or (isinstance(value, Known) and value.array.size <= MAX_FOLDED) for value in node.inputs
        ):
            return None
        dtype = node.attr_dtype("to") if node.op == "Cast" else node.known_dtype(1 if node.op == "Where" else 0)
        dtype = "bool" if node.op in COMPARISONS else dtype
        try:
            result = function(node)
            return [
                self._known(np.asarray(array), dtype) for array in (result if isinstance(result, list) else [result])
            ]
        except Undecided:
            return None

    def _known(self, array: Any, dtype: str) -> Known:
        if array.dtype != object:
            return Known(array, str(array.dtype))
        values = array.reshape(-1).tolist()
        if any(isinstance(value, float) and not value.is_integer() for value in values):
            raise Undecided  # sizes are whole numbers, and so is all that is beside them
        values = [int(value) if isinstance(value, float) else value for value in values]
        return known_ints(values, self.scope, dtype, array.shape)

    def _settle(self, node: Node, value: Value) -> Value:
        """The value with a type in which every dim has a name, those that the data decides included."""
        from tvm import ir, relax

        if isinstance(value, Known | Coded | Sequence) or value is None:
            return value
        value = value if isinstance(value, relax.Var | ir.GenericConst) else node.emit(value)
        if value.ty.ndim < 0:
            raise Refused("the rank of its output is unknown")
        if value.ty.shape is None:
            dims = [self.scope.fresh(f"{node.op}_{axis}".lower()) for axis in range(value.ty.ndim)]
            value = self.builder.match_cast(value, relax.TensorType(dims, value.ty.dtype))
        check_size(f"node {node.name!r} ({node.op})", node.shape_of(value), dtype_of(value))
        return _known_if_empty(value)

    def output(self, name: str) -> tuple[Any, str | None]:
        """Return an output of the graph as a tensor, and what this has the codes of, if any."""
        value = self.values[name]
        node = Node("Identity", name, 0, {}, [value], 1, self.builder, self.scope, self)
        return onnx_codes.as_codes(node, value)

    def raise_refused(self) -> None:
        """Raise UnsupportedModel when a node was refused."""
        if self.refused:
            raise onnx_support.unsupported_error(
                {
                    op: Unsupported(len(nodes), tuple(name for name, _ in nodes[:NODES_NAMED]), nodes[0][1])
                    for op, nodes in self.refused.items()
                }
            )


def _known_if_empty(value: Any) -> Value:
    """The value, which is known where it has no elements in any call."""
    import numpy as np

    shape = [onnx_dims.number_of(dim) for dim in value.ty.shape.values]
    if 0 not in shape or None in shape:
        return value
    return Known(np.empty(shape, Node.numpy_dtype(dtype_of(value))), dtype_of(value))


def type_proto(node: Node, index: int) -> Any:
    """Return the type of an input as ONNX writes it."""
    import onnx

    if not node.has(index):
        return onnx.TypeProto()
    data_type = onnx.helper.np_dtype_to_tensor_dtype(node.numpy_dtype(node.dtype(index)))
    dims = [dim if isinstance(dim, int) else str(onnx_dims.dim_text(dim)) for dim in node.shape(index)]
    return onnx.helper.make_tensor_type_proto(data_type, dims)


def _shape(node: Node) -> Known:
    dims = node.shape(0)
    if node.op == "Size":
        return known_ints([onnx_dims.product(dims)], node.scope, shape=())
    return known_ints(dims[node.attr("start", 0) : node.attr("end", None)], node.scope)


def _attribute(attribute: Any) -> Any:
    """An attribute as int, float, str, tuple of these, numpy array or GraphProto."""
    import onnx

    kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
    value = onnx.helper.get_attribute_value(attribute)
    if kind == "STRING":
        return value.decode(errors="replace")
    if kind == "STRINGS":
        return tuple(text.decode(errors="replace") for text in value)
    if kind == "TENSOR":
        return onnx.numpy_helper.to_array(value)
    return tuple(value) if isinstance(value, list) or kind.endswith("S") else value
