"""Attention of 16-bit operands becomes one call where the template takes it, and computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relaxc.schedules.cuda.attention.form import match
from relaxc.schedules.template import Declined
from relaxc.service.passes.recognize.recognize_low_attention import RecognizeLowAttention
from relaxc.service.passes.recognize.recognize_safe_softmax import RecognizeSafeSoftmax
from relaxc.service.passes.simplify.merge_equal_calls import MergeEqualCalls
from relaxc.service.passes.simplify.merge_parallel_matmuls import MergeParallelMatmuls
from relaxc.service.passes.simplify.simplify_algebra import SimplifyAlgebra
from tests.passes.graphs import TARGET, assert_unchanged, compute, graph, operators, random, weights
from tests.passes.recognize.test_recognize_attention import R, merge, number
from tests.passes.recognize.test_recognize_attention import split as split_in

LOW = "float16"
HEADS, SIZE = 2, 8
QKV = dict.fromkeys("qkv", (LOW, (2, 9, HEADS * SIZE)))
CAUSAL = relax.const(np.tril(np.ones((1, 1, 9, 9), bool)))
INF = number(float("-inf"))


def recognized(module: tvm.IRModule) -> tvm.IRModule:
    """The module after products are merged, and safe softmaxes and attention are recognized, as in the pipeline."""
    merged = [MergeParallelMatmuls(through_casts=True), SimplifyAlgebra()]
    passes = [*merged, RecognizeSafeSoftmax(), RecognizeLowAttention(match)]
    with TARGET:
        for each in (*passes, MergeEqualCalls(), relax.transform.DeadCodeElimination()):
            module = each(module)
    return module


def becomes(module: tvm.IRModule, expected: list[str], *arrays: Any) -> Any:
    """The PrimFunc of the recognized module, which calls these and computes what the module did, rounding aside."""
    changed = recognized(module)
    assert operators(changed) == expected
    for got, want in zip(compute(changed, *arrays), compute(module, *arrays), strict=True):
        np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=4e-3, atol=4e-3)
    return next((f for var, f in changed.functions_items() if str(var.name_hint) == "attention"), None)


def split(x: relax.Expr, heads: int = HEADS, *, axes: tuple[int, ...] = (0, 2, 1, 3)) -> relax.Expr:
    return split_in(x, heads, axes=axes)


def low(x: relax.Expr) -> relax.Expr:
    return R.astype(x, LOW)


def scores_of(q: relax.Expr, k: relax.Expr, heads: int = HEADS) -> relax.Expr:
    product = R.matmul(split(q, heads), split(k, heads, axes=(0, 2, 3, 1)), out_dtype="float32")
    return R.multiply(product, number(0.35))


def attended(scores: relax.Expr, v: relax.Expr) -> relax.Expr:
    """As `precision` leaves it: the weights and the result rounded."""
    return merge(low(R.matmul(low(R.nn.softmax(scores, -1)), v, out_dtype="float32")))


def arrays(count: int = 3) -> list[Any]:
    return [random(2, 9, HEADS * SIZE, seed=i, dtype=LOW) for i in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_merged_product_is_read_in_place(causal: bool) -> None:
    """And a mask that hides nothing goes, a triangle becomes a comparison."""

    def net(x: relax.Expr) -> relax.Expr:
        parts = [R.matmul(x, weights(16, 16, seed=i, dtype=LOW), out_dtype="float32") for i in range(3)]
        q, k, v = (low(R.add(part, weights(16, seed=9 + i))) for i, part in enumerate(parts))
        mask = CAUSAL if causal else relax.const(np.ones((1, 1, 9, 9), bool))
        return attended(R.where(mask, scores_of(q, k), INF), split(v))

    func = becomes(graph(net, x=(LOW, (2, 9, 16))), ["matmul", "add", "astype", "attention"], arrays(1)[0])
    found = match(func)
    assert not isinstance(found, Declined)
    assert (found.heads, found.q.head_at, found.k.head_at, found.v.head_at) == (2, 0, 2, 4)
    assert (found.logit.causal, found.logit.text) == (0 if causal else None, "")


@pytest.mark.slow
def test_slices_of_one_product_that_are_rounded_apart() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        whole = R.matmul(x, weights(16, 48, dtype=LOW), out_dtype="float32")
        q, k, v = (low(R.strided_slice(whole, [2], [16 * i], [16 * i + 16], [1])) for i in range(3))
        return attended(R.where(CAUSAL, scores_of(q, k), INF), split(v))

    becomes(graph(net, x=(LOW, (2, 9, 16))), ["matmul", "astype", "attention"], arrays(1)[0])


def test_a_slice_that_is_read_in_fp32_too_stays() -> None:
    def net(x: relax.Expr) -> Any:
        whole = R.matmul(x, weights(16, 48, dtype=LOW), out_dtype="float32")
        parts = [R.strided_slice(whole, [2], [16 * i], [16 * i + 16], [1]) for i in range(3)]
        q, k, v = (low(part) for part in parts)
        return attended(scores_of(q, k), split(v)), R.add(parts[0], number(1.0))

    module = graph(net, x=(LOW, (2, 9, 16)))
    assert operators(recognized(module)).count("astype") == 3


def test_masks_of_two_parts() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
        scores = scores_of(q, k)
        return attended(R.where(R.logical_and(CAUSAL, mask), scores, INF), split(v))

    mask = np.ones((2, 1, 1, 9), bool)
    mask[1, ..., -3:] = False
    func = becomes(graph(net, **QKV, mask=("bool", mask.shape)), ["attention"], *arrays(), mask)
    found = match(func)
    assert not isinstance(found, Declined)
    assert found.logit.causal == 0 and len(found.logit.operands) == 1


@pytest.mark.parametrize(("ends", "operands"), [((9, 9), 0), ((9, 5), 1)])
def test_a_causal_mask_that_was_compared_for_a_whole_batch(ends: tuple[int, int], operands: int) -> None:
    """As transformers writes it, larger than what it came from; what differs within the batch stays a mask."""
    places = np.arange(9, dtype="int64")
    sequence = np.stack([places >= end for end in ends]).astype("int64").reshape(2, 1, 1, 9)

    def constant(array: Any) -> relax.Expr:
        return relax.const(np.broadcast_to(array, (2, *array.shape[1:])).copy(), "int64")

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        same = R.equal(constant(sequence.swapaxes(2, 3)), constant(sequence))
        past = R.less_equal(constant(places.reshape(1, 1, 1, 9)), constant(places.reshape(1, 1, 9, 1)))
        mask = R.logical_and(R.logical_and(relax.const(True), same), past)
        return attended(R.where(mask, scores_of(q, k), INF), split(v))

    names = ["equal", "attention"] if operands else ["attention"]
    found = match(becomes(graph(net, **QKV), names, *arrays()))
    assert not isinstance(found, Declined)
    assert found.logit.causal == 0 and len(found.logit.operands) == operands


@pytest.mark.slow
def test_an_additive_causal_mask_of_the_lowest_number() -> None:
    low_triangle = np.where(np.tril(np.ones((9, 9), bool)), 0, np.finfo("float32").min).astype("float32")

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return attended(R.add(scores_of(q, k), relax.const(low_triangle[None, None])), split(v))

    found = match(becomes(graph(net, **QKV), ["attention"], *arrays()))
    assert not isinstance(found, Declined)
    assert found.logit.causal == 0


@pytest.mark.slow
def test_shared_heads() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        def shared(x: relax.Expr) -> relax.Expr:
            wide = R.broadcast_to(R.reshape(split(x, 1), [2, 1, 1, 9, SIZE]), [2, 1, HEADS, 9, SIZE])
            return R.reshape(wide, [2, HEADS, 9, SIZE])

        product = R.matmul(split(q), R.permute_dims(shared(k), [0, 1, 3, 2]), out_dtype="float32")
        return attended(R.multiply(product, number(0.35)), shared(v))

    shapes = {"q": (LOW, (2, 9, HEADS * SIZE)), "k": (LOW, (2, 9, SIZE)), "v": (LOW, (2, 9, SIZE))}
    given = [random(*shape, seed=i, dtype=LOW) for i, (_, shape) in enumerate(shapes.values())]
    found = match(becomes(graph(net, **shapes), ["attention"], *given))
    assert not isinstance(found, Declined) and found.group == HEADS


@pytest.mark.parametrize("columns", [HEADS * 12, HEADS * 264])
def test_heads_that_the_template_declines_stay(columns: int) -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return attended(scores_of(q, k), split(v))

    assert_unchanged(graph(net, **dict.fromkeys("qkv", (LOW, (2, 9, columns)))), RecognizeLowAttention(match))


def test_a_symbolic_batch_is_recognized() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return attended(scores_of(q, k), split(v))

    module = RecognizeLowAttention(match)(graph(net, **dict.fromkeys("qkv", (LOW, ("b", 9, 16)))))
    (func,) = (each for var, each in module.functions_items() if str(var.name_hint) == "attention")
    found = match(func)
    assert not isinstance(found, Declined) and len(found.symbols) == 1 and (found.queries, found.keys) == (9, 9)


def test_one_query_reads_a_cache() -> None:
    """An axis of one element is written as 0, not as the axis."""

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, new: relax.Expr) -> relax.Expr:
        query = R.reshape(q, [2, HEADS, 1, SIZE])
        keys, values = (R.concat([each, new], axis=2) for each in (k, v))
        scores = R.multiply(R.matmul(query, R.permute_dims(keys, [0, 1, 3, 2]), out_dtype="float32"), number(0.35))
        mask = relax.const(np.ones((1, 1, 1, 9), bool))
        weights = R.nn.softmax(R.where(mask, scores, INF), -1)
        return R.reshape(low(R.matmul(low(weights), values, out_dtype="float32")), [2, 1, HEADS * SIZE])

    cache = (LOW, (2, HEADS, 8, SIZE))
    module = graph(net, q=(LOW, (2, 1, HEADS * SIZE)), k=cache, v=cache, new=(LOW, (2, HEADS, 1, SIZE)))
    func = next(f for var, f in recognized(module).functions_items() if str(var.name_hint) == "attention")
    found = match(func)
    assert not isinstance(found, Declined)
    assert (found.queries, found.keys, found.heads, found.logit.text) == (1, 9, 4, "")
