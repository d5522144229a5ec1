"""The Signature of an exported program, from its JSON alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relaxc.service.errors import InvalidShape, ModelMalformed, UnsupportedModel
from relaxc.service.frontend.model import Shapes
from relaxc.service.frontend.pt2.guards import conditions
from relaxc.service.frontend.pt2.symbols import Symbols, parse_expression
from relaxc.service.signature import Dim, JsonScalar, Signature, TensorSpec

__all__ = ["Interface", "Leaf", "interface", "signature"]

_DTYPES = {
    "BOOL": "bool",
    "BYTE": "uint8",
    "CHAR": "int8",
    "SHORT": "int16",
    "INT": "int32",
    "LONG": "int64",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "HALF": "float16",
    "BFLOAT16": "bfloat16",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT": "float32",
    "DOUBLE": "float64",
}


@dataclass(frozen=True)
class Leaf:
    """One value that a program takes or returns.

    A tensor has a dtype and `shape`, sympy expressions; a number that is fixed has `value`; a number that is computed
    from sizes is an int64 tensor of rank 0 here. `dtype` None marks a value that is no tensor.
    """

    name: str
    dtype: str | None
    shape: tuple[Any, ...] = ()
    value: JsonScalar = None


Ranges = dict[str, tuple[int | None, int | None]]
"""The least and the largest size of each symbol."""


@dataclass(frozen=True)
class Interface:
    """What a program takes and returns, the range of each symbol by its name in the file, and what its sizes must be to
    each other, as Python text.
    """

    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    ranges: Ranges
    guards: tuple[str, ...] = ()


def interface(program: Any, inputs: list[str], outputs: list[str], guards: Sequence[str] = ()) -> Interface:
    """Return the interface of a checked schema.ExportedProgram, its leaves named; checked, it has no guards any more.

    Raise UnsupportedModel for dtypes and kinds of input that we do not have, ModelMalformed for tensors without meta.
    """
    module = program.graph_module
    taken = [spec for spec in module.signature.input_specs if str(spec.type) in ("user_input", "constant_input")]
    given = [spec for spec in module.signature.output_specs if str(spec.type) in ("user_output", "loss_output")]
    ranges = {name: (found.min_val, found.max_val) for name, found in program.range_constraints.items()}
    leaves = tuple(_input(module.graph, spec, name) for spec, name in zip(taken, inputs, strict=True))
    return Interface(
        leaves,
        tuple(_value(module.graph, spec.value.arg, name) for spec, name in zip(given, outputs, strict=True)),
        _with_batches_of_one(ranges, leaves, module.graph),
        tuple(guards),
    )


def _with_batches_of_one(ranges: Ranges, inputs: Sequence[Leaf], graph: Any) -> Ranges:
    """The ranges with 1 as the least size of batches for which the export has 2.

    For torch that is no bound but its assumption that no symbol is 0 or 1, which a call may break. A batch is the first
    size of every input that has it; a squeeze of symbolic sizes is the operator that may do something else to 1.
    """
    if any(_squeezes_symbols(node, graph) for node in graph.nodes):
        return ranges
    first = {str(leaf.shape[0]) for leaf in inputs if leaf.shape}
    others = {str(symbol) for leaf in inputs for size in leaf.shape[1:] for symbol in size.free_symbols}
    return {name: (1 if low == 2 and name in first - others else low, high) for name, (low, high) in ranges.items()}


def _squeezes_symbols(node: Any, graph: Any) -> bool:
    if not str(node.target).startswith("torch.ops.aten.squeeze"):
        return False
    data, *dims = (given.arg for given in node.inputs)
    if str(data.type) != "as_tensor":
        return True
    shape = _tensor(graph, data.as_tensor.name, data.as_tensor.name).shape
    if not dims or str(dims[0].type) not in ("as_int", "as_ints"):
        return any(size.free_symbols for size in shape)
    asked = [dims[0].as_int] if str(dims[0].type) == "as_int" else dims[0].as_ints
    return any(not -len(shape) <= dim < len(shape) or shape[dim].free_symbols for dim in asked)


def signature(found: Interface, shapes: Shapes) -> tuple[Signature, Symbols]:
    """Return the signature with the user's shapes applied, and the symbols that it names. Raise InvalidShape."""
    symbols = Symbols(found.ranges)
    tensors = {leaf.name: leaf for leaf in found.inputs if leaf.dtype is not None}
    for leaf in tensors.values():
        for expression in leaf.shape:
            symbols.meet(expression)
    for name, shape in shapes.items():
        if name not in tensors:
            raise InvalidShape(f"there is no tensor input {name!r}; there are {', '.join(tensors)}", name=name)
        symbols.apply(name, list(tensors[name].shape), shape)
    inputs = tuple(_spec(leaf, symbols) for leaf in found.inputs if leaf.dtype is not None)
    outputs = tuple(_spec(leaf, symbols) for leaf in found.outputs if leaf.dtype is not None)
    constants = tuple((leaf.name, leaf.value) for leaf in found.inputs if leaf.dtype is None)
    held = conditions(found.guards, {spec.name: spec.shape for spec in inputs})
    return Signature(inputs, outputs, symbols.bounds(), constants, held), symbols


def _spec(leaf: Leaf, symbols: Symbols) -> TensorSpec:
    assert leaf.dtype is not None
    shape: tuple[Dim, ...] = tuple(symbols.dim(expression) for expression in leaf.shape)
    return TensorSpec(leaf.name, leaf.dtype, shape)


def _input(graph: Any, spec: Any, name: str) -> Leaf:
    if str(spec.type) == "constant_input":
        return Leaf(name, None, value=_scalar(spec.constant_input.value))
    leaf = _value(graph, spec.user_input.arg, name)
    if str(spec.user_input.arg.type) == "as_sym_int":
        raise UnsupportedModel(
            f"the input {name!r} is a number that may change from run to run",
            remedy="Export with the number fixed, or pass it as a tensor.",
        )
    return leaf


def _scalar(value: Any) -> JsonScalar:
    kind = str(value.type)
    return None if kind == "as_none" else value.value


def _value(graph: Any, argument: Any, name: str) -> Leaf:
    if not hasattr(argument, "_type"):  # a loss_output's TensorArgument
        return _tensor(graph, argument.name, name)
    kind = str(argument.type)
    if kind == "as_tensor":
        return _tensor(graph, argument.as_tensor.name, name)
    if kind == "as_sym_int":
        return Leaf(name, "int64")
    if kind in ("as_int", "as_float", "as_bool"):
        return Leaf(name, {"as_int": "int64", "as_float": "float32", "as_bool": "bool"}[kind], value=argument.value)
    if kind in ("as_none", "as_string"):
        return Leaf(name, None, value=None if kind == "as_none" else argument.value)
    raise UnsupportedModel(f"{name!r} is neither a tensor nor a number: {kind.removeprefix('as_')}")


def _tensor(graph: Any, key: str, name: str) -> Leaf:
    meta = graph.tensor_values.get(key)
    if meta is None:
        raise ModelMalformed(f"the tensor {key!r} has no shape and dtype in the program")
    dtype = _DTYPES.get(meta.dtype.name)
    if dtype is None:
        raise UnsupportedModel(
            f"{name!r} has the dtype {meta.dtype.name.lower()}, which we do not have", dtype=meta.dtype.name
        )
    return Leaf(name, dtype, tuple(_size(dim) for dim in meta.sizes))


def _size(dim: Any) -> Any:
    import sympy

    return sympy.Integer(dim.as_int) if str(dim.type) == "as_int" else parse_expression(dim.as_expr.expr_str)
