"""What a converter of an ATen operator works with: the block builder, the types of the node, and common moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import is_prim_expr
from tvm.tirx import IntImm

from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend.pt2.symbols import Symbols
from relaxc.service.frontend.reach import reach
from relaxc.service.frontend.write_guard import WriteGuard

__all__ = ["FLOAT8", "HALF", "Emitter", "is_prim"]

HALF = ("float16", "bfloat16")
FLOAT8 = "float8_e4m3fn"
"""Types that are stored in 16 bits; reductions and transcendental functions of them are computed in float32."""

is_prim = is_prim_expr


class Emitter:
    """Emits Relax for one FX node at a time. `bb` is the block builder, `node` the current node.

    A tensor is a `relax.Expr`; a size is an int or a `tirx` expression; shapes are lists of sizes.
    """

    def __init__(self, bb: Any, symbols: Symbols) -> None:
        self.bb = bb
        self.symbols = symbols
        self.node: Any = None
        self.guard: WriteGuard | None = None
        """What holds writes inside, in a program that keeps state."""
        self.matched: dict[Any, Any] = {}
        """Variables that are others with their sizes written otherwise."""

    def __call__(self, expr: Any) -> Any:
        """Binds an expression to a new variable of the dataflow block."""
        return self.bb.emit(expr)

    # The node's own type

    def meta(self, index: int | None = None) -> Any:
        """Return the fake tensor of the node's result, or of one of its results."""
        value = self.node.meta["val"]
        return value if index is None else value[index]

    def out_dtype(self, index: int | None = None) -> str:
        """Return the dtype that the node must give."""
        return torch_dtype(self.meta(index).dtype)

    def out_shape(self, index: int | None = None) -> list[Any]:
        """Return the shape that the node must give."""
        return self.sizes(self.meta(index).shape)

    # Types of values

    def sizes(self, dims: Sequence[Any]) -> list[Any]:
        """Return torch sizes (ints and SymInts) as ints and tirx expressions."""
        return [self.size(dim) for dim in dims]

    def size(self, dim: Any) -> Any:
        """Return one torch size."""
        if isinstance(dim, int):
            return dim
        value = self.symbols.tir(dim.node.expr if hasattr(dim, "node") else dim)
        return int(value.value) if isinstance(value, IntImm) else value

    def shape(self, x: Any) -> list[Any]:
        """Return the shape of a tensor, constants as ints."""
        return [int(dim.value) if isinstance(dim, IntImm) else dim for dim in x.ty.shape.values]

    def static_shape(self, x: Any, what: str) -> list[int]:
        """Return the shape of a tensor that must not be symbolic here. Raise UnsupportedModel."""
        shape = self.shape(x)
        if not all(isinstance(dim, int) for dim in shape):
            raise UnsupportedModel(
                f"{what} needs sizes that are known when compiling, not {shape}", node=str(self.node)
            )
        return shape

    def dtype(self, x: Any) -> str:
        """Return the dtype of a tensor."""
        return str(x.ty.dtype.dtype)

    def rank(self, x: Any) -> int:
        """Return the number of dims."""
        return len(x.ty.shape.values)

    # Common moves

    def const(self, value: Any, dtype: str) -> Any:
        """Return a constant of rank 0, or of an array's shape."""
        import ml_dtypes  # noqa: F401  # teaches numpy the name bfloat16

        if dtype != "bool" and np.dtype(dtype).kind in "iu" and isinstance(value, float):
            value = int(value)
        with np.errstate(over="ignore"):  # a number that the dtype has not is infinite
            return relax.const(np.asarray(value).astype(np.dtype(dtype)), dtype)

    def cast(self, x: Any, dtype: str) -> Any:
        """Return `x` in another dtype. To bool means 'is not zero'."""
        if self.dtype(x) == dtype:
            return x
        if dtype == "bool":
            return self(relax.op.not_equal(x, self.const(0, self.dtype(x))))
        if FLOAT8 in (dtype, self.dtype(x)):
            return self._through_float8(x, dtype)
        return self(relax.op.astype(x, dtype))

    def _through_float8(self, x: Any, dtype: str) -> Any:
        """A cast to or from 8-bit floats, which saturates: TVM's own casts lose small and large ones."""
        one, zero = self.const(1, "float32"), self.const(0, "int32")
        if dtype != FLOAT8:
            return self.cast(self(relax.op.dequantize(x, one, zero, -1, "float32")), dtype)
        return self(relax.op.quantize(self.cast(x, "float32"), one, zero, -1, FLOAT8))

    def wide(self, x: Any) -> Any:
        """Return a float16 or bfloat16 tensor as float32, others as they are."""
        return self.cast(x, "float32") if self.dtype(x) in HALF else x

    def tensor(self, value: Any, dtype: str) -> Any:
        """Return a tensor, a Python number or a size as a tensor of `dtype`."""
        if is_prim(value):
            vector = self(relax.op.shape_to_tensor(relax.ShapeExpr([value])))
            return self.cast(self(relax.op.reshape(vector, ())), dtype)
        if isinstance(value, int | float | bool):
            return self.const(value, dtype)
        return self.cast(value, dtype)

    def reshape(self, x: Any, shape: Sequence[Any]) -> Any:
        """Return `x` in another shape, nothing emitted when it has it."""
        shape = list(shape)
        if _equal(self.shape(x), shape):
            return x
        return self(relax.op.reshape(x, shape))

    def permute(self, x: Any, axes: Sequence[int]) -> Any:
        """Return `x` with its dims in another order."""
        axes = [axis % max(self.rank(x), 1) for axis in axes]
        return x if axes == sorted(axes) else self(relax.op.permute_dims(x, axes))

    def broadcast(self, x: Any, shape: Sequence[Any]) -> Any:
        """Return `x` repeated to a larger shape."""
        return x if _equal(self.shape(x), list(shape)) else self(relax.op.broadcast_to(x, list(shape)))

    def slice(self, x: Any, axis: int, begin: Any, length: Any, step: int = 1) -> Any:
        """Return `length` elements of one dim from `begin` on, all of them inside."""
        if begin == 0 and step == 1 and _equal([self.shape(x)[axis]], [length]):
            return x
        end = begin + (length - 1) * step + 1
        where = [prim(axis)], [prim(begin)], [prim(end)], [prim(step)]
        return self(relax.op.strided_slice(x, *where, assume_inbound=True))

    def index(self, indices: Any, size: Any, *, wrap: bool = True) -> Any:
        """Return indices into a dim of `size`, negative ones counted from its end, and kept inside.

        torch raises for an index outside; a compiled function cannot, and must not read foreign memory. Of a constant
        the sizes that it needs are a condition of the signature.
        """
        self.require_inside(indices, size, wrap=wrap)
        dtype = self.dtype(indices)
        if dtype not in ("int32", "int64"):
            indices, dtype = self.cast(indices, "int64"), "int64"
        bound = self.tensor(size, dtype)
        if wrap:
            below = self(relax.op.less(indices, self.const(0, dtype)))
            indices = self(relax.op.where(below, self(relax.op.add(indices, bound)), indices))
        last = self(relax.op.subtract(bound, self.const(1, dtype)))
        return self(relax.op.maximum(self(relax.op.minimum(indices, last)), self.const(0, dtype)))

    def unharmed(self, values: Any, before: Any) -> Any:
        """Return what is to be written: in a program that keeps state `before`, where a call writes outside."""
        return values if self.guard is None else self.guard.unharmed(values, before())

    def guarded(self, indices: Any, size: Any, *, wrap: bool) -> None:
        """Hold calls of a program that keeps state to indices of a write that are inside, where data decides them."""
        if self.guard is not None and reach(indices, self._bound, {}) is None:
            indices = self.cast(indices, "int64")
            self.guard.check(indices, self.tensor(size, "int64"), wrap=wrap)

    def require_inside(self, indices: Any, size: Any, *, wrap: bool) -> None:
        """Hold calls to sizes that indices are inside of which are constants or a range. `wrap`: -1 is the last one.

        Raises UnsupportedModel where no call is.
        """
        found = reach(indices, self._bound, {})
        if found is None:
            return
        low, high = found
        if isinstance(low, int) and low < 0 and not wrap:
            raise self.refuse(f"an index of {low}, which torch refuses")
        told = f"indices of {self.symbols.told(low)} to {self.symbols.told(high)} for an axis of"
        self._require(size, high + 1, told)
        self._require(size if wrap else 0, -low, told)

    def held(self, x: Any, shape: Sequence[Any]) -> Any:
        """Return `x` with its sizes written as `shape`, and hold calls to that. Raise UnsupportedModel if none fits."""
        for old, new in zip(self.shape(x), shape, strict=True):
            told = f"{self.node} has the size {self.symbols.told(new)} beside {self.symbols.told(old)}"
            if not (self.symbols.require(old, new, told) and self.symbols.require(new, old, told)):
                raise self.refuse(told)
        return self.reshape(x, shape)

    def _require(self, size: Any, least: Any, told: str) -> None:
        if not self.symbols.require(size, least, f"{told} {self.symbols.told(size)} at {self.node}"):
            raise self.refuse(f"{told} {self.symbols.told(size)}")

    def _bound(self, value: Any) -> Any:
        """What a variable is bound to, None for parameters."""
        return self.matched[value] if value in self.matched else self.bb.lookup_binding(value)

    def refuse(self, reason: str) -> UnsupportedModel:
        """Return the error for a use of the current operator that we do not have."""
        name = self.node.target.name() if hasattr(self.node.target, "name") else str(self.node.target)
        return UnsupportedModel(f"{name} at {self.node}: {reason}", node=str(self.node), op=name)


def prim(value: Any) -> Any:
    """Return an int or a tirx expression as an int64 expression."""
    return value if is_prim(value) else tirx.IntImm("int64", int(value))


def torch_dtype(dtype: Any) -> str:
    """Return TVM's name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def _equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two shapes are the same text; equal shapes may be written differently."""
    return len(left) == len(right) and all(
        a == b if isinstance(a, int) and isinstance(b, int) else str(a) == str(b)
        for a, b in zip(left, right, strict=True)
    )
