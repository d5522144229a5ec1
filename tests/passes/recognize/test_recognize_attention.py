"""Attention as exporters spell it becomes one call that reads and writes where the heads are, and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.operators import Attention, Operator
from relaxc.schedules.plan import Plan, plan_of
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.recognize.recognize_attention import RecognizeAttention
from relaxc.service.passes.recognize.recognize_safe_softmax import RecognizeSafeSoftmax
from tests.passes.graphs import TARGET, assert_unchanged, compute, graph, operators, random, weights

pytestmark = pytest.mark.sampled


class _Typed:
    """`relax.op`, with results whose sizes can be asked for at once."""

    def __init__(self, operators: Any) -> None:
        self._operators = operators

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._operators, name)
        if not callable(found):
            return _Typed(found)
        return lambda *args, **kwargs: relax.BlockBuilder.current().emit(found(*args, **kwargs))


R = _Typed(relax.op)
CPU = cpu_of(TARGET)
LOWEST = float(np.finfo("float32").min)
HEADS, SIZE = 3, 4


def number(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def recognized(module: tvm.IRModule) -> tvm.IRModule:
    """The module after safe softmaxes and attention are recognized."""
    with TARGET:
        return relax.transform.DeadCodeElimination()(RecognizeAttention(CPU)(RecognizeSafeSoftmax()(module)))


def becomes(module: tvm.IRModule, expected: list[str], *arrays: np.ndarray[Any, Any]) -> tvm.IRModule:
    """The recognized module, which calls these and computes what the module did."""
    changed = recognized(module)
    assert operators(changed) == expected
    with np.errstate(invalid="ignore"):
        for got, want in zip(compute(changed, *arrays), compute(module, *arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return changed


def split(x: relax.Expr, heads: int = HEADS, *, axes: tuple[int, ...] = (0, 2, 1, 3)) -> relax.Expr:
    """`[B, S, H * D] → [B, H, S, D]`, or what other `axes` give."""
    batch, length, columns = x.ty.shape
    return R.permute_dims(R.reshape(x, [batch, length, heads, int(columns) // heads]), axes)


def merge(x: relax.Expr) -> relax.Expr:
    """`[B, H, S, D] → [B, S, H * D]`"""
    batch, heads, length, size = x.ty.shape
    return R.reshape(R.permute_dims(x, [0, 2, 1, 3]), [batch, length, int(heads) * int(size)])


def attended(scores: relax.Expr, v: relax.Expr) -> relax.Expr:
    return R.matmul(R.nn.softmax(scores, -1), v)


QKV = {"q": (2, 9, HEADS * SIZE), "k": (2, 11, HEADS * SIZE), "v": (2, 11, HEADS * SIZE)}
ARRAYS = [random(*shape, seed=i) for i, shape in enumerate(QKV.values())]


def test_heads_are_split_and_merged_in_the_kernel() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return merge(attended(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), split(v)))

    changed = becomes(graph(net, **QKV), ["attention"], *ARRAYS)
    func = next(f for var, f in changed.functions_items() if str(var.name_hint) == "attention")
    assert [tuple(map(int, param.shape)) for param in func.params] == [*QKV.values(), (2, 9, HEADS * SIZE)]
    assert str(func.attrs["relaxc.masked_rows"]) == "nan"


@pytest.mark.sampled("both", "scores")
@pytest.mark.parametrize("where", ["q", "k", "both", "scores", "divided"])
def test_scales_anywhere(where: str) -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        q, k = split(q), split(k, axes=(0, 2, 3, 1))
        q = R.multiply(q, number(0.5)) if where in ("q", "both") else q
        k = R.multiply(number(0.3), k) if where in ("k", "both") else k
        scores = R.matmul(q, k)
        scores = R.multiply(scores, number(0.4)) if where == "scores" else scores
        scores = R.divide(scores, number(2.5)) if where == "divided" else scores
        return merge(attended(scores, split(v)))

    becomes(graph(net, **QKV), ["attention"], *ARRAYS)


@pytest.mark.sampled("shape0", "shape1")
@pytest.mark.parametrize("shape", [(2, 1, 9, 11), (1, HEADS, 9, 11), (2, 1, 1, 11), (9, 11), (9, 1)])
def test_masks_that_are_added(shape: tuple[int, ...]) -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
        scores = R.multiply(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), number(0.4))
        return merge(attended(R.add(mask, scores), split(v)))

    expected = ["attention"]
    if shape[-2:] == (9, 11) or shape[-2:] == (9, 1):
        expected = ["permute_dims", "nn.pad", "attention"]
    becomes(graph(net, **QKV, mask=shape), expected, *ARRAYS, random(*shape, seed=8))


@pytest.mark.sampled("False-isnan")
@pytest.mark.parametrize("guard", ["isnan", "safe", "none"])
@pytest.mark.parametrize("keep", [True, False])
def test_masks_that_choose_and_rows_without_a_softmax(guard: str, keep: bool) -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
        scores = R.matmul(split(q), split(k, axes=(0, 2, 3, 1)))
        low = number(float("-inf"))
        scores = R.where(mask, scores, low) if keep else R.where(mask, low, scores)
        weights = R.nn.softmax(scores, -1)
        if guard == "isnan":
            weights = R.where(R.isnan(weights), number(0.0), weights)
        if guard == "safe":
            finite = R.astype(R.logical_not(R.equal(scores, low)), "int32")
            dead = R.logical_not(R.astype(R.max(finite, -1, keepdims=True), "bool"))
            weights = R.where(dead, number(0.0), weights)
        return merge(R.matmul(weights, split(v)))

    mask = random(2, 1, 9, 11, seed=9) > 0.2
    mask[0, 0, 4] = not keep
    becomes(graph(net, **QKV, mask=("bool", (2, 1, 9, 11))), ["permute_dims", "nn.pad", "attention"], *ARRAYS, mask)


def test_a_product_of_all_three_is_read_in_slices() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        x = R.matmul(x, weights(5, 3 * HEADS * SIZE))
        step = HEADS * SIZE
        q, k, v = (R.strided_slice(x, [2], [i * step], [(i + 1) * step], [1]) for i in range(3))
        return merge(attended(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), split(v)))

    becomes(graph(net, x=(2, 9, 5)), ["matmul", "attention"], random(2, 9, 5))


def test_shared_heads_and_an_axis_of_parts() -> None:
    def net(q: relax.Expr, kv: relax.Expr) -> relax.Expr:
        parts = R.reshape(kv, [2, 11, 2, 2, SIZE])
        k, v = (R.permute_dims(R.take(parts, relax.const(i, "int64"), 3), [0, 2, 1, 3]) for i in range(2))

        def shared(x: relax.Expr) -> relax.Expr:
            wide = R.broadcast_to(R.reshape(x, [2, 2, 1, 11, SIZE]), [2, 2, 2, 11, SIZE])
            return R.reshape(wide, [2, 4, 11, SIZE])

        return merge(attended(R.matmul(split(q, 4), R.permute_dims(shared(k), [0, 1, 3, 2])), shared(v)))

    arrays = [random(2, 9, 4 * SIZE), random(2, 11, 4 * SIZE, seed=1)]
    becomes(graph(net, q=(2, 9, 4 * SIZE), kv=(2, 11, 4 * SIZE)), ["attention"], *arrays)


def test_batches_flattened_and_masks_between() -> None:
    """Windows: the scores are reshaped for a mask of their own, and the batch of both products is one axis."""

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, bias: relax.Expr, mask: relax.Expr) -> relax.Expr:
        q, k, v = (R.reshape(split(x), [4 * HEADS, 8, SIZE]) for x in (q, k, v))
        scores = R.reshape(R.matmul(q, R.permute_dims(k, [0, 2, 1])), [4, HEADS, 8, 8])
        scores = R.reshape(R.add(scores, bias), [2, 2, HEADS, 8, 8])
        weights = R.reshape(R.nn.softmax(R.add(scores, mask), -1), [4 * HEADS, 8, 8])
        return merge(R.reshape(R.matmul(weights, v), [4, HEADS, 8, SIZE]))

    shapes = {**dict.fromkeys("qkv", (4, 8, HEADS * SIZE)), "bias": (1, HEADS, 8, 8), "mask": (1, 2, 1, 8, 8)}
    arrays = [random(*shape, seed=i) for i, shape in enumerate(shapes.values())]
    becomes(graph(net, **shapes), ["permute_dims", "permute_dims", "attention"], *arrays)


@pytest.mark.slow
def test_symbolic_batch_and_lengths() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
        scores = R.matmul(split(q), split(k, axes=(0, 2, 3, 1)))
        return merge(attended(R.add(scores, mask), split(v)))

    columns = HEADS * SIZE
    shapes = {"q": ("b", "s", columns), "k": ("b", "s", columns), "v": ("b", "s", columns), "mask": ("b", 1, "s", "s")}
    module = graph(net, **shapes)
    for batch, length in ((1, 5), (3, 8)):
        arrays = [random(batch, length, columns, seed=i) for i in range(3)]
        arrays.append(random(batch, 1, length, length, seed=5))
        becomes(module, ["permute_dims", "nn.pad", "attention"], *arrays)


@pytest.mark.parametrize("queries", [9, "m"])
def test_keys_of_a_number_that_the_result_does_not_have_are_left_alone(queries: int | str) -> None:
    """As in cross attention. Their number was a variable in the PrimFunc that nothing passed to it."""

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return merge(attended(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), split(v)))

    columns = HEADS * SIZE
    shapes = {"q": (2, queries, columns), "k": (2, "n", columns), "v": (2, "n", columns)}
    module = recognized(graph(net, **shapes))
    assert not any(name.startswith("attention") for name in operators(module))
    arrays = [random(2, length, columns, seed=length) for length in (9, 7, 7)]
    (got,) = compute(module, *arrays)
    assert got.shape == arrays[0].shape


class Asked:
    """A planner that remembers what it was asked, and plans one block of queries a task."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []

    def plan(self, operator: Operator) -> Plan:
        """See `relaxc.schedules.plan.Planner`."""
        self.operators.append(operator)
        found = planning.default(operator, CPU)
        return planning.planned(
            operator, found.template, {**found.parameters, "tiles": 1, "copies": 0}, CPU, "a record"
        )


MASKS = {
    "": ((), ()),
    "for every query": ((2, 1, 9, 11), ("add.bmn",)),
    "for every head": ((1, HEADS, 9, 11), ("add.hmn",)),
    "of keys": ((2, 1, 1, 11), ("add.bn",)),
    "of keys, the same for the batch": ((11,), ("add.n",)),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_planner_is_asked_for_the_operator_and_the_call_carries_its_plan(name: str) -> None:
    shape, logit = MASKS[name]

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, *mask: relax.Expr) -> relax.Expr:
        scores = R.multiply(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), number(0.5))
        return merge(attended(R.add(scores, mask[0]) if mask else scores, split(v)))

    asked = Asked()
    module = graph(net, **QKV, **({"mask": shape} if shape else {}))
    with TARGET:
        changed = RecognizeAttention(CPU, asked)(module)
    sizes = {"batch": 2, "heads": HEADS, "queries": 9, "keys": 11, "depth": SIZE, "width": SIZE}
    assert asked.operators == [Attention(**sizes, logit=logit)]
    [plan] = [plan for func in changed.functions.values() if (plan := plan_of(func)) is not None]
    assert plan == asked.plan(asked.operators[0])


def test_sizes_that_are_not_known_are_zero_in_the_operator() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return merge(attended(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), split(v)))

    asked = Asked()
    with TARGET:
        RecognizeAttention(CPU, asked)(graph(net, **dict.fromkeys("qkv", ("b", "s", HEADS * SIZE))))
    assert asked.operators == [Attention(batch=0, heads=HEADS, queries=0, keys=0, depth=SIZE, width=SIZE)]


def test_layers_share_one_mask() -> None:
    from relaxc.service.passes.simplify.merge_equal_calls import MergeEqualCalls

    def net(x: relax.Expr, mask: relax.Expr) -> relax.Expr:
        for _ in range(2):
            scores = R.matmul(split(x), split(x, axes=(0, 2, 3, 1)))
            x = merge(attended(R.add(scores, mask), split(x)))
        return x

    module = recognized(graph(net, x=(2, 9, HEADS * SIZE), mask=(2, 1, 9, 9)))
    merged = relax.transform.DeadCodeElimination()(MergeEqualCalls()(module))
    assert operators(merged) == ["permute_dims", "nn.pad", "attention", "attention"]


def _scores_are_an_output(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> Any:
    weights = R.nn.softmax(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), -1)
    return merge(R.matmul(weights, split(v))), weights


def _over_another_axis(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> Any:
    return merge(R.matmul(R.nn.softmax(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), 2), split(v)))


def _something_else_between(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> Any:
    scores = R.sin(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))))
    return merge(attended(scores, split(v)))


def _transposed_weights(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> Any:
    weights = R.permute_dims(R.nn.softmax(R.matmul(split(k), split(q, axes=(0, 2, 3, 1))), -1), [0, 1, 3, 2])
    return merge(R.matmul(weights, split(v)))


@pytest.mark.parametrize(
    "net", [_scores_are_an_output, _over_another_axis, _something_else_between, _transposed_weights]
)
def test_what_stays(net: Callable[..., Any]) -> None:
    module = graph(net, **QKV)
    assert_unchanged(module, RecognizeAttention(CPU))


@pytest.mark.parametrize("changes", [{"q": (2, 3, HEADS * SIZE)}, {"q": ("float16", (2, 9, HEADS * SIZE))}])
def test_few_queries_and_other_dtypes_stay(changes: dict[str, Any]) -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return merge(attended(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), split(v)))

    shapes = {**QKV, **changes}
    if "float16" in changes["q"]:
        shapes = {name: ("float16", shape) for name, shape in QKV.items()}
    assert_unchanged(graph(net, **shapes), RecognizeAttention(CPU))


def test_a_result_that_is_read_twice_is_moved_outside() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> Any:
        product = attended(R.matmul(split(q), split(k, axes=(0, 2, 3, 1))), split(v))
        return merge(product), R.add(product, number(1.0))

    module = graph(net, **QKV)
    becomes(module, ["attention", "permute_dims", "reshape", "add"], *ARRAYS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operands_of_a_16_bit_model_are_widened_where_they_are_made_and_its_result_stored_rounded(
    dtype: str,
) -> None:
    def wide(x: relax.Expr) -> relax.Expr:
        return R.astype(x, "float32")

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        scores = R.matmul(wide(split(q)), wide(split(k, axes=(0, 2, 3, 1))))
        weights = wide(R.astype(R.nn.softmax(scores, -1), dtype))
        return merge(R.astype(R.matmul(weights, wide(split(v))), dtype))

    made = recognized(graph(net, **{name: (dtype, shape) for name, shape in QKV.items()}))
    assert operators(made) == ["astype", "astype", "astype", "attention"]
    (plan,) = [plan for func in made.functions.values() if (plan := plan_of(func)) is not None]
    assert plan.operator.operands == ("float32",) * 3
    assert plan.operator.out == dtype


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["znver4", "sapphirerapids", "x86-64-v4"])
def test_operands_are_bfloat16_where_there_is_an_instruction_for_them(name: str, stored: str) -> None:
    """Those of a model in float32 with `narrow`, each rounded once; those of a model in bfloat16 without it."""
    shape, merged = (1, 32, 2 * 16), "float32" if stored == "float32" else "bfloat16"

    def heads(x: relax.Expr, axes: tuple[int, ...] = (0, 2, 1, 3)) -> relax.Expr:
        moved = R.permute_dims(R.reshape(x, (1, 32, 2, 16)), list(axes))
        return moved if stored == "float32" else R.astype(moved, "float32")

    def net(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        scores = R.multiply(R.matmul(heads(q), heads(k, (0, 2, 3, 1))), number(0.25))
        out = R.matmul(R.nn.softmax(scores, -1), heads(k))
        return R.astype(R.reshape(R.permute_dims(out, [0, 2, 1, 3]), shape), "bfloat16")

    module = graph(net, q=(merged, shape), k=(merged, shape))
    narrow = "bfloat16" if stored == "float32" else None
    cpu = cpu_of(to_tvm(resolve(name)))
    made = relax.transform.DeadCodeElimination()(RecognizeAttention(cpu, narrow=narrow)(module))
    (plan,) = [plan for func in made.functions.values() if (plan := plan_of(func)) is not None]
    by_pairs = name != "x86-64-v4"
    casts = {("float32", True): 2, ("bfloat16", False): 3}.get((stored, by_pairs), 0)
    assert operators(made) == [*["astype"] * casts, "attention"]
    assert plan.operator.operands == (("bfloat16" if by_pairs else "float32"),) * 3
    assert (plan.operator.out, planning.taken_at_once(plan)) == ("bfloat16", 2 if by_pairs else 1)
