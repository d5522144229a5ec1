"""What an operator's converter is given: attributes, inputs as tensors or as known values, and a builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx import contracts
from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx import scope as onnx_scope
from relaxc.service.frontend.onnx.tensor_expression import dtype_of, one_of, tensor_expression
from relaxc.service.frontend.onnx.values import Coded, Known, known_ints, tensor_of

__all__ = ["DTYPES", "Converter", "Node", "Refused", "Value", "dtype_name", "dtype_of"]

DTYPES = frozenset(
    {"float8_e4m3fn", "float16", "bfloat16", "float32", "float64", "bool"}
    | {f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)}
)
"""The dtypes that a tensor may have in what we build."""

Value = Any
"""A Relax expression of tensor type, a `Known`, or a `Coded`."""


class Refused(Exception):
    """A converter does not take this node; the message says what of it, in the words of the ONNX specification."""


class Node:
    """One node while it is converted. Inputs are counted from 0; an absent optional input is None."""

    def __init__(
        self,
        op: str,
        name: str,
        opset: int,
        attributes: dict[str, Any],
        inputs: Sequence[Value],
        output_count: int,
        builder: Any,
        scope: onnx_scope.Scope,
        walk: Any = None,
    ) -> None:
        self.op, self.name, self.opset = op, name, opset
        self.attributes, self.inputs, self.output_count = attributes, list(inputs), output_count
        self.builder, self.scope, self.walk = builder, scope, walk

    # Attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute: int, float, str, tuple of these, array, or the default, of floats a float32."""
        if isinstance(default, float) and name not in self.attributes:
            return float(self.numpy_dtype("float32").type(default))
        return self.attributes.get(name, default)

    def attr_dtype(self, name: str) -> str:
        """Return an attribute that is an onnx.TensorProto.DataType, as a dtype's name."""
        return dtype_name(self.attributes[name])

    @staticmethod
    def numpy_dtype(dtype: str) -> Any:
        """Return the numpy dtype of that name, bfloat16 included."""
        import ml_dtypes
        import numpy as np

        return np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)

    def apply(self, op: str, *inputs: Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """Return what an operator of opset 18 gives of these values: a value, or a list of several."""
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        other = Node(op, self.name, 18, attributes, given, outputs, self.builder, self.scope, self.walk)
        results = self.walk.converted(other)
        return results[0] if outputs == 1 else results

    # Known values

    def has(self, index: int) -> bool:
        """Return whether an optional input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    @property
    def arrays(self) -> list[Any]:
        """The inputs' arrays, all of which are known; an absent one is None."""
        return [None if value is None else value.array for value in self.inputs]

    def known_dtype(self, index: int) -> str:
        """Return the dtype of a known input."""
        value = self.inputs[index]
        return str(value.dtype) if isinstance(value, Known) else self.dtype(index)

    def is_known(self, index: int) -> bool:
        """Return whether an input is there and known before the run."""
        return self.has(index) and isinstance(self.inputs[index], Known)

    def dims(self, index: int, what: str) -> list[Any]:
        """Return a vector of sizes, ints and expressions; what is computed from data is read as the program runs.

        Raise Refused when nobody knows how many they are.
        """
        if not self.has(index):
            raise Refused(f"{what} is missing")
        if not self.is_known(index):
            from relaxc.service.frontend.onnx.reading import sizes_of

            return sizes_of(self, index)
        return [
            value if not isinstance(value, int) and hasattr(value, "ty") else int(value)
            for value in self.inputs[index].array.reshape(-1).tolist()
        ]

    def ints(self, index: int, what: str) -> list[int]:
        """Return a known vector of numbers. Raise Refused when one is symbolic, or computed from data."""
        if not self.is_known(index):
            raise Refused(f"{what} is computed from the inputs' values")
        dims = self.dims(index, what)
        if not all(isinstance(dim, int) for dim in dims):
            raise Refused(f"{what} depends on a symbolic size")
        return dims

    def scalar(self, index: int, what: str) -> Any:
        """Return a known number of any dtype."""
        if not self.is_known(index) or self.inputs[index].symbolic:
            raise Refused(f"{what} is computed from the inputs' values")
        if self.inputs[index].array.size != 1:
            raise Refused(f"{what} has {self.inputs[index].array.size} elements instead of one")
        return self.inputs[index].array.reshape(()).item()

    def axes(self, index: int) -> tuple[int, ...] | None:
        """Return the axes of a node, which newer opsets give as an input and older ones as an attribute; None when
        absent.
        """
        if self.has(index):
            axes = tuple(self.ints(index, "the list of axes"))
            return axes or None
        axes = self.attr("axes")
        return None if axes is None else tuple(axes)

    def slice_arguments(self) -> tuple[list[Any], list[Any], list[int], list[int]]:
        """Return starts, ends, axes and steps of a Slice in any opset."""
        if not self.has(1):
            starts, ends = list(self.attr("starts")), list(self.attr("ends"))
            return starts, ends, list(self.attr("axes", range(len(starts)))), [1] * len(starts)
        starts, ends = self.dims(1, "starts"), self.dims(2, "ends")
        return starts, ends, *self.slice_axes(len(starts))

    def slice_axes(self, count: int) -> tuple[list[int], list[int]]:
        """Return the axes of so many starts, and their steps."""
        axes = self.ints(3, "axes") if self.has(3) else list(range(count))
        steps = self.ints(4, "steps") if self.has(4) else [1] * count
        return [axis % self.rank(0) for axis in axes], steps

    def split_sizes(self, size: Any) -> list[Any]:
        """Return the sizes of a Split's parts along an axis of `size`, where a call may need one that splits so."""
        if self.has(1):
            return self.dims(1, "split")
        if self.attr("split") is not None:
            return list(self.attr("split"))
        parts = self.attr("num_outputs", self.output_count)
        if isinstance(size, int):
            each = -(-size // parts)
        elif self.attr("num_outputs") is None:
            self.require(size % parts, "==", 0, f"splits an axis of {onnx_dims.told(size)} into {parts} equal parts")
            return [size // parts] * parts
        else:
            each = (size + parts - 1) // parts
            self.require(size - each * (parts - 1), ">=", 1, f"splits an axis of {onnx_dims.told(size)} into {parts}")
        return [each] * (parts - 1) + [size - each * (parts - 1)]

    # Tensors

    def tensor(self, index: int) -> Any:
        """Return an input as a Relax expression."""
        return self.materialize(self.inputs[index])

    def materialize(self, value: Value) -> Any:
        """Return a value as a Relax expression: known numbers become a constant, symbolic ones a small kernel."""
        from tvm import relax

        if isinstance(value, Coded):
            raise Refused(f"an operand of dtype {value.dtype}")
        if not isinstance(value, Known):
            return value
        if value.symbolic:
            return self._compute_sizes(value)
        if value.dtype not in DTYPES:
            raise Refused(f"a constant of dtype {value.dtype}")
        if id(value) not in self.walk.constants:
            # The value is kept with its constant, so that its id stays its own.
            array = value.array if str(value.array.dtype) == value.dtype else value.array.astype(value.dtype)
            self.walk.constants[id(value)] = value, relax.const(tensor_of(array))
        return self.walk.constants[id(value)][1]

    def _compute_sizes(self, value: Known) -> Any:
        from tvm import te, tirx

        def kernel(own: list[Any]) -> Any:
            def element(*index: Any) -> Any:
                flat = tirx.const(0, "int64")
                for position, extent in zip(index, value.array.shape, strict=True):
                    flat = flat * extent + position
                return one_of(flat, own).astype(value.dtype)

            return te.compute(value.array.shape, element, name="sizes")

        sizes = value.array.reshape(-1).tolist()
        if is_condition := value.dtype == "bool":
            sizes = [int(size) if isinstance(size, bool) else size.astype("int64") for size in sizes]
        made = self.te_of_sizes(kernel, sizes, "sizes")
        if len(sizes) == 1 and not is_condition:
            self.scope.ranges[made] = sizes[0], sizes[0]
        return made

    def te_of_sizes(self, kernel: Callable[[list[Any]], Any], sizes: Sequence[Any], name: str) -> Any:
        """Return a tensor expression of sizes alone."""
        return self.te(lambda *own: kernel(list(own)), *map(_expression, sizes), primfunc_name_hint=name)

    def emit(self, expression: Any) -> Any:
        """Return a Relax call bound to a variable, with its type; its sizes are checked, now or at each call."""
        from tvm import relax

        if not isinstance(expression, relax.Call):
            return self.builder.emit(expression)
        call = self._flat(expression)
        contracts.check(call, self.require, self.scope, may_be_left=self.walk.may_be_left)
        call = self.builder.normalize(call)
        contracts.check_result(call, self.require)
        return self.builder.emit(call)

    def _flat(self, call: Any) -> Any:
        """The call with the calls among its arguments emitted before it."""
        from tvm import relax

        def flat(argument: Any) -> Any:
            if isinstance(argument, relax.Call):
                return self.emit(argument)
            if isinstance(argument, relax.Tuple) and any(isinstance(field, relax.Call) for field in argument.fields):
                return relax.Tuple([flat(field) for field in argument.fields])
            return argument

        arguments = [flat(argument) for argument in call.args]
        if all(new is old for new, old in zip(arguments, call.args, strict=True)):
            return call
        return relax.Call(call.op, arguments, call.attrs, call.ty_args)

    def require(self, left: Any, relation: str, right: Any, what: str) -> None:
        """Have `left == right`, `!=` or `>=` hold of every call, at import if it is known, else when it begins.

        `what` says of what, with `{left}` and `{right}` in it. What the data decides is checked as the program runs.
        Raise ModelMalformed where no sizes do, Equal where a name is decided, Refused for what has no text.
        """
        if isinstance(left, int) and isinstance(right, int) and (left == right or (left > right and relation == ">=")):
            return
        told = what.format(left=onnx_dims.told(left), right=onnx_dims.told(right))
        try:
            apart = self.scope.require(left, relation, right, f"node {self.name!r} ({self.op}) {told}")
        except onnx_scope.Never as error:
            raise ModelMalformed(str(error), node=self.name) from error
        except NotImplementedError as error:
            raise Refused(f"sizes that no call can be held to: {error}") from error
        if apart is not None:
            self._require_zero(apart)

    def require_zero_where(self, taken: Any, size: Any) -> None:
        """Have the program stop where `taken`, a tensor of rank 0, is 1 and a size is not 0."""
        from tvm import relax

        given = self.materialize(self.known([size]))
        self.require_zeros(self.emit(relax.op.multiply(given, taken)))

    def _require_zero(self, size: Any) -> None:
        """Have the program stop where a size, which the data decides, is not 0."""
        self.require_zeros(self.materialize(self.known([size])))

    def require_zeros(self, computed: Any, count: int = 1) -> None:
        """Have the program stop where one of so many numbers is not 0."""
        from tvm import relax

        shape = relax.op.call_pure_packed("vm.builtin.tensor_to_shape", computed, ty_args=[relax.ShapeType(ndim=count)])
        self.builder.match_cast(self.builder.emit(shape), relax.ShapeType([0] * count))

    def te(self, function: Callable[..., Any], *args: Any, primfunc_name_hint: str = "") -> Any:
        """Return the result of a tensor expression of tensors, sizes and plain values."""
        name = primfunc_name_hint or self.op.rpartition(":")[2].lower()
        return self.emit(tensor_expression(self.builder, self.scope, function, args, name))

    def bits(self, x: Any, dtype: str) -> Any:
        """Return the bits of a tensor as those of another dtype of as many."""
        from tvm import te, tirx

        return self.te(lambda x: te.compute(x.shape, lambda *at: tirx.reinterpret(dtype, x(*at)), name="bits"), x)

    def const(self, value: Any, dtype: str) -> Any:
        """Return a constant of a dtype."""
        from tvm import relax

        return relax.const(value, dtype)

    def shape(self, index: int) -> list[Any]:
        """Return the dims of an input: ints where they are numbers."""
        value = self.inputs[index]
        return list(value.array.shape) if isinstance(value, Known) else self.shape_of(value)

    def shape_of(self, expression: Any) -> list[Any]:
        """Return the dims of an expression, or of known numbers."""
        if isinstance(expression, Known):
            return list(expression.array.shape)
        return [onnx_dims.simplify(dim, self.scope) for dim in expression.ty.shape.values]

    def static_shape(self, index: int, what: str) -> list[int]:
        """Return the dims of an input when all of them are numbers."""
        shape = self.shape(index)
        if not all(isinstance(dim, int) for dim in shape):
            raise Refused(f"{what} has a symbolic size")
        return shape

    def rank(self, index: int) -> int:
        """Return the number of axes of an input."""
        return len(self.shape(index))

    def dtype(self, index: int) -> str:
        """Return the dtype of an input."""
        value = self.inputs[index]
        return str(value.dtype) if isinstance(value, Known | Coded) else dtype_of(value)

    def known(self, sizes: Sequence[Any], dtype: str = "int64") -> Known:
        """Return sizes as a known vector."""
        return known_ints(list(sizes), self.scope, dtype)


def _expression(size: Any) -> Any:
    from tvm import tirx

    return tirx.const(size, "int64") if isinstance(size, int) else size


def dtype_name(data_type: int) -> str:
    """Return the name that TVM and numpy give an onnx.TensorProto.DataType."""
    import onnx

    return str(onnx.helper.tensor_dtype_to_np_dtype(data_type))


Converter = Callable[[Node], Any]
"""Node → its outputs: a Value for one, a sequence of Values for more. Raises Refused."""
