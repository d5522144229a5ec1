"""What a program's JSON may say before torch's deserializer sees it.

torch evaluates or executes parts of it: shape expressions go through `sympy.sympify`, which is `eval`; node and
argument names, weight names and guards are pasted into generated Python source; targets are looked up attribute by
attribute from `torch`, `operator` and `math`, and anything callable is taken. So every name must be an identifier,
every expression a call tree over known sympy classes, every target a real ATen operator or on a list, and what
compiling does not need (metadata, guards, nested modules' signatures) is dropped.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import keyword
import re
from collections.abc import Callable
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import ModelMalformed, ModelTooLarge, ModelUnsafe, UnsupportedModel

__all__ = ["check_program", "check_range_name", "check_weight_name"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,1023}")
# Pasted between double quotes into `getattr(x, "…")`, so anything but quotes, escapes and control characters.
_WEIGHT = re.compile(r"""[^\x00-\x1f\x7f"'\\{}]{1,1024}""")
_SYMBOL = re.compile(r"[a-z]{1,4}[0-9]{1,5}")
_STACK = re.compile(r"[\w.@]*,[\w.@]*,[\w.@]*(;[\w.@]*,[\w.@]*,[\w.@]*)*", re.ASCII)
_MAX_STACK = 8192
_RANGE = re.compile(r"[a-z0-9 _+*/()\-]{1,200}")

_EXPRESSION_CHARS = 4096
_EXPRESSION_DEPTH = 40
_MAX_POWERS = 4
_MAX_EXPONENT = 8
# fmt: off
_SYMPY_CALLS = (
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Min", "Max", "Mod", "And", "Or", "Not",
    "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "Piecewise",
    "ExprCondPair", "floor", "ceiling", "Abs",
)
_TORCH_CALLS = (
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv",
    "FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt",
    "RoundToInt", "RoundDecimal", "ToFloat", "Identity",
)
# fmt: on
_EXPRESSION_CALLS = frozenset(_SYMPY_CALLS + _TORCH_CALLS)
_EXPRESSION_NAMES = frozenset(["true", "false", "oo"])
_SYMBOL_FLAGS = frozenset(
    ["positive", "negative", "nonnegative", "nonpositive", "integer", "real", "zero", "nonzero", "finite", "precision"]
)

_VERIFIERS = frozenset(("TRAINING", "ATEN"))


def check_program(program: Any) -> None:
    """Check and clean a schema.ExportedProgram in place; tensors are moved to the CPU.

    Raise ModelUnsafe for a name or expression that torch would run, UnsupportedModel for versions and kinds of input
    that we do not have, ModelTooLarge over `max_graph_nodes`.
    """
    _check_versions(program)
    program.guards_code = []
    program.graph_module.metadata = {}
    for name in list(program.range_constraints):
        check_range_name(name)
        if not _SYMBOL.fullmatch(name):  # `2*s0`: it follows from the range of s0, and torch's tracer trips over it
            del program.range_constraints[name]
    _Walk().visit(program)


def _check_versions(program: Any) -> None:
    import torch
    from torch._export.serde.schema import SCHEMA_VERSION

    version = program.schema_version
    if version.major != SCHEMA_VERSION[0]:
        raise UnsupportedModel(
            f"the program has schema version {version.major}.{version.minor}; torch {torch.__version__} reads "
            f"{SCHEMA_VERSION[0]}.x",
            remedy="Export it again with the torch that relaxc pins.",
        )
    newest = torch._C._get_max_operator_version()
    if program.opset_version.get("aten", 0) > newest:
        raise UnsupportedModel(
            f"the program has ATen opset {program.opset_version['aten']}; {newest} is the newest known"
        )
    unknown = sorted(set(program.verifiers) - _VERIFIERS)
    if unknown:
        raise UnsupportedModel(f"the program is of the dialect {unknown[0][:80]!r}; known are {sorted(_VERIFIERS)}")


def check_weight_name(name: str) -> None:
    """Refuse a weight's name that could end the string it is pasted into."""
    if not _WEIGHT.fullmatch(name):
        raise ModelUnsafe(f"the weight name {name[:80]!r} has characters that no module attribute has")


def check_range_name(name: str) -> None:
    """Refuse a constrained expression that is no expression over symbols such as `s0` or `2*s0 + 1`."""
    if not _RANGE.fullmatch(name) or not all(_SYMBOL.fullmatch(part) for part in re.findall(r"[a-z]\w*", name)):
        raise ModelUnsafe(f"the range constraint {name[:80]!r} is not on a symbolic size")


def _check_name(name: str, *, keywords: bool = False) -> None:
    if not _NAME.fullmatch(name):
        raise ModelUnsafe(f"the name {name[:80]!r} is not an identifier")
    if not keywords and keyword.iskeyword(name):
        raise ModelMalformed(f"the name {name!r} is a Python keyword")


@functools.lru_cache(maxsize=65536)
def _check_expression(text: str) -> None:
    """Refuses what is not a call tree over `_EXPRESSION_CALLS` with numbers, flags and symbol names as leaves."""
    if len(text) > _EXPRESSION_CHARS:
        raise ModelUnsafe(f"a shape expression has {len(text)} characters; at most {_EXPRESSION_CHARS} are read")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ModelUnsafe(f"the shape expression {text[:80]!r} does not parse") from error
    if not _expression(tree, 0):
        raise ModelUnsafe(f"the shape expression {text[:80]!r} is more than arithmetic over symbolic sizes")
    if text.count("Pow(") > _MAX_POWERS:
        raise ModelUnsafe(f"the shape expression {text[:80]!r} has more than {_MAX_POWERS} powers")


def _expression(node: ast.AST, depth: int) -> bool:
    if depth > _EXPRESSION_DEPTH:
        return False
    if isinstance(node, ast.Name):
        return node.id in _EXPRESSION_NAMES
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _expression(node.operand, depth + 1)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and abs(node.value) < 1 << 64
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    if node.func.id not in _EXPRESSION_CALLS or not all(_flag(item) for item in node.keywords):
        return False
    if node.func.id in ("Symbol", "Float"):
        return len(node.args) == 1 and _leaf(node.func.id, node.args[0])
    if node.func.id == "Pow" and not (len(node.args) == 2 and _small(node.args[1])):
        return False
    return all(_expression(arg, depth + 1) for arg in node.args)


def _flag(item: ast.keyword) -> bool:
    return item.arg in _SYMBOL_FLAGS and isinstance(item.value, ast.Constant) and type(item.value.value) in (bool, int)


def _leaf(call: str, arg: ast.AST) -> bool:
    if not isinstance(arg, ast.Constant) or not isinstance(arg.value, str):
        return False
    if call == "Symbol":
        return _SYMBOL.fullmatch(arg.value) is not None
    return re.fullmatch(r"-?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?", arg.value) is not None


def _small(exponent: ast.AST) -> bool:
    """An Integer or Rational near zero: sympy computes powers of numbers at once, whatever their size."""
    numbers = [leaf.value for leaf in ast.walk(exponent) if isinstance(leaf, ast.Constant)]
    called = isinstance(exponent, ast.Call) and isinstance(exponent.func, ast.Name)
    allowed = called and exponent.func.id in ("Integer", "Rational")  # type: ignore[attr-defined]
    return allowed and all(isinstance(number, int) and abs(number) <= _MAX_EXPONENT for number in numbers)


class _Walk:
    """Visits every object of a program once and applies the rule of its class; counts nodes."""

    def __init__(self) -> None:
        self.nodes = 0
        self.limit = settings().max_graph_nodes
        self.rules: dict[str, Callable[[Any], None]] = {
            "CustomObjArgument": _refuse_custom,
            "Device": _to_cpu,
            "Graph": _check_graph,
            "GraphArgument": lambda value: _check_name(value.name),
            "InputToBufferSpec": lambda value: check_weight_name(value.buffer_name),
            "InputToConstantInputSpec": lambda value: _check_name(value.name),
            "InputToParameterSpec": lambda value: check_weight_name(value.parameter_name),
            "InputToTensorConstantSpec": lambda value: check_weight_name(value.tensor_constant_name),
            "BufferMutationSpec": lambda value: check_weight_name(value.buffer_name),
            "ParameterMutationSpec": lambda value: check_weight_name(value.parameter_name),
            "GradientToParameterSpec": _refuse_gradient,
            "GradientToUserInputSpec": _refuse_gradient,
            "NamedArgument": lambda value: _check_name(value.name, keywords=True) if value.name else None,
            "Node": self._check_node,
            "SymExpr": lambda value: _check_expression(value.expr_str),
            "TensorArgument": lambda value: _check_name(value.name),
            "TensorMeta": _check_meta,
            "TokenArgument": _refuse_token,
            "UserInputMutationSpec": lambda value: _check_name(value.user_input_name),
        }

    def visit(self, value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                self.visit(item)
        elif isinstance(value, dict):
            for item in value.values():
                self.visit(item)
        elif dataclasses.is_dataclass(value):
            self._object(value)

    def _object(self, value: Any) -> None:
        if hasattr(value, "_type"):  # one of torch's unions: only the field that is set can be read
            if str(value.type) == "as_name":
                _check_name(value.value)
            elif str(value.type) == "as_operator":
                raise UnsupportedModel(f"an operator is an argument of another: {value.value[:80]!r}")
            self.visit(value.value)
            return
        rule = self.rules.get(type(value).__name__)
        if rule:
            rule(value)
        for field in dataclasses.fields(value):
            self.visit(getattr(value, field.name))

    def _check_node(self, node: Any) -> None:
        self.nodes += 1
        if self.nodes > self.limit:
            raise ModelTooLarge(
                f"the graph has more than {self.limit} nodes (RELAXC_MAX_GRAPH_NODES)", limit=self.limit
            )
        node.metadata = _modules(node.metadata)
        if node.name:
            _check_name(node.name)


def _check_graph(graph: Any) -> None:
    for values in (graph.tensor_values, graph.sym_int_values, graph.sym_bool_values, graph.sym_float_values):
        for name in values:
            _check_name(name)


def _check_meta(meta: Any) -> None:
    for dim in [*meta.sizes, *meta.strides, meta.storage_offset]:
        if str(dim.type) == "as_int" and dim.as_int < 0:
            raise ModelMalformed(f"a tensor has the negative size or stride {dim.as_int}")


def _to_cpu(device: Any) -> None:
    device.type, device.index = "cpu", None


def _refuse_custom(value: Any) -> None:
    raise ModelUnsafe(f"the program uses the custom object {value.name[:80]!r} of class {value.class_fqn[:80]!r}")


def _refuse_gradient(value: Any) -> None:
    raise UnsupportedModel("the program computes gradients; export the forward pass alone")


def _refuse_token(value: Any) -> None:
    raise UnsupportedModel("the program has side effects that it orders by tokens")


def _modules(metadata: Any) -> dict[str, str]:
    """The path of a node's modules, by which people know it; nothing where it is not written as torch writes it."""
    stack = metadata.get("nn_module_stack") if isinstance(metadata, dict) else None
    is_path = isinstance(stack, str) and len(stack) <= _MAX_STACK and _STACK.fullmatch(stack) is not None
    return {"nn_module_stack": str(stack)} if is_path else {}
