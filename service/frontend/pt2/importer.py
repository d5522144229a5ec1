"""A decomposed program as a Relax module, node by node.

TVM's own importer (`tvm.relax.frontend.torch.from_exported_program`) was the start. This one differs in that every
node's dtype and shape is held against what torch computed for it, sizes come from torch's symbolic expressions
instead of from translated arithmetic, and each operator's arguments are bound by its schema.
"""

from __future__ import annotations

import re
from typing import Any

from tvm import IRModule, relax, runtime, tirx

from relaxc.service.errors import CompileFailed, ModelMalformed, UnsupportedModel
from relaxc.service.frontend.nodes import Nodes
from relaxc.service.frontend.pt2.emit import Emitter, is_prim, torch_dtype
from relaxc.service.frontend.pt2.graph import SKIPPED, is_size, op_name
from relaxc.service.frontend.pt2.ops import CONVERTERS
from relaxc.service.frontend.pt2.signature import Interface, Leaf
from relaxc.service.frontend.pt2.state import state_of
from relaxc.service.frontend.pt2.symbols import Symbols
from relaxc.service.frontend.pt2.torch_calls import TORCH_ERRORS
from relaxc.service.frontend.write_guard import WriteGuard
from relaxc.service.signature import STATE

__all__ = ["to_relax"]

# TVM takes no memory that is aligned less. torch aligns the entries of an archive, but not parts of one entry.
_ALIGNMENT = 64


def to_relax(program: Any, interface: Interface, symbols: Symbols) -> Any:
    """Return the program as an IRModule by the convention of docs/stages.md.

    Raise UnsupportedModel where a converter does not take a use of its operator, and CompileFailed where one gives
    another shape than torch does, or a size that is not what the signature says.
    """
    return _Importer(program, interface, symbols).run()


class _Importer:
    def __init__(self, program: Any, interface: Interface, symbols: Symbols) -> None:
        self.program = program
        self.interface = interface
        self.bb = relax.BlockBuilder()
        self.em = Emitter(self.bb, symbols)
        self.values: dict[Any, Any] = {}
        self.state = state_of(program)
        self.nodes = Nodes()

    def run(self) -> Any:
        params = [*self._parameters(), *self._state()]
        if self.state:
            self.em.guard = WriteGuard(self.bb)
        excess = None
        with self.bb.function("main", params=params):
            with self.bb.dataflow():
                self._constants()
                for node in self.program.graph.nodes:
                    if node.op == "call_function":
                        self.values[node] = self._given(node, self._convert(node))
                    elif node.op in ("get_attr", "call_module", "call_method"):
                        raise UnsupportedModel(f"the program calls a nested graph at {node}", node=str(node))
                results = self._results()
                if self.em.guard is not None and (excess := self.em.guard.excess()) is not None:
                    results.append(excess)
                result = self.bb.emit_output(relax.Tuple([*results, *self._next_state()]))
            self.bb.emit_func_output(result)
        return self.nodes.noted(self._finished(self.bb.get(), excess))

    def _finished(self, module: Any, excess: Any) -> Any:
        if not self.state:
            return module
        main = module["main"]
        if excess is not None:
            assert self.em.guard is not None
            main = self.em.guard.finish(main, excess)
        module = IRModule({module.get_global_var("main"): main.with_attr(STATE, len(self.state))})
        return relax.transform.Normalize()(module)

    def _given(self, node: Any, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._given(node, part) for part in value)
        return self.nodes.given(self.bb, value, _path(node))

    # Inputs and weights

    def _parameters(self) -> list[Any]:
        """A variable for each tensor input, used or not; the fixed ones become Python values."""
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        specs = [spec for spec in self.program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
        self.em.symbols.anchor([dim for leaf in self.interface.inputs for dim in leaf.shape])
        params, taken = [], set[str]()
        for spec, leaf in zip(specs, self.interface.inputs, strict=True):
            node = nodes.get(spec.arg.name)
            if leaf.dtype is None:
                if node is not None:
                    self.values[node] = leaf.value
                continue
            name = _variable_name(leaf.name, taken)
            var = relax.Var(name, relax.TensorType([self.em.size(dim) for dim in leaf.shape], leaf.dtype))
            params.append(var)
            if node is not None:
                self.values[node] = var
        return params

    def _state(self) -> list[Any]:
        """A variable for each buffer that the program changes, behind the inputs."""
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        specs = {spec.target: spec for spec in self.program.graph_signature.input_specs}
        params, taken = [], set[str]()
        for name in self.state:
            node = nodes[specs[name].arg.name]
            tensor = node.meta["val"]
            var = relax.Var(
                _variable_name(f"state_{name}", taken),
                relax.TensorType(self.em.sizes(tensor.shape), torch_dtype(tensor.dtype)),
            )
            self.values[node] = var
            params.append(var)
        return params

    def _next_state(self) -> list[Any]:
        return [self._emitted(self.values[node]) for node in self.state.values()]

    def _emitted(self, value: Any) -> Any:
        return value if isinstance(value, relax.Var) else self.bb.emit(value)

    def _constants(self) -> None:
        """Weights, buffers and lifted tensors as constants that share torch's memory."""
        stored = {**self.program.constants, **self.program.state_dict}
        made: dict[tuple[Any, ...], Any] = {}
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        for spec in self.program.graph_signature.input_specs:
            if spec.kind.name == "USER_INPUT" or spec.target in self.state:
                continue
            if spec.kind.name not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR") or spec.target not in stored:
                raise UnsupportedModel(f"the program takes {spec.arg.name} as {spec.kind.name.lower()}")
            node = nodes[spec.arg.name]
            if node.users:
                tensor = stored[spec.target].detach()
                if tensor.numel() == 0:  # no constant of TVM's that can be read again
                    self.values[node] = self.bb.emit(relax.op.zeros(list(tensor.shape), torch_dtype(tensor.dtype)))
                    continue
                key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
                if key not in made:
                    made[key] = _constant(tensor)
                self.values[node] = made[key]

    # Nodes

    def _convert(self, node: Any) -> Any:
        name, meta = op_name(node.target), node.meta.get("val")
        if name in SKIPPED:
            return None
        if name == "_operator.getitem":
            return self._item(node)
        if name not in CONVERTERS and is_size(meta):
            return self._size(node, meta)
        self.em.node = node
        if _is_empty(meta):  # a literal 0 in a shape means 'as before' to some Relax operators
            return self.bb.emit(relax.op.zeros(self.em.out_shape(), self.em.out_dtype()))
        arguments = [self._value(argument) for argument in _bound(node)]
        try:
            result = CONVERTERS[name](self.em, *arguments)
        except TORCH_ERRORS as error:  # what TVM and Python raise for operands that do not fit
            raise CompileFailed(f"{name} at {node}: {str(error)[:300]}", stage="import", node=str(node)) from error
        if isinstance(result, tuple):
            metas = list(meta)
            parts = [
                None if part is None else self._checked(node, part, metas[index]) for index, part in enumerate(result)
            ]
            return tuple(parts)
        return self._checked(node, result, meta)

    def _item(self, node: Any) -> Any:
        source, index = node.args
        values = self.values[source]
        if not isinstance(values, tuple) or index >= len(values) or values[index] is None:
            raise UnsupportedModel(
                f"{op_name(source.target)} at {source}: its result {index} is used, which we do not compute",
                node=str(source),
                op=op_name(source.target),
            )
        return values[index]

    def _size(self, node: Any, meta: Any) -> Any:
        if isinstance(meta, int | float | bool):
            return meta
        if type(meta).__name__ == "SymInt":
            return None if op_name(node.target).startswith("aten._local") else self.em.size(meta)
        if any(op_name(user.target) in CONVERTERS for user in node.users):
            raise UnsupportedModel(f"{node} is a fraction or a condition computed from sizes", node=str(node))
        return None  # only asserts and further sizes use it

    def _value(self, argument: Any) -> Any:
        """An argument with every node in it replaced by its value."""
        if hasattr(argument, "op") and hasattr(argument, "users"):
            if argument not in self.values:
                raise CompileFailed(f"{argument} is used before it is computed", stage="import")
            return self.values[argument]
        if isinstance(argument, list | tuple):
            return [self._value(item) for item in argument]
        return argument

    def _checked(self, node: Any, value: Any, meta: Any) -> Any:
        """The value as torch types it: cast where the dtype differs, matched where the shape is written otherwise."""
        if meta is None or is_size(meta):
            return value
        value = self.bb.normalize(value)
        if not isinstance(value, relax.Var) and not isinstance(value.ty, relax.TensorType):
            raise CompileFailed(f"the converter of {node.target} gave no tensor", stage="import", node=str(node))
        dtype, shape = torch_dtype(meta.dtype), self.em.sizes(meta.shape)
        if self.em.dtype(value) != dtype:
            value = self.em.cast(value, dtype)
        found = self.em.shape(value) if value.ty.shape is not None else None
        if found is not None and (len(found) != len(shape) or any(map(_differ, found, shape))):
            raise CompileFailed(
                f"the converter of {node.target} gave the shape {found} at {node}, torch has {shape}",
                stage="import",
                node=str(node),
            )
        if found is None:
            return self.bb.match_cast(value, relax.TensorType(shape, dtype))
        others = [(old, new) for old, new in zip(found, shape, strict=True) if str(old) != str(new)]
        if not others:
            return value
        if any(isinstance(new, tirx.Var) for _, new in others):
            return self._renamed(node, value, shape, others)
        cast = self.bb.match_cast(value, relax.TensorType(shape, dtype))
        self.em.matched[cast] = value
        return cast

    def _renamed(self, node: Any, value: Any, shape: list[Any], others: list[tuple[Any, Any]]) -> Any:
        """The value with sizes that are names of inputs, and every call held to that where it does not follow.

        Of a match_cast TVM would take the name for what it is matched with, and put that into itself for ever.
        """
        symbols = self.em.symbols
        for old, new in others:
            told = f"{node} has the size {symbols.told(new)}, and is computed as {symbols.told(old)}"
            if not (symbols.require(old, new, told) and symbols.require(new, old, told)):
                raise CompileFailed(told, stage="import", node=str(node))
        return self.bb.emit(relax.op.reshape(value, shape))

    # Results

    def _results(self) -> list[Any]:
        (output,) = [node for node in self.program.graph.nodes if node.op == "output"]
        flat = list(output.args[0]) if isinstance(output.args[0], list | tuple) else [output.args[0]]
        specs = self.program.graph_signature.output_specs
        kept = [
            value for value, spec in zip(flat, specs, strict=True) if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")
        ]
        results = []
        for argument, leaf in zip(kept, self.interface.outputs, strict=True):
            if leaf.dtype is not None:
                results.append(self._result(self._value(argument), leaf))
        if not results:
            raise UnsupportedModel("the program returns no tensor")
        return results

    def _result(self, value: Any, leaf: Leaf) -> Any:
        assert leaf.dtype is not None
        if not isinstance(value, relax.Expr) or is_prim(value):
            value = self.em.tensor(value, leaf.dtype)
        value = self.bb.normalize(value)
        found, wanted = self.em.shape(value), self.em.sizes(leaf.shape)
        if self.em.dtype(value) != leaf.dtype or len(found) != len(wanted) or any(map(_differ, found, wanted)):
            raise ModelMalformed(
                f"the program says that {leaf.name} is {leaf.dtype}{wanted}; it computes {self.em.dtype(value)}{found}",
                name=leaf.name,
            )
        return self._emitted(value)


def _path(node: Any) -> str:
    """What people know a node by: `layer1.0.conv1/conv2d_3`, its module's path and its own name."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(modules[-1][0]) if modules else ""
    return f"{path}/{node}" if path else str(node)


def _bound(node: Any) -> list[Any]:
    """The node's arguments in the order of the operator's schema, defaults filled in."""
    arguments = []
    for index, parameter in enumerate(node.target._schema.arguments):
        if index < len(node.args):
            arguments.append(node.args[index])
        elif parameter.name in node.kwargs:
            arguments.append(node.kwargs[parameter.name])
        else:
            arguments.append(parameter.default_value)
    return arguments


def _is_empty(meta: Any) -> bool:
    """Whether the node gives one tensor, with no elements whatever the symbols are."""
    return hasattr(meta, "shape") and any(isinstance(size, int) and size == 0 for size in meta.shape)


def _differ(found: Any, wanted: Any) -> bool:
    """Whether two sizes are certainly different."""
    return not is_prim(found) and not is_prim(wanted) and found != wanted


def _constant(tensor: Any) -> Any:
    if tensor.layout.__str__() != "torch.strided" or tensor.is_complex():
        raise UnsupportedModel("a weight is sparse or complex")
    tensor = tensor.contiguous()
    if tensor.data_ptr() % _ALIGNMENT:
        tensor = tensor.clone()
    return relax.const(runtime.from_dlpack(tensor))


def _variable_name(name: str, taken: set[str]) -> str:
    """A dotted name as TVM takes it."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII)
    base = f"p_{base}" if not base or base[0].isdigit() else base
    found, count = base, 1
    while found in taken:
        found, count = f"{base}_{count}", count + 1
    taken.add(found)
    return found
