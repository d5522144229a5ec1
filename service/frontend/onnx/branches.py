"""A branch that an input's value decides on, for sizes that it fits: it is computed in each call, and only counts where
it is taken. A call that takes the other one may have sizes that this one cannot: then it is computed of others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx import scope as onnx_scope
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import relax_dim
from relaxc.service.frontend.onnx.values import Known, known_ints
from relaxc.service.frontend.trend import call_name, call_of, number_in
from relaxc.service.signature import Condition

__all__ = ["Branch", "Test", "bar", "test_of", "within"]

Test = tuple[str, str, int]
"""An input of one integer, `==` or `!=`, and a number."""

_SIZES = 1 << 16
"""Sizes that a branch is looked at for; what fits the last of them fits all."""
_OTHER = {"==": "!=", "!=": "=="}


def test_of(node: Node, *, holds: bool) -> Test | None:
    """Return what an If asks of the value of an input, for its branch where that holds, or does not; None where it asks
    something else.
    """
    bound, value = node.builder.lookup_binding, node.inputs[0]
    while (call := call_of(value, bound)) is not None and call_name(call) in ("reshape", "squeeze", "expand_dims"):
        value = call.args[0]
    relation = {"equal": "==", "not_equal": "!="}.get(call_name(call))
    if relation is None:
        return None
    for given, other in (call.args, call.args[::-1]):
        while (inner := call_of(given, bound)) is not None and call_name(inner) in ("reshape", "squeeze", "astype"):
            given = inner.args[0]
        name, number = node.scope.inputs.get(given), number_in(other, bound)
        if name is not None and number is not None and number.is_integer() and "int" in dtype_of(given):
            return name, relation if holds else _OTHER[relation], int(number)
    return None


@dataclass
class Branch:
    """What is known of the sizes that a branch is computed for, while it is converted."""

    key: tuple[str, bool]
    sizes: dict[Any, Any] = field(default_factory=dict)
    """A size of the call → what the branch has in its place."""
    ranges: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """What the branch has in a size's place → its name, and the least and the greatest that it may be."""

    def holds(self, names: set[str], text: str, scope: onnx_scope.Scope) -> bool:
        """Return whether a condition holds of all sizes that the branch is computed for, False where it is for the call
        to hold. Raise Fit where it holds of some of them.
        """
        if len(names) != 1:
            return False
        (name,) = names
        outer, low, high = self.ranges.get(name, (name, 1, _SIZES))
        if name in scope.data_dependent and name not in self.ranges:
            return False
        fits = _holding(text, name)[low - 1 : min(high, _SIZES)]
        if fits.all():
            return name in self.ranges
        raise onnx_scope.Fit(self.key, outer, onnx_dims.renamed(text, {name: outer}))


@contextmanager
def within(node: Node, key: tuple[str, bool], test: Test, values: dict[str, Any]) -> Iterator[Branch]:
    """Convert a branch that is taken where `test` holds, for the sizes that it fits: in `values`, which it reads, other
    sizes stand for those of the call. Have each call that takes it have sizes that fit.
    """
    scope, branch = node.scope, Branch(key)
    for name, texts in scope.fits.get(key, {}).items():
        _fit(node, branch, test, name, texts)
    for name, value in list(values.items()):
        values[name] = resized(node, value, branch.sizes)
    scope.branch, outer = branch, scope.branch
    try:
        yield branch
    finally:
        scope.branch = outer


def _fit(node: Node, branch: Branch, test: Test, name: str, texts: Sequence[str]) -> None:
    from tvm import relax, tirx

    low, high = _range_of(texts, name)
    size, scope = node.scope.variable(name), node.scope
    if low == high:
        branch.sizes[size] = tirx.const(low, "int64")
    else:
        inner = scope.fresh(f"{name}_{'then' if branch.key[1] else 'else'}")
        scope.bound_by(inner, low, high)
        near = tirx.max(tirx.min(size, tirx.const(high, "int64")), tirx.const(low, "int64"))
        given = node.materialize(node.known([near]))
        shape = relax.op.call_pure_packed("vm.builtin.tensor_to_shape", given, ty_args=[relax.ShapeType(ndim=1)])
        node.builder.match_cast(node.builder.emit(shape), relax.ShapeType([inner]))
        branch.sizes[size] = inner
        branch.ranges[inner.name] = name, low, high
    side = "then" if branch.key[1] else "else"
    told = f"node {node.name!r} (If) takes its {side} branch where {' '.join(map(str, test))}"
    for relation, bound in ((">=", low), ("<=", high)):
        if bound not in (1, onnx_scope.FAR):
            text = f"{name} {relation} {bound}"
            scope.conditions[f"{told}: {text}"] = Condition(text, told, when=test)


def bar(node: Node, test: Test, why: str) -> None:
    """Have no call be one of which `test` holds."""
    told = f"node {node.name!r} (If) where {' '.join(map(str, test))}: {why}"
    node.scope.conditions[told] = Condition("0 == 1", told, when=test)


def _range_of(texts: Sequence[str], name: str) -> tuple[int, int]:
    """The sizes of which all the conditions hold. Raise Never for none, Refused where others lie between them."""
    import numpy as np

    fits = np.flatnonzero(np.logical_and.reduce([_holding(text, name) for text in texts])) + 1
    if not fits.size:
        raise onnx_scope.Never(f"no size {name} holds: {'; '.join(texts)}")
    if fits[-1] - fits[0] + 1 != fits.size:
        raise Refused(f"a branch for some sizes {name} only, of which: {'; '.join(texts)}")
    return int(fits[0]), onnx_scope.FAR if fits[-1] == _SIZES else int(fits[-1])


def _holding(text: str, name: str) -> Any:
    """For each size from 1 on, whether a condition with 0 on its right holds."""
    import numpy as np

    left, relation, _ = text.rsplit(" ", 2)
    with np.errstate(all="ignore"):
        found = onnx_dims.computed(ast.parse(left, mode="eval").body, {name: np.arange(1, _SIZES + 1)})
    compared = {"==": np.equal, "!=": np.not_equal, ">=": np.greater_equal}[relation](found, 0)
    return np.broadcast_to(compared, _SIZES)


def resized(node: Node, value: Any, sizes: dict[Any, Any]) -> Any:
    """Return a value with other sizes in its shape: its elements from 0 on, zeros behind them; sizes are exchanged."""
    from tvm import relax, te, tirx

    from relaxc.service.frontend.onnx.tensor_expression import swapped

    if not sizes:
        return value
    if isinstance(value, Known):
        if not value.symbolic:
            return value
        elements = [swapped(each, sizes) for each in value.array.reshape(-1).tolist()]
        return known_ints(elements, node.scope, value.dtype, value.array.shape)
    if not isinstance(value, relax.Var) or getattr(value.ty, "shape", None) is None:
        return value
    shape = list(value.ty.shape.values)
    wanted = [onnx_dims.simplify(swapped(dim, sizes), node.scope) for dim in shape]
    if all(onnx_dims.same(have, want, node.scope) for have, want in zip(shape, wanted, strict=True)):
        return value

    def kernel(data: te.Tensor, shape: list[Any]) -> te.Tensor:
        def element(*index: Any) -> Any:
            inside = [place < size for place, size in zip(index, data.shape, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), data(*index), tirx.const(0, data.dtype))

        return te.compute(shape, element, name="resized")

    return node.te(kernel, value, list(map(relax_dim, wanted)), primfunc_name_hint="resized")
