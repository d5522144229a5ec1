"""OrderShapeStores: the bytes of an artifact do not hang on addresses in the compiler's memory."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from relaxc.service.passes.vm.order_shape_stores import OrderShapeStores


def sizes(count: int) -> tvm.IRModule:
    """`main` of an `(n, 4)` tensor, which returns the shape (2 n, 3 n, …) of `count` dims."""
    builder = relax.BlockBuilder()
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(relax.ShapeExpr([n * factor for factor in range(2, count + 2)]))
    main = builder.get()["main"].with_attr("relax.force_pure", True)
    return relax.transform.VMShapeLower()(tvm.IRModule({"main": main}))


def stored(module: tvm.IRModule) -> list[int]:
    return [int(store.indices[0]) for store in module["shape_func"].body.seq]


def test_stores_follow_their_slots() -> None:
    modules = [sizes(12) for _ in range(4)]
    assert any(stored(module) != sorted(stored(module)) for module in modules)  # what the pass is for
    ordered = [OrderShapeStores()(module) for module in modules]
    for module, before in zip(ordered, modules, strict=True):
        assert stored(module) == sorted(stored(before))
        tvm.ir.assert_structural_equal(module, ordered[0])


@I.ir_module
class Chained:
    """A slot computed from one that is computed before it."""

    @T.prim_func(private=True, s_tir=True)
    def shape_func(H: T.Buffer((T.int64(4),), "int64")):
        T.func_attr({"tirx.is_host_func": True})
        H[T.int64(1)] = H[T.int64(0)] * T.int64(2)
        H[T.int64(2)] = H[T.int64(1)] * T.int64(3)


def test_an_order_that_matters_is_refused() -> None:
    with pytest.raises(ValueError, match="reads one that it stores"):
        OrderShapeStores()(Chained)
