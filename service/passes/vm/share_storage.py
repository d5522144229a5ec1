"""Fewer bytes for the same tensors: which of them lie, one after the other, in one storage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import IRModule, relax, tirx
from tvm.relax.op import memory

from schedules.ir.dtypes import dtype_bytes
from service.passes.common.rewrite import op_name, with_functions

__all__ = ["Life", "ShareStorage", "share"]


@dataclass(frozen=True, slots=True)
class Life:
    """A tensor of `size` bytes that is written first by step `first` and read last by step `last`."""

    size: int
    first: int
    last: int


def share(lives: Iterable[Life]) -> list[list[int]]:
    """Return the tensors, by their place in `lives`, that share a storage: no two of a storage live at a time.

    The first of each is its largest. 'Greedy by size for shared objects', Pisarchyk and Lee, Efficient Memory
    Management for Deep Neural Net Inference, 2020 (https://arxiv.org/abs/2001.03288): the largest tensor first, each
    into the smallest storage in which it is alone while it lives.
    """
    lives = list(lives)
    storages: list[list[int]] = []  # the largest first
    for index in sorted(range(len(lives)), key=lambda index: (-lives[index].size, index)):
        free = [held for held in storages if not any(_overlap(lives[index], lives[other]) for other in held)]
        if free:
            free[-1].append(index)
        else:
            storages.append([index])
    return storages


def _overlap(one: Life, other: Life) -> bool:
    return one.first <= other.last and other.first <= one.last


@tvm.transform.module_pass(opt_level=0, name="ShareStorage")
class ShareStorage:
    """After StaticPlanBlockMemory, which gives out storages in the order of the program: a large tensor that comes
    late gets a new one, beside those that small ones have left.

    One storage with a tensor at each offset would take less, but the runtime keeps offsets in `byte_offset`, which
    kernels refuse. Storages of unknown size, those that the result may lie in, and functions in which this would not
    take less stay as they are.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with the tensors of each function shared out anew."""
        functions = {var: made for var, function in module.functions_items() if (made := _shared(function)) is not None}
        return with_functions(module, functions)


def _shared(function: Any) -> relax.Function | None:
    if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
        return None
    changed: dict[Any, list[Any]] = {}
    for storages in _storages_by_place(function):
        changed |= _changes(function, storages)
    return _rebound(function, changed) if changed else None


def _rebound(function: relax.Function, changed: Mapping[Any, list[Any]]) -> relax.Function:
    """`function` with the bindings that `changed` has in place of those of its variables."""
    blocks = [
        relax.BindingBlock([new for old in block.bindings for new in changed.get(old.var, [old])])
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _bindings(function: relax.Function) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _is(binding: Any, name: str) -> bool:
    return op_name(getattr(binding, "value", None)) == name


def _storages_by_place(function: relax.Function) -> list[dict[Any, relax.Call]]:
    """Each storage of a known size, and how it is allocated; one group for each device and scope."""
    groups: dict[str, dict[Any, relax.Call]] = {}
    for binding in _bindings(function):
        if _is(binding, "relax.memory.alloc_storage"):
            shape, device, scope, _ = binding.value.args
            if isinstance(shape.values[0], tirx.IntImm):
                groups.setdefault(f"{device} {scope}", {})[binding.var] = binding.value
    return list(groups.values())


def _size(storage: relax.Call) -> int:
    return int(storage.args[0].values[0])


def _changes(function: relax.Function, storages: Mapping[Any, relax.Call]) -> dict[Any, list[Any]]:
    """Variable → the bindings that take the place of its own: all storages are made where the first was."""
    steps = {binding.var: step for step, binding in enumerate(_bindings(function))}
    tensors = {
        binding.var: binding.value
        for binding in _bindings(function)
        if _is(binding, "relax.memory.alloc_tensor") and binding.value.args[0] in storages
    }
    last = _last_uses(function, tensors)
    kept = _used_otherwise(function, storages) | {call.args[0] for var, call in tensors.items() if last[var] is None}
    moved = [(var, call) for var, call in tensors.items() if call.args[0] not in kept]
    lives = [Life(_bytes(call, storages), steps[var], last[var] or steps[var]) for var, call in moved]
    shared, old = share(lives), [var for var in storages if var not in kept]
    if sum(lives[largest].size for largest, *_ in shared) >= sum(_size(storages[var]) for var in old):
        return {}
    changed: dict[Any, list[Any]] = {var: [] for var in old}
    _, device, scope, dtype = storages[old[0]].args
    for largest, *others in shared:
        size = relax.ShapeExpr([lives[largest].size])
        made = relax.Var("storage", storages[old[0]].ty)
        changed[old[0]].append(relax.VarBinding(made, memory.alloc_storage(size, device, scope, dtype)))
        for var, call in (moved[index] for index in (largest, *others)):
            changed[var] = [relax.VarBinding(var, memory.alloc_tensor(made, *call.args[1:]))]
    return changed


def _used_otherwise(function: relax.Function, storages: Iterable[Any]) -> set[Any]:
    """The storages that more than tensors of this scope are in, such as one of a branch."""
    others = (binding.value for binding in _bindings(function) if not _is(binding, "relax.memory.alloc_tensor"))
    return {var for value in others for var in relax.analysis.all_vars(value)} & set(storages)


def _bytes(tensor: relax.Call, storages: Mapping[Any, relax.Call]) -> int:
    """A tensor's bytes; those of its storage, planned for its upper bound, where it has a symbolic dim."""
    storage, _, shape, dtype, *_ = tensor.args
    if not all(isinstance(dim, tirx.IntImm) for dim in shape.values):
        return _size(storages[storage])
    return math.prod(int(dim) for dim in shape.values) * dtype_bytes(str(dtype.value))


def _last_uses(function: relax.Function, tensors: Iterable[Any]) -> dict[Any, int | None]:
    """Each tensor → the last step that reads it under any name, None where the caller may.

    Whatever is bound to an expression with a tensor in it may be that tensor: a view, a tuple, another name.
    """
    names = {var: {var} for var in tensors}
    last: dict[Any, int | None] = {}
    for step, binding in enumerate(_bindings(function)):
        last |= dict.fromkeys({binding.var} & names.keys(), step)
        for tensor in _tensors_in(binding.value, names):
            names.setdefault(binding.var, set()).add(tensor)
            last[tensor] = step
    return last | dict.fromkeys(_tensors_in(function.body.body, names))


def _tensors_in(expr: Any, names: Mapping[Any, set[Any]]) -> set[Any]:
    return {tensor for var in relax.analysis.all_vars(expr) for tensor in names.get(var, ())}
