"""ShareStorage: tensors that are never read at the same time share bytes, and no others do."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import IRModule, relax
from tvm.relax import op
from tvm.relax.op import memory

from relaxc.service.passes import finalize, optimize
from relaxc.service.passes.common.rewrite import op_name
from relaxc.service.passes.vm import share_storage
from relaxc.service.passes.vm.share_storage import Life, ShareStorage, lay_out, share
from relaxc.service.request import CompileOptions
from relaxc.service.signature import DimBounds
from tests.passes.graphs import TARGET, graph, random, weights


@pytest.mark.parametrize("seed", range(20))
def test_no_two_of_a_storage_live_at_a_time(seed: int) -> None:
    draw = np.random.default_rng(seed)
    firsts = draw.integers(0, 60, 40)
    lives = [Life(int(draw.integers(1, 9000)), int(first), int(first + draw.integers(0, 12))) for first in firsts]
    storages = share(lives)
    assert sorted(index for held in storages for index in held) == list(range(40))
    for largest, *others in storages:
        assert all(lives[index].size <= lives[largest].size for index in others)
        steps = [step for index in (largest, *others) for step in range(lives[index].first, lives[index].last + 1)]
        assert len(steps) == len(set(steps))
    at_once = [sum(life.size for life in lives if life.first <= step <= life.last) for step in range(80)]
    assert max(at_once) <= sum(lives[largest].size for largest, *_ in storages) <= 1.6 * max(at_once)


@pytest.mark.parametrize("seed", range(20))
def test_no_two_at_an_offset_live_at_a_time(seed: int) -> None:
    draw = np.random.default_rng(seed)
    firsts = draw.integers(0, 60, 40)
    lives = [Life(int(draw.integers(1, 90_000)), int(first), int(first + draw.integers(0, 12))) for first in firsts]
    offsets, size = lay_out(lives)
    spans = [(offset, offset + life.size) for offset, life in zip(offsets, lives, strict=True)]
    for (one, (begin, end)), (other, (start, stop)) in combinations(zip(lives, spans, strict=True), 2):
        assert end <= start or stop <= begin or one.last < other.first or other.last < one.first
    assert all(offset % 256 == 0 for offset in offsets) and max(end for _, end in spans) <= size
    at_once = [sum(life.size for life in lives if life.first <= step <= life.last) for step in range(80)]
    assert max(at_once) <= size <= 1.25 * max(at_once)


def test_nothing_takes_nothing() -> None:
    assert share([]) == []
    assert lay_out([]) == ([], 0)


def test_the_best_of_some_orders_is_taken() -> None:
    """Where the first of the two 5s lies in the 20, the second gets a storage, and 3 another: 28."""
    lives = [Life(5, 0, 1), Life(5, 1, 2), Life(3, 2, 3), Life(20, 3, 4), Life(4, 4, 5)]
    assert sum(lives[largest].size for largest, *_ in share(lives)) == 25


def narrow_and_wide(x: relax.Var) -> relax.Expr:
    """Values of 256, 32, 512, 16 and 128 columns: 512 come when the storage of 256 is taken for fewer."""
    for index, (before, after) in enumerate(pairwise((16, 256, 32, 512, 16, 128))):
        x = op.matmul(x, weights(before, after, seed=index))
        x = op.nn.softmax(x, axis=-1) if index % 2 else x
    return x


def planned(module: IRModule, bounds: dict[str, DimBounds] | None = None) -> tuple[IRModule, int]:
    lowered, memory = finalize(module, TARGET, bounds=bounds)
    assert memory.dynamic_storages == 0
    return lowered, memory.planned_bytes


def outputs(module: IRModule, constants: Any, *inputs: Any) -> list[Any]:
    machine = relax.VirtualMachine(relax.build(module, TARGET, relax_pipeline=None), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, inputs), tvm_ffi.convert(list(constants.values())))
    return [each.numpy() for each in found]


def test_a_large_value_lends_its_bytes_to_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    optimized = optimize(graph(narrow_and_wide, x=(64, 16)), TARGET, CompileOptions())
    module, size = planned(optimized.module)
    assert size >= 64 * (512 + 32) * 4
    got = outputs(module, optimized.weights, random(64, 16))
    monkeypatch.setattr(share_storage, "_shared", lambda function, offsets: None)
    unshared, memory = finalize(optimized.module, TARGET)
    assert memory.planned_bytes > size
    np.testing.assert_array_equal(got, outputs(unshared, optimized.weights, random(64, 16)))


def test_values_at_offsets_of_one_storage_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the plan is this one."""
    optimized = optimize(graph(narrow_and_wide, x=(64, 16)), TARGET, CompileOptions())
    module, _ = planned(optimized.module)
    want = outputs(module, optimized.weights, random(64, 16))
    monkeypatch.setattr(share_storage, "_some_storages", share_storage._one_storage)
    module, memory = finalize(optimized.module, TARGET)
    assert (memory.storages, memory.planned_bytes) == (1, 64 * (512 + 32) * 4)
    np.testing.assert_array_equal(outputs(module, optimized.weights, random(64, 16)), want)


def test_sizes_below_an_upper_bound_use_the_same_plan() -> None:
    fixed = optimize(graph(narrow_and_wide, x=(64, 16)), TARGET, CompileOptions())
    bounded = optimize(graph(narrow_and_wide, x=("n", 16)), TARGET, CompileOptions())
    module, size = planned(bounded.module, {"n": DimBounds(1, 64)})
    assert size >= planned(fixed.module)[1]
    full, x = outputs(module, bounded.weights, random(64, 16))[0], random(64, 16)
    for rows in (64, 1, 33):
        got = outputs(module, bounded.weights, np.ascontiguousarray(x[:rows]))[0]
        np.testing.assert_allclose(got, full[:rows], rtol=1e-5)


def test_a_value_lives_as_long_as_any_of_its_names() -> None:
    """`second` is read through a tuple and a view after `third` is written; `first` is not."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    with builder.function("main", [x]):
        values = []
        for _ in range(3):
            storage = builder.emit(memory.alloc_storage(relax.ShapeExpr([256]), 0, "global", "float32"))
            values.append(builder.emit(memory.alloc_tensor(storage, 0, relax.ShapeExpr([64]), "float32")))
            builder.emit(relax.Call(relax.ExternFunc("test.write"), [x, values[-1]], ty_args=[relax.TupleType([])]))
            if len(values) == 2:
                pair = builder.emit(relax.Tuple([x, values[1]]))
        view = builder.emit(op.reshape(builder.emit(relax.TupleGetItem(pair, 1)), (8, 8)))
        builder.emit(relax.Call(relax.ExternFunc("test.read"), [view, values[2]], ty_args=[relax.TupleType([])]))
        builder.emit_func_output(x)
    shared = ShareStorage()(builder.get())["main"]
    calls = [binding.value for block in shared.body.blocks for binding in block.bindings]
    storages = [call for call in calls if op_name(call) == "relax.memory.alloc_storage"]
    held = [call.args[0] for call in calls if op_name(call) == "relax.memory.alloc_tensor"]
    assert [int(call.args[0].values[0]) for call in storages] == [256, 256]
    assert held[1] != held[2]
    assert held[0] in held[1:]


def test_what_the_caller_gets_stays_where_it_is() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    with builder.function("main", [x]):
        for _ in range(3):
            held = builder.emit(memory.alloc_storage(relax.ShapeExpr([256]), 0, "global", "float32"))
            last = builder.emit(memory.alloc_tensor(held, 0, relax.ShapeExpr([64]), "float32"))
        builder.emit_func_output(builder.emit(relax.Tuple([last])))
    shared = ShareStorage()(builder.get())["main"]
    calls = [binding.value for block in shared.body.blocks for binding in block.bindings]
    sizes = [int(call.args[0].values[0]) for call in calls if op_name(call) == "relax.memory.alloc_storage"]
    assert sizes == [256, 256], "one for the two that end, one for the caller's"
