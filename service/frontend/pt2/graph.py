"""From the graph in the file to one that converters take: which operators we have, and torch's decompositions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from relaxc.service.errors import ModelMalformed, UnsupportedModel
from relaxc.service.frontend.model import NODES_NAMED, Unsupported
from relaxc.service.frontend.pt2.state import check_mutations
from relaxc.service.frontend.pt2.torch_calls import TORCH_ERRORS, quiet

__all__ = ["QUANTIZED", "SKIPPED", "decompose", "op_name", "refuse", "unknown_targets", "unsupported_nodes"]

# fmt: off
SKIPPED = frozenset((
    "aten._assert_async.default", "aten._assert_async.msg", "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default", "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
))
"""Checks of what the export promised; they compute nothing."""

QUANTIZED = "quantized_decomposed"
"""torch's operators of quantized programs, which are registered when their module is imported."""

_SYMBOLIC = frozenset((
    "aten.sym_size.int", "aten.sym_numel.default", "aten.sym_stride.int", "aten.sym_storage_offset.default",
))
_PYTHON = frozenset((
    "_operator.add", "_operator.and_", "_operator.eq", "_operator.floordiv", "_operator.ge",
    "_operator.getitem", "_operator.gt", "_operator.le", "_operator.lt", "_operator.mod", "_operator.mul",
    "_operator.ne", "_operator.neg", "_operator.or_", "_operator.pos", "_operator.pow", "_operator.sub",
    "_operator.truediv", "math.trunc", "torch.sym_float", "torch.sym_int", "torch.sym_ite", "torch.sym_max",
    "torch.sym_min", "torch.sym_not",
))
_READS_DATA = frozenset(("aten.item.default", "aten._local_scalar_dense.default"))
_HIGHER_ORDER = frozenset((
    "torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast",
))
# fmt: on


def op_name(target: Any) -> str:
    """Return the name of an FX node's target as the table of converters has it."""
    if hasattr(target, "_overloadname"):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def unknown_targets(graph: Any) -> tuple[dict[str, Unsupported], bool]:
    """Return the operators of a schema.Graph that no converter takes and torch cannot decompose into others; and
    whether torch can trace the graph all the same, so that what only shows after decomposing can be named with them.

    A target is looked up as an ATen operator or in a list, never by walking attributes of torch.
    """
    known: dict[str, bool] = {}
    found = []
    for node in _nodes(graph):
        if node.target not in known:
            known[node.target] = _is_known(node.target)
        if not known[node.target]:
            found.append((node.target, node.name or _first_output(node)))
    traceable = all(_is_core(target) for target, _ in found)
    return _counted((target.removeprefix("torch.ops.")[:200], name) for target, name in found), traceable


def _is_core(target: str) -> bool:
    """Whether a target is an ATen operator that torch's own documentation lists for backends to implement."""
    import torch

    parts = target.split(".")
    operator = _aten(parts[3], parts[4]) if len(parts) == 5 and parts[:3] == ["torch", "ops", "aten"] else None
    return operator is not None and torch.Tag.core in operator.tags


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.nodes:
        yield node
        for argument in node.inputs:
            if str(argument.arg.type) == "as_graph":
                yield from _nodes(argument.arg.as_graph.graph)


def _first_output(node: Any) -> str:
    for output in node.outputs:
        if str(output.type) == "as_tensor":
            return str(output.as_tensor.name)
    return "?"


def _is_known(target: str) -> bool:
    if target in _PYTHON or target in _HIGHER_ORDER:
        return True
    parts = target.split(".")
    if len(parts) != 5 or parts[:2] != ["torch", "ops"] or parts[2] not in ("aten", QUANTIZED):
        return False
    if parts[2] == QUANTIZED:
        from relaxc.service.frontend.pt2.ops import CONVERTERS

        return ".".join(parts[2:]) in CONVERTERS
    return _is_known_aten(parts[3], parts[4])


def _is_known_aten(packet: str, overload: str) -> bool:
    from relaxc.service.frontend.pt2.ops import CONVERTERS

    name = f"aten.{packet}.{overload}"
    if name in CONVERTERS or name in SKIPPED or name in _SYMBOLIC:
        return True
    operator = _aten(packet, overload)
    if operator is None:
        return False
    if operator._schema.is_mutable:  # becomes its functional form, which has the name without the underscore
        return packet.endswith("_") and not packet.endswith("__") and _is_known_aten(packet[:-1], overload)
    return name in _decomposable() or _is_composite(operator)


def _aten(packet: str, overload: str) -> Any:
    import torch

    try:
        found = getattr(torch.ops.aten, packet)
        operator = getattr(found, overload) if isinstance(found, torch._ops.OpOverloadPacket) else None
    except (AttributeError, RuntimeError):
        return None
    return operator if isinstance(operator, torch._ops.OpOverload) else None


def _is_composite(operator: Any) -> bool:
    """Whether the operator is made of others in C++ (batch_norm, conv2d), which tracing sees through."""
    import torch

    name = operator.name()
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


@functools.cache
def _decomposable() -> frozenset[str]:
    return frozenset(str(operator) for operator in _decompositions())


def _decompositions() -> Any:
    """torch's table, without the operators that we take whole."""
    import torch

    from relaxc.service.frontend.pt2.ops import KEPT

    table = torch.export.default_decompositions()
    for name in KEPT:
        _, packet, overload = name.split(".")
        operator = _aten(packet, overload)
        if operator in table:
            del table[operator]
    return table


def decompose(exported: Any) -> Any:
    """Return the program in functional operators that converters take.

    Raise UnsupportedModel for a program that changes more than buffers when it runs, and ModelMalformed where
    torch cannot trace it: its operators do not fit together.
    """
    try:
        with quiet():
            program = exported.run_decompositions(_decompositions())
    except TORCH_ERRORS as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise ModelMalformed(f"torch cannot trace the program: {reason}") from error
    check_mutations(program)
    return program


def unsupported_nodes(program: Any) -> dict[str, Unsupported]:
    """Return the operators of a decomposed program that no converter takes."""
    from relaxc.service.frontend.pt2.ops import CONVERTERS

    found = []
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = op_name(node.target)
        if name in _READS_DATA:
            if any(op_name(user.target) not in SKIPPED for user in node.users):
                found.append((name, node.name))
        elif name not in CONVERTERS and name not in SKIPPED and not _is_free(name, node):
            found.append((name, node.name))
    return _counted(found)


def _is_free(name: str, node: Any) -> bool:
    """Whether a node is handled without a converter: an item of a tuple, or arithmetic on sizes."""
    return name == "_operator.getitem" or is_size(node.meta.get("val"))


def is_size(value: Any) -> bool:
    """Return whether a node's value is a number computed from sizes."""
    import torch

    return isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def _counted(nodes: Iterable[tuple[str, str]]) -> dict[str, Unsupported]:
    by_op: dict[str, list[str]] = {}
    for op, name in nodes:
        by_op.setdefault(op, []).append(name)
    return {op: Unsupported(len(names), tuple(names[:NODES_NAMED])) for op, names in sorted(by_op.items())}


def refuse(found: dict[str, Unsupported]) -> None:
    """Raise UnsupportedModel that names every operator in `found`, if there is any."""
    if found:
        listed = ", ".join(f"{op} ({nodes.count})" for op, nodes in list(found.items())[:10])
        more = f" and {len(found) - 10} more" if len(found) > 10 else ""
        raise UnsupportedModel(
            f"{len(found)} operators are not supported: {listed}{more}",
            ops={op: nodes.to_dict() for op, nodes in found.items()},
        )
