"""Fewer bytes for the same tensors: which of them lie, one after the other, in one storage."""

from __future__ import annotations

import math
from bisect import bisect, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import tvm
from tvm import IRModule, relax, tirx
from tvm.relax.op import memory

from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.service.passes.common.rewrite import op_name, with_functions

__all__ = ["Life", "ShareStorage", "ZeroOffsets", "lay_out", "share"]

_ALIGNMENT = 256
"""Bytes: that of what CUDA allocates."""


@dataclass(frozen=True, slots=True)
class Life:
    """A tensor of `size` bytes that is written first by step `first` and read last by step `last`."""

    size: int
    first: int
    last: int


def share(lives: Iterable[Life]) -> list[list[int]]:
    """Return the tensors, by their place in `lives`, that share a storage: no two of a storage live at a time.

    The first of each is its largest. Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020
    (https://arxiv.org/abs/2001.03288): the best of 'Greedy by size for shared objects' and 'Greedy by breadth',
    either way round among equals.
    """
    lives = list(lives)
    breadths = _breadths(lives)
    most = [max(breadths[life.first : life.last + 1]) for life in lives]
    orders = []
    for ties in (1, -1):  # of equals the first that is written, or the last
        by_size = sorted(range(len(lives)), key=lambda index: (-lives[index].size, ties * index))
        orders += [by_size, sorted(by_size, key=lambda index: -most[index])]
    plans = [_placed(lives, order) for order in orders]
    return min(plans, key=lambda plan: sum(lives[largest].size for largest, *_ in plan))


def lay_out(lives: Iterable[Life]) -> tuple[list[int], int]:
    """Return where in one storage each tensor lies, so that no two overlap that live at a time, and the storage's size.

    'Greedy by size for offset calculation' of the same paper: each into the smallest gap that holds it.
    """
    lives = list(lives)
    offsets: dict[int, int] = {}
    for index in sorted(range(len(lives)), key=lambda index: (-lives[index].size, index)):
        meanwhile = [other for other in offsets if _meet(lives[index], lives[other])]
        gaps, end = [], 0
        for first, last in sorted((offsets[other], _end(offsets[other], lives[other])) for other in meanwhile):
            if first - end >= lives[index].size:
                gaps.append((first - end, end))
            end = max(end, last)
        offsets[index] = min(gaps)[1] if gaps else end
    size = max((_end(offset, lives[index]) for index, offset in offsets.items()), default=0)
    return [offsets[index] for index in range(len(lives))], size


def _meet(one: Life, other: Life) -> bool:
    return one.first <= other.last and other.first <= one.last


def _end(offset: int, life: Life) -> int:
    """Where what lies behind a tensor may begin."""
    return -(-(offset + life.size) // _ALIGNMENT) * _ALIGNMENT


def _breadths(lives: Sequence[Life]) -> list[int]:
    """The bytes that live at each step."""
    changes = [0] * (max((life.last for life in lives), default=0) + 2)
    for life in lives:
        changes[life.first] += life.size
        changes[life.last + 1] -= life.size
    return list(accumulate(changes))


def _placed(lives: Sequence[Life], order: Iterable[int]) -> list[list[int]]:
    """Each tensor in the smallest storage that is large enough, else in the largest, in which it is alone meanwhile."""
    storages: list[_Storage] = []  # the largest first
    for index in order:
        life = lives[index]
        free = [storage for storage in storages if storage.is_free(life)]
        found = next((storage for storage in reversed(free) if storage.size >= life.size), free[0] if free else None)
        if found is None:
            storages.append(found := _Storage())
        found.take(index, life)
        storages.sort(key=lambda storage: -storage.size)
    return [storage.held for storage in storages]


@dataclass(slots=True)
class _Storage:
    """Tensors that lie in one storage, the largest first, and when each lives."""

    size: int = 0
    held: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def is_free(self, life: Life) -> bool:
        """Return whether nothing in it lives when `life` does."""
        at = bisect(self.spans, (life.first, life.last))
        before, after = self.spans[max(at - 1, 0) : at], self.spans[at : at + 1]
        return all(last < life.first for _, last in before) and all(first > life.last for first, _ in after)

    def take(self, index: int, life: Life) -> None:
        """Put a tensor in it."""
        self.held.insert(0 if life.size > self.size else len(self.held), index)
        self.size = max(self.size, life.size)
        insort(self.spans, (life.first, life.last))


@tvm.transform.module_pass(opt_level=0, name="ShareStorage")
class ShareStorage:
    """After StaticPlanBlockMemory, which gives out storages in the order of the program: a large tensor that comes
    late gets a new one, beside those that small ones have left.

    With `offsets` all lie in one storage, at offsets that `ZeroOffsets` has to take away again. Storages of unknown
    size, those that the result may lie in, and functions in which this would not take less stay as they are.
    """

    def __init__(self, *, offsets: bool = False) -> None:
        self.offsets = offsets

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with the tensors of each function shared out anew."""
        shared = {var: _shared(function, self.offsets) for var, function in module.functions_items()}
        return with_functions(module, {var: made for var, made in shared.items() if made is not None})


@tvm.transform.module_pass(opt_level=0, name="ZeroOffsets")
class ZeroOffsets:
    """Has each tensor begin where its `data` is: kernels refuse an offset beside it, in which the runtime keeps it."""

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with every tensor at an offset behind `ensure_zero_offset`, which copies nothing."""
        functions: dict[Any, relax.Function] = {}
        for var, function in module.functions_items():
            if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
                changed = {each.var: _from_zero(each) for each in _bindings(function) if _is_at_offset(each)}
                functions |= {var: _rebound(function, changed)} if changed else {}
        return with_functions(module, functions)


def _is_at_offset(binding: Any) -> bool:
    return _is(binding, "relax.memory.alloc_tensor") and int(binding.value.args[1].value) != 0


def _from_zero(binding: Any) -> list[Any]:
    raw = relax.Var(f"raw_{binding.var.name}", binding.var.ty)
    return [relax.VarBinding(raw, binding.value), relax.VarBinding(binding.var, memory.ensure_zero_offset(raw))]


def _shared(function: Any, offsets: bool) -> relax.Function | None:
    if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
        return None
    changed: dict[Any, list[Any]] = {}
    for storages in _storages_by_place(function):
        changed |= _changes(function, storages, offsets)
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


def _changes(function: relax.Function, storages: Mapping[Any, relax.Call], offsets: bool) -> dict[Any, list[Any]]:
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
    old = [var for var in storages if var not in kept]
    plan = _one_storage(lives) if offsets else _some_storages(lives)
    if sum(size for size, _ in plan) >= sum(_size(storages[var]) for var in old):
        return {}
    changed: dict[Any, list[Any]] = {var: [] for var in old}
    _, device, scope, dtype = storages[old[0]].args
    for size, places in plan:
        made = relax.Var("storage", storages[old[0]].ty)
        call = memory.alloc_storage(relax.ShapeExpr([size]), device, scope, dtype)
        changed[old[0]].append(relax.VarBinding(made, call))
        for index, offset in places:
            var, call = moved[index]
            changed[var] = [relax.VarBinding(var, memory.alloc_tensor(made, offset, *call.args[2:]))]
    return changed


_Places = list[tuple[int, int]]
"""Tensors, and the offset of each."""


def _some_storages(lives: Sequence[Life]) -> list[tuple[int, _Places]]:
    return [(lives[held[0]].size, [(index, 0) for index in held]) for held in share(lives)]


def _one_storage(lives: Sequence[Life]) -> list[tuple[int, _Places]]:
    offsets, size = lay_out(lives)
    return [(size, list(enumerate(offsets)))] if lives else []


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
