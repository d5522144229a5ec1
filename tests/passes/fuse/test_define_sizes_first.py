"""DefineSizesFirst: what fuses with values whose sizes the data decides stands behind the definition of these."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.fuse.define_sizes_first import DefineSizesFirst
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, run


def _chosen(flags: relax.Var, table: relax.Var, row: relax.Var, builder: relax.BlockBuilder) -> relax.Expr:
    """The rows of a table whose flags are set, each with another row added, that a kernel before them makes."""
    turned = builder.emit(op.negative(row))
    places = builder.emit(op.nonzero(flags))
    places = builder.match_cast(places, relax.TensorType([1, tirx.Var("chosen", "int64")], "int64"))
    rows = builder.emit(op.take(table, builder.emit(op.reshape(places, (places.ty.shape[1],))), 0))
    return op.add(rows, turned)


def _module() -> Any:
    builder = relax.BlockBuilder()
    shapes = {"flags": ([5], "bool"), "table": ([5, 3], "float32"), "row": ([1, 3], "float32")}
    parameters = [relax.Var(name, relax.TensorType(*each)) for name, each in shapes.items()]
    with builder.function("main", parameters):
        with builder.dataflow():
            output = builder.emit_output(relax.Tuple([builder.emit(_chosen(*parameters, builder))]))
        builder.emit_func_output(output)
    return builder.get()


def test_a_kernel_of_values_from_before_and_behind_the_count() -> None:
    optimized = optimize(_module(), TARGET, CompileOptions())
    rng = np.random.default_rng(0)
    table, row = rng.standard_normal((5, 3)).astype("float32"), rng.standard_normal((1, 3)).astype("float32")
    for flags in (np.array([1, 0, 1, 1, 0], bool), np.zeros(5, bool)):
        np.testing.assert_array_equal(run(optimized, flags, table, row)[0], table[flags] - row)


def test_a_check_of_a_value_that_has_the_size_defines_none() -> None:
    builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    sizes, m = relax.Var("sizes", relax.ShapeType(ndim=1)), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([n], "float32"))
    with builder.function("main", [x, sizes]):
        with builder.dataflow():
            builder.match_cast(sizes, relax.ShapeType([m]))
            made = builder.emit(op.zeros((m,), "float32"))
            checked = builder.match_cast(made, relax.TensorType([m], "float32"))
            output = builder.emit_output(builder.emit(op.add(checked, x)))
        builder.emit_func_output(output)
    module = builder.get()
    assert DefineSizesFirst()(module).same_as(module)
    main = module["main"]
    block = main.body.blocks[0]
    turned = relax.DataflowBlock([block.bindings[1], block.bindings[2], block.bindings[0], *block.bindings[3:]])
    module["main"] = relax.Function(main.params, relax.SeqExpr([turned], main.body.body), main.ret_ty)
    found = DefineSizesFirst()(module)["main"].body.blocks[0].bindings
    assert all(new.same_as(old) for new, old in zip(found, block.bindings, strict=True))


def test_a_kernel_that_is_given_the_size_as_a_number() -> None:
    """Its own result has another size, so that nothing in its type tells."""
    builder, m = relax.BlockBuilder(), tirx.Var("m", "int64")
    sizes = relax.Var("sizes", relax.ShapeType(ndim=1))
    with builder.function("main", [sizes]):
        with builder.dataflow():
            builder.match_cast(sizes, relax.ShapeType([m]))
            made = relax.call_dps_packed("made", relax.Tuple([m]), relax.TensorType([2], "int64"))
            output = builder.emit_output(builder.emit(made))
        builder.emit_func_output(output)
    module = builder.get()
    main = module["main"]
    cast, *others = main.body.blocks[0].bindings
    turned = relax.SeqExpr([relax.DataflowBlock([others[0], cast, *others[1:]])], main.body.body)
    module["main"] = relax.Function(main.params, turned, main.ret_ty)
    found = DefineSizesFirst()(module)["main"].body.blocks[0].bindings
    assert [each.same_as(want) for each, want in zip(found, (cast, *others), strict=True)] == [True] * len(found)
