"""Which images of a function have a form in NHWC, and what gives them one and takes it off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from relaxc.schedules.cuda.conv.compute import VECTOR
from relaxc.service.passes.common.images import count_reads
from relaxc.service.passes.common.origins import emit_as
from relaxc.service.passes.common.rewrite import dims_of
from relaxc.service.passes.precision.dtypes import is_low

__all__ = [
    "ELEMENTWISE",
    "INJECTIVE",
    "MAX_TAPS",
    "OUT_FUSABLE",
    "TO_NCHW",
    "TO_NHWC",
    "NhwcImages",
    "Rule",
    "is_pixel",
    "sizes_of",
]

TO_NHWC, TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]
ELEMENTWISE, INJECTIVE, OUT_FUSABLE = 0, 2, 4
"""TVM's patterns for fusion; elementwise operators are fused behind the last, a contraction's."""
WIDE = "float32"
MAX_TAPS = 64
"""Of windows whose channels do not mix."""


class NhwcImages:
    """What rules ask of the function that a mutator walks over, and how they add code to the new one.

    It keeps, for variables of the old function, their NHWC form in the new one.
    """

    def __init__(self, walker: Any, function: relax.Function, taken: frozenset[str]) -> None:
        self._walker = walker
        self.taken = taken
        """The dtypes whose convolutions are computed so."""
        self.bound: relax.Var | None = None
        """The variable that the call being looked at is bound to."""
        self.last: dict[Any, relax.Var] = {}
        self.narrow: dict[Any, relax.Var] = {}
        """The 16-bit form of NHWC values that are the same, widened."""
        self.reads = count_reads(function)
        self.convolutions = self.permutations = 0
        self.low = ""
        """The dtype of the convolutions seen so far: float32 where one of several is, and then nothing is narrowed."""
        self._first: dict[Any, relax.Var] = {}
        self._permuted: dict[Any, relax.Var] = {}

    def binding(self, expr: relax.Expr) -> Any:
        """Return what a variable is bound to in the new function; None for what is no variable."""
        return self._walker.lookup_binding(expr) if isinstance(expr, relax.Var) else None

    def visited(self, expr: relax.Expr) -> relax.Expr:
        """Return the value in the new function, in NCHW."""
        return self._walker.visit_expr(expr)

    def emit(self, value: relax.Expr) -> relax.Var:
        """Return a variable that is bound to `value`."""
        return emit_as(self._walker.builder_, value, self.bound)

    def te(self, function: Callable[..., Any], *args: relax.Expr, name: str, pattern: int = OUT_FUSABLE) -> relax.Var:
        """Return a variable that is bound to what the tensor expression computes."""
        attrs = {"op_pattern": pattern}
        return self.emit(self._walker.builder_.call_te(function, *args, primfunc_name_hint=name, primfunc_attrs=attrs))

    def cast(self, value: relax.Var, dtype: str) -> relax.Var:
        """Return `value` in `dtype`."""
        return value if str(value.ty.dtype) == dtype else self.emit(relax.op.astype(value, dtype))

    def plain(self, value: relax.Var, shape: tuple[Any, ...] | None) -> relax.Expr:
        """Return an NHWC value in its old layout; of single pixels that is a reshape."""
        assert shape is not None
        if is_pixel(value, (1, 2)):
            return relax.op.reshape(value, shape)
        self.permutations += 1
        return relax.op.permute_dims(value, TO_NCHW)

    def plain_of(self, var: relax.Var) -> relax.Var:
        """Return the plain form of a variable that has an NHWC one; once."""
        if var not in self._first:
            self._first[var] = self.emit(self.plain(self.last[var], dims_of(var)))
        return self._first[var]

    def image(self, expr: relax.Expr) -> relax.Var:
        """Return the NHWC form of an NCHW value, permuted if it has none; once."""
        if expr in self.last:
            return self.last[expr]
        plain = self.visited(expr)
        if plain not in self._permuted:
            n, c, h, w = sizes_of(expr)
            single = is_pixel(expr, (2, 3))
            same = relax.op.reshape(plain, (n, h, w, c)) if single else relax.op.permute_dims(plain, TO_NHWC)
            self.permutations += not single
            self._permuted[plain] = self.emit(same)
        return self._permuted[plain]

    def saw(self, dtype: str) -> None:
        """Count a convolution of values of this dtype."""
        self.convolutions += 1
        self.low = WIDE if WIDE in (self.low, dtype) else dtype

    def source(self, data: relax.Expr) -> relax.Var | None:
        """Return the NHWC form, in the convolutions' dtype, of what has one.

        None of what has none, and where its channels fill no vectors.
        """
        found = self.last.get(data)
        if found is None or not self.low or sizes_of(found)[3] % VECTOR:
            return None
        found = self.narrow.get(found, found)
        return found if is_low(found) else self.cast(found, self.low)


Rule = Callable[[NhwcImages, relax.Call], relax.Var | None]
"""The NHWC form of what a call gives, and None where it has none or should have none."""


def sizes_of(expr: relax.Expr) -> tuple[Any, ...]:
    """Return those of a value with an NHWC form: numbers, or expressions of what is known at the call."""
    shape = dims_of(expr)
    assert shape is not None
    return shape


def is_pixel(expr: relax.Expr, axes: tuple[int, int]) -> bool:
    """Return whether an image, whose lines and columns are along `axes`, is a single pixel."""
    sizes = sizes_of(expr)
    return all(isinstance(sizes[axis], int) and sizes[axis] == 1 for axis in axes)
