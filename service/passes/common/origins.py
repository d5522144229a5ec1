"""Which of the model's nodes each variable of a function comes from, from the import to the kernels.

A variable has the names of its nodes, a line each, as the source of its span: TVM's passes and our rewriting keep a
variable where they change what it is bound to. What a pass adds is for whoever reads it, and what it takes away went
into whoever read it; that is all that is known of what is in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import SourceName, Span

from relaxc.schedules.ir.describe import kernel_of
from relaxc.schedules.ir.kernel import KERNEL
from relaxc.service.passes.common.constants import is_tensor_constant
from relaxc.service.passes.common.rewrite import op_name

__all__ = ["Follower", "bindings", "emit_as", "marked", "name_of", "through_groups", "with_nodes"]

Names = dict[str, None]
"""Names of nodes in the order in which the model has them, each once."""


def name_of(expr: Any) -> str:
    """Return the name in the span of an expression, empty where it has none."""
    return "" if expr.span is None else str(expr.span.source_name.name)


def marked(function: relax.Function, names: Mapping[Any, str]) -> relax.Function:
    """Return the function with these variables' names as their spans."""
    known: dict[Any, Any] = {}

    def renamed(var: Any) -> Any:
        if var not in names:
            return var
        if var not in known:
            known[var] = type(var)(var.name, var.ty, Span(SourceName(names[var]), 0, 0, 0, 0))
        return known[var]

    return tvm_ffi.structural_map(function, (relax.Var, renamed), (relax.DataflowVar, renamed)) if names else function


def bindings(body: Any) -> Iterator[Any]:
    """Yield those of a function's body in order, each branch's before its If."""
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding) and isinstance(value := binding.value, relax.If):
                yield from bindings(value.true_branch)
                yield from bindings(value.false_branch)
            yield binding


def emit_as(builder: Any, value: relax.Expr, bound: relax.Var | None) -> relax.Var:
    """Bind `value` to a new variable, as `builder.emit` does, that comes from where `bound` does."""
    if bound is None or bound.span is None:
        return builder.emit(value)
    value = builder.normalize(value)
    kind = relax.DataflowVar if builder.current_block_is_dataflow() else relax.Var
    var = kind(builder.get_unique_name("lv" if kind is relax.DataflowVar else "gv"), value.ty, bound.span)
    builder.emit_normalized(relax.VarBinding(var, value))
    return var


class Follower:
    """Follows the nodes of a module from pass to pass."""

    def __init__(self) -> None:
        self._last: tuple[Any, set[str]] = (None, set())

    def follow(self, before: IRModule, after: IRModule) -> IRModule:
        """Return what a pass made of `before`, with the nodes of each variable of `main`."""
        if before.same_as(after) or not _has_main(after) or before["main"].same_as(after["main"]):
            return after
        names, is_whole = _texts(after["main"])
        if not is_whole or not self._known(before["main"]) <= names:
            after = _followed(before["main"], after)
            names, _ = _texts(after["main"])
        self._last = after["main"], names
        return after

    def _known(self, function: relax.Function) -> set[str]:
        last, names = self._last
        return names if last is not None and last.same_as(function) else _texts(function)[0]


def _has_main(module: IRModule) -> bool:
    """Whether it is one that a pass may have made: what is wrong with another `check` says."""
    return any(var.name_hint == "main" and isinstance(func, relax.Function) for var, func in module.functions_items())


def _texts(function: relax.Function) -> tuple[set[str], bool]:
    """The texts that variables of a function have, and whether each that is bound to a call has one."""
    found, is_whole = set[str](), True
    for binding in bindings(function.body):
        text = name_of(binding.var)
        found.add(text)
        is_whole = is_whole and bool(text or not isinstance(binding.value, relax.Call))
    return found - {""}, is_whole


def _followed(before: relax.Function, module: IRModule) -> IRModule:
    function = module["main"]
    again = _again(before, function)
    left = {name for binding in bindings(function.body) for name in _own(binding.var)}
    left.update(name for names in again.values() for name in names)
    moved, results = _moved(before, left)
    readers, found, marks = _readers(function), dict[Any, Names](), dict[Any, str]()
    for binding in reversed(list(bindings(function.body))):
        var = binding.var
        own = _own(var) or again.get(var, {})
        if own:
            found[var] = own | moved.get("\n".join(own), {})
        else:
            each = (results.get(r, {}) if isinstance(r, int) else found.get(r, {}) for r in readers.get(var, ()))
            found[var] = {name: None for of_reader in each for name in of_reader}
        if (names := "\n".join(found[var])) != name_of(var):
            marks[var] = names
    return _with_main(module, marked(function, marks)) if marks else module


def _again(before: relax.Function, after: relax.Function) -> dict[Any, Names]:
    """The nodes of new variables that are bound to calls of the operators of as many that are gone, in their order."""
    lost, new = defaultdict[str, list[Names]](list), defaultdict[str, list[Any]](list)
    left = {name_of(binding.var) for binding in bindings(after.body)}
    for binding in bindings(before.body):
        if (name := name_of(binding.var)) and name not in left:
            lost[op_name(binding.value)].append(_own(binding.var))
    for binding in bindings(after.body):
        if not name_of(binding.var):
            new[op_name(binding.value)].append(binding.var)
    same = [op for op in lost if op not in ("", "relax.call_tir") and len(lost[op]) == len(new[op])]
    return {var: names for op in same for var, names in zip(new[op], lost[op], strict=True)}


def through_groups(before: IRModule, after: IRModule) -> IRModule:
    """Return `after`, whose `main` calls groups of the calls that `before` has, with the nodes of all at each call."""
    numbers = _Numbers(before)
    known: dict[int, Names] = {}
    for var, members in numbers.members(before["main"]).items():
        known.setdefault(members[-1], {}).update(_own(var))
    found = {}
    for var, members in _Numbers(after, numbers).members(after["main"]).items():
        if names := {name: None for member in members for name in known.get(member, {})}:
            found[var] = "\n".join(names)
    return _with_main(after, marked(after["main"], found))


def with_nodes(module: IRModule) -> IRModule:
    """Return the module whose kernels have the nodes of all their calls in `main`."""
    main, found = module["main"], dict[Any, Names]()
    for binding in bindings(main.body):
        if op_name(binding.value) == "relax.call_tir":
            found.setdefault(binding.value.args[0], {}).update(_own(binding.var))
    module = module.clone()
    for var, names in found.items():
        if names:
            kernel = replace(kernel_of(module[var]), nodes=tuple(names))
            module.update_func(var, module[var].with_attr(KERNEL, kernel.to_json()))
    return module


def _own(var: Any) -> Names:
    name = name_of(var)
    return dict.fromkeys(name.split("\n")) if name else {}


def _moved(function: relax.Function, left: set[str]) -> tuple[dict[str, Names], dict[int, Names]]:
    """The nodes that no variable has any more, by the text of the variables and by the result that they went into."""
    readers, carried = _readers(function), dict[Any, Names]()
    moved, results = dict[str, Names](), dict[int, Names]()
    for binding in bindings(function.body):
        var, own = binding.var, _own(binding.var)
        going = carried.pop(var, {})
        if not left.isdisjoint(own):
            moved.setdefault(name_of(var), {}).update(going)
        elif going := own | going:
            for reader in readers.get(var, ()):
                (results if isinstance(reader, int) else carried).setdefault(reader, {}).update(going)
    return moved, results


def _with_main(module: IRModule, main: relax.Function) -> IRModule:
    module = module.clone()
    module.update_func(module.get_global_var("main"), main)
    return module


class _Numbers:
    """Equal numbers for values that are computed alike, in a function of calls or in one that calls groups of them."""

    def __init__(self, module: IRModule, like: _Numbers | None = None) -> None:
        self._module = module
        self._known: dict[Any, int] = {} if like is None else like._known
        self._params: dict[int, Any] = {}

    def members(self, function: relax.Function) -> dict[Any, list[int]]:
        """Return the numbers of all calls that each variable is bound to, the last one's last."""
        values = {param: self._number(("parameter", at)) for at, param in enumerate(function.params)}
        found: dict[Any, list[int]] = {}
        for binding in bindings(function.body):
            value, group = binding.value, None
            if isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar):
                group = self._module[value.op]
            if isinstance(group, relax.Function) and group.attrs and group.attrs.get("Primitive", 0):
                inner = {param: self._value(arg, values) for param, arg in zip(group.params, value.args, strict=True)}
                found[binding.var] = []
                for each in bindings(group.body):
                    inner[each.var] = self._value(each.value, inner)
                    found[binding.var].append(inner[each.var])
                values[binding.var] = self._value(group.body.body, inner)
            else:
                values[binding.var] = self._value(value, values)
                found[binding.var] = [values[binding.var]]
        return found

    def _value(self, expr: Any, values: Mapping[Any, int]) -> int:
        if isinstance(expr, relax.Var):
            return values.get(expr, -1)
        if isinstance(expr, relax.Call):
            return self._number((str(expr.op), *(self._value(arg, values) for arg in expr.args)))
        if isinstance(expr, relax.Tuple):
            return self._number(("tuple", *(self._value(field, values) for field in expr.fields)))
        if isinstance(expr, relax.TupleGetItem):
            return self._number(("field", int(expr.index), self._value(expr.tuple_value, values)))
        return self._number(expr if is_tensor_constant(expr) else str(expr))

    def _number(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))


def _readers(function: relax.Function) -> dict[Any, list[Any]]:
    """The variables that each is read for, and the numbers of the results that it is."""
    readers: dict[Any, list[Any]] = {}
    tuples: dict[Any, Any] = {}
    for binding in bindings(function.body):
        value = binding.value
        tuples[binding.var] = value
        if isinstance(value, relax.If):
            for branch in (value.true_branch, value.false_branch):
                readers.setdefault(branch.body, []).append(binding.var)
            value = value.cond
        for var in relax.analysis.free_vars(value):
            readers.setdefault(var, []).append(binding.var)
    result = tuples.get(function.body.body, function.body.body)
    fields = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    for at, field in enumerate(fields):
        readers.setdefault(field, []).append(at)
    return readers
