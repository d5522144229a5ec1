"""Attention over a cache that `take` gathers by pages reads the pages through the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.schedules.cuda.attention.form import match
from relaxc.schedules.template import Declined
from relaxc.service.passes.recognize.recognize_low_attention import RecognizeLowAttention
from tests.passes.graphs import TARGET, compute, graph, operators, random

BATCH, HEADS, SHARED, SIZE, PAGES, PAGE, ENTRIES = 2, 4, 2, 8, 5, 16, 3
KEYS = PAGE * ENTRIES
QUERY = ("float16", (BATCH, HEADS, 1, SIZE))
BY_ROWS, BY_HEADS = ("float16", (PAGES, PAGE, SHARED, SIZE)), ("float16", (PAGES, SHARED, PAGE, SIZE))


def gathered(cache: relax.Expr, table: relax.Expr, *, by_heads: bool = False) -> relax.Expr:
    """`[B, heads, keys, size]`, heads repeated for those that share them: `cache[table]` as an exporter writes it."""
    emit = relax.BlockBuilder.current().emit
    pages = emit(op.take(cache, table, axis=0, mode="clip"))
    if table.ty.ndim == 1:
        pages = emit(op.reshape(pages, [BATCH, ENTRIES, *list(cache.ty.shape)[1:]]))
    rows = emit(op.permute_dims(pages, [0, 1, 3, 2, 4])) if by_heads else pages
    heads = emit(op.permute_dims(emit(op.reshape(rows, [BATCH, KEYS, SHARED, SIZE])), [0, 2, 1, 3]))
    return emit(op.repeat(heads, HEADS // SHARED, 1))


def attended(q: relax.Expr, k: relax.Expr, v: relax.Expr, seen: relax.Expr | None = None) -> relax.Expr:
    emit = relax.BlockBuilder.current().emit
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])), "float32"))
    scores = emit(op.multiply(scores, relax.const(0.35, "float32")))
    scores = scores if seen is None else emit(op.where(seen, scores, relax.const(float("-inf"), "float32")))
    weights = emit(op.astype(emit(op.nn.softmax(scores, -1)), "float16"))
    return op.astype(emit(op.matmul(weights, v, "float32")), "float16")


def recognized(module: tvm.IRModule, *, paged: bool = True) -> tvm.IRModule:
    with TARGET:
        return relax.transform.DeadCodeElimination()(RecognizeLowAttention(match, paged=paged)(module))


def arrays(cache: Any, table: Any) -> list[Any]:
    shapes = (QUERY, cache, cache)
    return [*(random(*shape, seed=i, dtype=dtype) for i, (dtype, shape) in enumerate(shapes)), table]


TABLE = np.array([[4, 0, 2], [1, 1, 3]])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("by_heads", [False, True])
def test_pages_are_read_in_place(dtype: str, by_heads: bool) -> None:
    cache = BY_HEADS if by_heads else BY_ROWS

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, table: relax.Expr) -> relax.Expr:
        return attended(q, *(gathered(each, table, by_heads=by_heads) for each in (k, v)))

    module = graph(net, q=QUERY, k=cache, v=cache, table=(dtype, TABLE.shape))
    changed, given = recognized(module), arrays(cache, TABLE.astype(dtype))
    assert operators(changed) == ["attention"]
    np.testing.assert_allclose(compute(changed, *given)[0], compute(module, *given)[0], rtol=4e-3, atol=4e-3)
    (func,) = (f for var, f in changed.functions_items() if str(var.name_hint) == "attention")
    found = match(func)
    assert not isinstance(found, Declined) and found.group == HEADS // SHARED and found.is_paged
    for at in (found.k, found.v):
        assert at.pages is not None
        assert (at.pages.rows, at.pages.count, at.pages.batches, at.pages.entries) == (PAGE, PAGES, ENTRIES, ENTRIES)
        assert at.pages.stride == PAGE * SHARED * SIZE


def test_a_flat_table_and_lengths_of_its_sequences() -> None:
    """`index_select` takes a vector; a mask hides what lies behind the end of each sequence."""

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, table: relax.Expr, length: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        flat = emit(op.reshape(table, [BATCH * ENTRIES]))
        seen = emit(op.less(relax.const(np.arange(KEYS).reshape(1, 1, 1, KEYS)), length))
        return attended(q, gathered(k, flat), gathered(v, flat), seen)

    shapes = {
        "q": QUERY,
        "k": BY_ROWS,
        "v": BY_ROWS,
        "table": ("int64", TABLE.shape),
        "length": ("int64", (BATCH, 1, 1, 1)),
    }
    module = graph(net, **shapes)
    changed = recognized(module)
    assert "take" not in operators(changed) and "attention" in operators(changed)
    given = [*arrays(BY_ROWS, TABLE), np.array([17, 48]).reshape(BATCH, 1, 1, 1)]
    np.testing.assert_allclose(compute(changed, *given)[0], compute(module, *given)[0], rtol=4e-3, atol=4e-3)


def test_a_page_that_is_not_in_the_cache_is_the_nearest() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, table: relax.Expr) -> relax.Expr:
        return attended(q, gathered(k, table), gathered(v, table))

    module = recognized(graph(net, q=QUERY, k=BY_ROWS, v=BY_ROWS, table=("int64", TABLE.shape)))
    outside, inside = np.array([[-7, 99, 2], [1, 1 << 40, 3]]), np.array([[0, 4, 2], [1, 4, 3]])
    got, want = (compute(module, *arrays(BY_ROWS, table))[0] for table in (outside, inside))
    np.testing.assert_array_equal(got, want)


def test_without_pages_the_cache_is_gathered_first() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, table: relax.Expr) -> relax.Expr:
        return attended(q, gathered(k, table), gathered(v, table))

    module = graph(net, q=QUERY, k=BY_ROWS, v=BY_ROWS, table=("int64", TABLE.shape))
    assert "take" in operators(recognized(module, paged=False))
    assert "attention" in operators(recognized(module, paged=False))


@pytest.mark.parametrize("paged", [False, True])
def test_keys_that_were_scaled_are_read_as_they_lie(paged: bool) -> None:
    """As ONNX's exporters spell it: queries and keys are each multiplied by the root of the scale."""

    def scaled(x: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        wide = emit(op.multiply(emit(op.astype(x, "float32")), relax.const(0.6, "float32")))
        return emit(op.astype(wide, "float16"))

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr, table: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        keys, values = gathered(k, table), gathered(v, table)
        turned = scaled(emit(op.permute_dims(keys, [0, 1, 3, 2])))
        weights = emit(op.astype(emit(op.nn.softmax(emit(op.matmul(scaled(q), turned, "float32")), -1)), "float16"))
        return op.astype(emit(op.matmul(weights, values, "float32")), "float16")

    module = graph(net, q=QUERY, k=BY_ROWS, v=BY_ROWS, table=("int64", TABLE.shape))
    changed, given = recognized(module, paged=paged), arrays(BY_ROWS, TABLE)
    assert operators(changed)[-1] == "attention" and ("take" in operators(changed)) != paged
    assert "multiply" not in operators(changed)
    np.testing.assert_allclose(compute(changed, *given)[0], compute(module, *given)[0], rtol=6e-3, atol=6e-3)
