"""Products of one tensor with several constant matrices become one product, which their readers take apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.relax.expr_functor import mutator

from relaxc.service.passes.common.constants import Array, array_of, constant, is_tensor_constant
from relaxc.service.passes.common.merging import Merging, is_free
from relaxc.service.passes.common.readers import Readers
from relaxc.service.passes.common.rewrite import op_name, with_functions
from relaxc.service.passes.precision.dtypes import is_low
from relaxc.service.passes.simplify.simplify_shapes import shape_of

__all__ = ["MergeParallelMatmuls"]


@tvm.transform.module_pass(opt_level=0, name="MergeParallelMatmuls")
class MergeParallelMatmuls:
    """`x @ Wq + bq, x @ Wk, x @ Wv + bv → slices of x @ [Wq Wk Wv] + [bq 0 bv]`

    The tensor is read once instead of three times, and one kernel starts instead of three. Only where the slices cost
    nothing: what reads each product, reshapes aside, is a transpose, as that of attention's heads. This either
    reads the slice in place or copies it as it did before. Gate and up projections are left alone: the second one
    applies `silu(gate) * up` to its result in registers, and merged both would go through memory first.

    With `through_casts`, a transpose may read the product rounded; where all do, the merged one is rounded as a whole.
    """

    def __init__(self, *, through_casts: bool = False) -> None:
        self.movements = ("relax.reshape", "relax.astype") if through_casts else ("relax.reshape",)

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with merged products; the same object if it has none."""
        changed = {}
        for gvar, function in module.functions_items():
            if isinstance(function, relax.Function) and (groups := _groups(function, self.movements)):
                merged = _Merger(module, groups).visit_expr(function)
                changed[gvar] = relax.analysis.remove_all_unused(merged)
        return with_functions(module, changed)


@dataclass(frozen=True)
class _Product:
    """`result = data @ weight + bias`, the bias and its addition if there is one."""

    data: relax.Var
    weight: relax.Expr
    bias: relax.Expr | None
    result: relax.Var
    out_dtype: Any
    rounded: str
    """The 16-bit dtype that whatever reads the result casts it to, if that is so."""

    @property
    def columns(self) -> int:
        return int(shape_of(self.weight)[-1])  # type: ignore[index]


def _bindings(function: relax.Function) -> Iterator[Any]:
    return (binding for block in function.body.blocks for binding in block.bindings)


def _groups(function: relax.Function, movements: Sequence[str]) -> list[list[_Product]]:
    """Products to merge, two or more of the same tensor."""
    readers = Readers(function)
    groups: dict[Any, list[_Product]] = defaultdict(list)
    for binding in _bindings(function):
        product = _product(binding, readers)
        if product is not None and is_free(product.result, readers, movements):
            groups[product.data, str(product.out_dtype), str(product.weight.ty.dtype)].append(product)
    return [group for group in groups.values() if len(group) > 1]


def _product(binding: Any, readers: Readers) -> _Product | None:
    value: Any = getattr(binding, "value", None)
    if op_name(value) != "relax.matmul":
        return None
    data, weight = value.args
    if not isinstance(data, relax.Var) or not is_tensor_constant(weight) or weight.ty.ndim != 2 or data.ty.ndim < 2:
        return None
    following = readers.of(binding.var)
    behind = following[0] if len(following) == 1 else None
    bias = _bias(behind, binding.var, weight)
    result = binding.var if bias is None or behind is None else behind.var
    return _Product(data, weight, bias, result, value.attrs.out_dtype, _rounded(readers.of(result)))


def _rounded(readers: Sequence[Any]) -> str:
    casts: list[Any] = [getattr(reader, "value", None) for reader in readers]
    if not casts or any(op_name(cast) != "relax.astype" or not is_low(cast) for cast in casts):
        return ""
    dtypes = {str(cast.ty.dtype) for cast in casts}
    return dtypes.pop() if len(dtypes) == 1 else ""


def _bias(binding: Any, product: relax.Var, weight: relax.Expr) -> relax.Expr | None:
    """The constant vector that `binding` adds to the product, if that is what it does."""
    value: Any = getattr(binding, "value", None)
    if op_name(value) != "relax.add":
        return None
    other = value.args[1] if value.args[0].same_as(product) else value.args[0]
    if not is_tensor_constant(other) or other.ty.ndim > product.ty.ndim:
        return None
    same = array_of(other).size == array_of(weight).shape[-1] == (shape_of(other) or [0])[-1]
    return other if same else None


@mutator
class _Merger(Merging[_Product]):
    def computed(self, group: list[_Product]) -> relax.Var:
        """Return the products beside each other."""
        data = self.visit_expr(group[0].data)
        weight = constant(np.concatenate([array_of(member.weight) for member in group], axis=1))
        product = self.builder_.emit(relax.op.matmul(data, weight, group[0].out_dtype))
        if any(member.bias is not None for member in group):
            bias = np.concatenate([_vector(member) for member in group])
            product = self.builder_.emit(relax.op.add(product, constant(bias, str(product.ty.dtype))))
        rounded = {member.rounded for member in group}
        if len(rounded) == 1 and "" not in rounded:
            return self.builder_.emit(relax.op.astype(product, rounded.pop()))
        return product


def _vector(member: _Product) -> Array:
    return np.zeros(member.columns) if member.bias is None else array_of(member.bias).reshape(-1)
