"""Attention in one kernel: every shape, mask and choice computes what numpy does, rows without a softmax included."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.attention.attention import TiledAttention
from relaxc.schedules.cpu.attention.form import MASKED
from relaxc.schedules.cpu.common.transposed_tile import transposed
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.statements import block, ramp, store, unrolled, vectorized
from relaxc.schedules.operators import Attention
from relaxc.schedules.plan import Plan
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.lowering.vector_functions import VECTOR_MATH
from relaxc.service.passes.kernels.attention_compute import AttentionSpec, attention
from tests.guarded import guarded_tensor

pytestmark = pytest.mark.sampled

pipeline.register()
TARGETS = ["x86-64-v2", "x86-64-v3", "auto"]
INFINITY = float("inf")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """Sizes, the kind of mask (`add`, `where`, `keys`: one row for all queries), and how q, k and v are laid out."""

    batch: int = 1
    queries: int = 16
    keys: int = 16
    heads: int = 2
    depth: int = 16
    width: int = 16
    mask: str = ""
    masked: str = "nan"
    merged: bool = False
    symbolic: bool = False
    dtype: str = "float32"
    scale: float = 0.3


def operator(case: Case) -> Attention:
    """What the case computes; symbolic sizes are 0."""
    batch, queries, keys = (0, 0, 0) if case.symbolic else (case.batch, case.queries, case.keys)
    mask = {"": (), "add": ("add.hmn",), "where": ("where.hmn",), "keys": ("add.hn",)}[case.mask]
    return Attention(
        batch=batch,
        heads=case.heads,
        queries=queries,
        keys=keys,
        depth=case.depth,
        width=case.width,
        logit=mask,
        masked=case.masked,
        operands=(case.dtype,) * 3,
    )


def planned(case: Case, name: str = "auto") -> Plan:
    """The default plan of a case."""
    return planning.default(operator(case), cpu_of(to_tvm(resolve(name))))


def function(case: Case, name: str = "auto", plan: Plan | None = None) -> Any:
    """The PrimFunc that the pass emits for a case: q, k and v `[B, S, H * D]`, the mask `[1, H, N, M padded]`."""
    batch, queries, keys = case.batch, case.queries, case.keys
    if case.symbolic:
        batch, queries, keys = (tirx.Var(name, "int64") for name in ("batch", "queries", "keys"))
    depths = [case.heads * case.depth, case.heads * case.depth, case.heads * case.width]
    offsets = [0, depths[0], depths[0] + depths[1]] if case.merged else [0, 0, 0]
    tensors = [
        te.placeholder((batch, rows, sum(depths) if case.merged else depth), case.dtype, name)
        for name, rows, depth in zip("qkv", (queries, keys, keys), depths, strict=True)
    ]
    room = (queries + 63) if case.symbolic else -(-queries // 16) * 16
    if case.mask:
        rows = 1 if case.mask == "keys" else room
        tensors.append(
            te.placeholder((1, case.heads, keys, rows), "bool" if case.mask == "where" else "float32", "mask")
        )

    def operand(at: int, size: int) -> Any:
        def element(given: Any, b: Any, row: Any, d: Any) -> Any:
            value = given[at][b[0], row, offsets[at] + b[1] * size + d]
            return value if case.dtype == "float32" else value.astype("float32")

        return element

    def logit(given: Any, score: Any, b: Any, m: Any, n: Any) -> Any:
        mask = given[3][0, b[1], n, 0 if case.mask == "keys" else m]
        return tirx.Select(mask, score, tirx.const(-INFINITY, "float32")) if case.mask == "where" else score + mask

    scale = tirx.const(case.scale, "float32")
    query = operand(0, case.depth)
    spec = AttentionSpec(
        batch=(batch, case.heads),
        queries=queries,
        keys=keys,
        depth=case.depth,
        width=case.width,
        masked=case.masked,
        query=lambda *at: query(*at) * scale,
        key=operand(1, case.depth),
        value=operand(2, case.width),
        logit=logit if case.mask else None,
        shape=(batch, queries, case.heads * case.width),
        place=lambda b, m, x: ([b, x // case.width], m, x % case.width),
        plan=plan or planned(case, name),
    )
    func = te.create_prim_func([*tensors, attention(*tensors, spec=spec)])
    return func.with_attr({MASKED: case.masked, "global_symbol": "main"})


def inputs(case: Case, func: Any, seed: int = 3) -> list[Array]:
    """Seeded inputs of the PrimFunc's sizes."""
    rng = np.random.default_rng(seed)
    sizes = {"batch": case.batch, "queries": case.queries, "keys": case.keys}

    def size(extent: Any) -> int:
        values = {var: tirx.const(sizes[var.name], "int64") for var in tir.variables(extent)}
        return int(tir.simplify(tir.substitute(extent, values)))

    shapes = [tuple(map(size, param.shape)) for param in func.params]
    dtypes = [str(param.dtype) for param in func.params]
    return [
        rng.random(shape) < 0.6 if dtype == "bool" else rng.standard_normal(shape).astype(dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def expected(case: Case, q: Array, k: Array, v: Array, *mask: Array) -> Array:
    """What numpy computes, with the order of operations of the operators it is made from."""
    parts = []
    for at, (array, size) in enumerate(zip((q, k, v), (case.depth, case.depth, case.width), strict=True)):
        first = at * case.heads * case.depth if case.merged else 0
        cut = array[:, :, first : first + case.heads * size].reshape(*array.shape[:2], case.heads, size)
        parts.append(cut.transpose(0, 2, 1, 3).astype(np.float64))
    scores = (parts[0] * case.scale) @ parts[1].swapaxes(2, 3)
    if mask:
        rows = mask[0][..., :1] if case.mask == "keys" else mask[0][..., : case.queries]
        rows = rows.swapaxes(2, 3)
        scores = np.where(rows, scores, -INFINITY) if case.mask == "where" else scores + rows
    with np.errstate(invalid="ignore"):
        power = np.exp(scores - scores.max(-1, keepdims=True))
        weights = power / power.sum(-1, keepdims=True)
        if case.masked == "zero":
            weights = np.where((scores == -INFINITY).all(-1, keepdims=True), 0, weights)
        if case.masked == "never_nan":
            weights = np.where(np.isnan(weights), 0, weights)
        result: Array = (weights @ parts[2]).transpose(0, 2, 1, 3).reshape(*q.shape[:2], -1)
    return result.astype("float32")


def scheduled(func: Any, name: str, parameters: Any = None) -> Any:
    """The PrimFunc with the template applied."""
    found = TiledAttention().apply(func, to_tvm(resolve(name)), parameters)
    assert isinstance(found, Schedule), found
    return found.func.with_attr({"tirx.is_scheduled": True, VECTOR_MATH: True})


def run(func: Any, name: str, arrays: list[Array]) -> Array:
    """What the PrimFunc computes; its result is filled with a number that no result has before."""
    tensors = [guarded_tensor(array, "end") for array in arrays[:-1]]
    result = tvm.runtime.tensor(np.full_like(arrays[-1], 12345.0))
    tirx.build(tvm.IRModule({"main": func}), to_tvm(resolve(name)), pipeline=pipeline.NAME)["main"](*tensors, result)
    return np.asarray(result.numpy())


def agree(case: Case, name: str = "auto", parameters: Any = None) -> None:
    """The template takes the case and computes what numpy does."""
    func = function(case, name)
    arrays = inputs(case, func)
    got = run(scheduled(func, name, parameters), name, arrays)
    np.testing.assert_allclose(got, expected(case, *arrays[:-1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 7), (7, 3), (13, 31), (31, 13), (49, 49), (65, 130)])
def test_any_lengths(name: str, queries: int, keys: int) -> None:
    agree(Case(queries=queries, keys=keys, mask="add"), name)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (7, 3), (13, 31), (20, 64), (64, 20), (80, 80), (128, 48)])
def test_any_size_of_heads(name: str, depth: int, width: int) -> None:
    agree(Case(batch=2, queries=19, keys=21, depth=depth, width=width), name)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("mask", ["", "add", "where", "keys"])
def test_masks_and_merged_operands(mask: str, merged: bool) -> None:
    agree(Case(batch=2, queries=37, keys=40, heads=3, depth=8, width=16, mask=mask, merged=merged))


@pytest.mark.sampled("257")
@pytest.mark.parametrize("keys", [257, 700, 1000])
def test_more_keys_than_a_softmax_step_takes(keys: int) -> None:
    case = Case(queries=130, keys=keys, depth=8, mask="add")
    agree(case)
    agree(case, parameters=point(case, block=64, tiles=2, copies=1))


@pytest.mark.sampled("-sizes2-x86-64-v3", "-sizes3-x86-64-v3", "-sizes0-auto")
@pytest.mark.parametrize("name", ["x86-64-v3", "auto"])
@pytest.mark.parametrize("sizes", [(1, 16, 16), (3, 5, 130), (2, 33, 1), (2, 100, 300)])
@pytest.mark.parametrize("mask", ["", "add"])
def test_symbolic_sizes(name: str, sizes: tuple[int, int, int], mask: str) -> None:
    batch, queries, keys = sizes
    agree(Case(batch=batch, queries=queries, keys=keys, mask=mask, symbolic=True), name)


@pytest.mark.sampled("128-never_nan")
@pytest.mark.parametrize("masked", ["nan", "zero", "never_nan"])
@pytest.mark.parametrize("block_keys", [32, 128])
def test_rows_without_a_softmax(masked: str, block_keys: int) -> None:
    """Rows of -∞, infinite and NaN scores, and values that are not finite behind weights of 0."""
    case = Case(queries=21, keys=70, mask="add", masked=masked)
    func = function(case)
    arrays = inputs(case, func)
    mask = arrays[3]
    mask[:, 0, :, 3] = -INFINITY  # everything is masked
    mask[:, 0, :40, 5] = -INFINITY  # the first blocks of keys are
    mask[:, :, 9, 7] = np.nan
    mask[:, 1, 11, 8] = INFINITY
    mask[:, 0, :, 10] = np.finfo("float32").min  # all alike
    for bad in (0.0, np.nan, INFINITY):
        arrays[2][0, 69, 0] = bad
        made = scheduled(func, "auto", point(case, block=block_keys))
        np.testing.assert_allclose(run(made, "auto", arrays), expected(case, *arrays[:-1]), rtol=1e-4, atol=1e-5)


def test_one_operand_that_is_not_a_number_stays_in_its_rows() -> None:
    case = Case(queries=20, keys=20)
    func = function(case)
    arrays = inputs(case, func)
    arrays[0][0, 4, 2] = np.nan
    got = run(scheduled(func, "auto"), "auto", arrays)
    np.testing.assert_allclose(got, expected(case, *arrays[:-1]), rtol=1e-4, atol=1e-5)


def point(case: Case, **values: int) -> dict[str, int]:
    """The default parameters with some others."""
    return {**planned(case).parameters, **values}


@pytest.mark.slow
def test_any_choice_is_right() -> None:
    case = Case(batch=2, queries=83, keys=75, heads=2, depth=12, width=32, mask="add", merged=True)
    points = TiledAttention().points(function(case), to_tvm(resolve("auto")))
    assert not isinstance(points, Declined)
    for each in random.Random(0).sample(points.listed, 12):
        agree(case, parameters=each)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"vectors": 9}, "vectors"),
        ({"keys": 11}, "keys"),
        ({"rows": 7}, "do not divide"),
        ({"vectors": 2, "rows": 8, "columns": 4}, "do not fit the registers"),
        ({"block": 128}, "no more than there are"),
        ({"tiles": 8}, "blocks of queries"),
        ({"copies": 2}, "copies"),
        ({"unroll": 1}, "the template's parameters are"),
    ],
)
def test_parameters_that_are_no_point_are_refused(changed: dict[str, int], reason: str) -> None:
    case = Case(queries=50, keys=40, width=64)
    given = {**planned(case, "x86-64-v4").parameters, **changed}
    assert reason in planning.refusal(operator(case), "cpu.attention", given, cpu_of(to_tvm(resolve("x86-64-v4"))))


def test_sizes_that_are_not_known_have_no_copies_of_values() -> None:
    case = Case(symbolic=True)
    with pytest.raises(ValueError, match="copies"):
        scheduled(function(case), "auto", {**planned(case).parameters, "copies": 1})


@pytest.mark.parametrize("name", [*TARGETS, "x86-64-v4", "aarch64"])
@pytest.mark.parametrize("sizes", [(1, 12, 128, 64), (8, 12, 197, 64), (2, 3, 17, 24), (0, 4, 0, 8), (1, 2, 4096, 128)])
def test_a_space_has_the_default_and_no_point_twice(name: str, sizes: tuple[int, int, int, int]) -> None:
    batch, heads, rows, width = sizes
    given = Attention(batch=batch, heads=heads, queries=rows, keys=rows, depth=width, width=width)
    cpu = cpu_of(to_tvm(resolve(name)))
    points = [tuple(sorted(point.items())) for point in TiledAttention().space(given, cpu)]
    assert tuple(planning.default(given, cpu).parameters.items()) in points
    assert len(set(points)) == len(points) and 10 < len(points) < 500
    assert not any(planning.refusal(given, "cpu.attention", dict(point), cpu) for point in points)


def test_no_scores_in_memory_and_one_parallel_loop() -> None:
    func = scheduled(function(Case(queries=512, keys=512, heads=4, mask="add")), "auto")
    sizes = [
        np.prod([int(d) for d in buffer.shape])
        for realize in block_realizes(func)
        for buffer in realize.block.alloc_buffers
    ]
    assert max(sizes) * 4 <= 512 * 64 * 4
    loops = tir.collect(func.body, tirx.For)
    assert sum(loop.kind == tirx.ForKind.PARALLEL for loop in loops) == 1
    assert loops[-1].kind == tirx.ForKind.PARALLEL


def test_a_few_operations_are_not_parallel() -> None:
    func = scheduled(function(Case(queries=4, keys=4, heads=1)), "auto")
    assert all(loop.kind != tirx.ForKind.PARALLEL for loop in tir.collect(func.body, tirx.For))


def test_the_default_fits_the_registers() -> None:
    for name, registers in (("x86-64-v2", 16), ("x86-64-v3", 16), ("x86-64-v4", 32), ("aarch64", 32)):
        p = planned(Case(queries=197, keys=197, depth=64, width=64), name).parameters
        assert p["keys"] * p["vectors"] + p["vectors"] + 1 <= registers
        assert p["rows"] * p["columns"] + p["columns"] + 1 <= registers


@pytest.mark.parametrize("name", ["x86-64-v4", "aarch64"])
def test_machine_code_for_other_targets(name: str) -> None:
    func = scheduled(function(Case(queries=50, keys=50, depth=20, mask="where", masked="never_nan"), name), name)
    tirx.build(tvm.IRModule({"main": func}), to_tvm(resolve(name)), pipeline=pipeline.NAME)


def test_what_it_declines() -> None:
    data = te.placeholder((8, 8), name="a")
    plain = te.create_prim_func([data, te.compute((8, 8), lambda i, j: data[i, j] + 1.0)])
    target = to_tvm(resolve("x86-64-v3"))
    sizes = Attention(batch=1, heads=1, queries=8, keys=8, depth=4, width=4)
    for func, reason in (
        (plain, "carries no plan"),
        (_across(None), "carries no plan"),
        (_across(sizes), "not contiguous"),
        (_across(replace(sizes, keys=9), along=True), "other sizes"),
    ):
        found = TiledAttention().apply(func, target)
        assert isinstance(found, Declined) and reason in found.reason


def _across(planned_for: Attention | None, *, along: bool = False) -> Any:
    """Attention whose values are not contiguous in a head, unless `along`, with a plan for this operator."""
    q, k = (te.placeholder((8, 4), "float32", name) for name in "qk")
    v = te.placeholder((8, 4) if along else (4, 8), "float32", "v")
    plan = None if planned_for is None else planning.default(planned_for, cpu_of(to_tvm(resolve("x86-64-v3"))))
    spec = AttentionSpec(
        (1,), 8, 8, 4, 4, "nan",
        lambda t, b, m, d: t[0][m, d], lambda t, b, n, d: t[1][n, d],
        lambda t, b, n, e: t[2][n, e] if along else t[2][e, n],
        None, (1, 8, 4), lambda b, m, e: ([b], m, e), plan=plan,
    )  # fmt: skip
    return te.create_prim_func([q, k, v, attention(q, k, v, spec=spec)]).with_attr(MASKED, "nan")


@pytest.mark.parametrize(("lanes", "name"), [(2, "x86-64-v2"), (4, "x86-64-v2"), (8, "x86-64-v3"), (16, "auto")])
def test_a_tile_is_transposed_in_registers(lanes: int, name: str) -> None:
    source, target = (tirx.decl_buffer((lanes, lanes), "float32", each, layout=None) for each in "ab")

    def fill(tile: Any) -> Any:
        return unrolled(lanes, lambda i: vectorized(lanes, lambda j: store(tile, source[i, j], i * lanes + j)))

    zero = tirx.const(0, "int64")
    body, tiles = transposed(
        lanes, fill, lambda j, vector: store(target, vector, j, ramp(zero, lanes)), dtype="float32"
    )
    func = tirx.PrimFunc([source, target], block("root", block("tile", body, tiles), []))
    func = func.with_attr({"tirx.noalias": True, "s_tir": True, "global_symbol": "main"})
    array = np.arange(lanes * lanes, dtype="float32").reshape(lanes, lanes)
    np.testing.assert_array_equal(run(func, name, [array, array]), array.T)
