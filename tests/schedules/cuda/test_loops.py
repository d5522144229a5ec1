"""cuda.loops: scatters and other loops that no other rule takes, each statement a kernel, the same bits each time."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx, topi
from tvm.script import tirx as T

from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.common.launches import launches, parts
from relaxc.schedules.cuda.loops import Loops
from relaxc.schedules.ir import tir
from relaxc.schedules.template import Declined
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.sequential import ran, scheduled_by

RNG = np.random.default_rng(5)
DATA = RNG.standard_normal((9, 7, 5)).astype(np.float32)


def scheduled(func):
    made = scheduled_by("cuda.loops", func)
    assert all(map(launches, parts(made)))
    return made


def threads(part):
    """How many each kernel has, by tag."""
    bound = [loop for loop in tir.collect(part, tirx.For) if loop.kind == tirx.ForKind.THREAD_BINDING]
    return {loop.thread_binding.thread_tag: int(loop.extent) for loop in bound}


def both(func, arrays):
    """What the kernels write, which is the same bits in either order of their threads."""
    made = scheduled(func)
    first, second = ran(made, arrays), ran(made, arrays, late=3)
    np.testing.assert_array_equal(first, second)
    return first


def elements(reduction, on_gpu):
    data, where, updates = (
        te.placeholder(shape, dtype, name)
        for shape, dtype, name in (
            (DATA.shape, "float32", "data"),
            ((9, 30, 5), "int64", "where"),
            ((9, 30, 5), "float32", "updates"),
        )
    )
    if on_gpu:
        with to_tvm(resolve("cuda-sm90")):
            result = topi.gpu.scatter_elements(data, where, updates, 1, reduction)
    else:
        result = topi.scatter_elements(data, where, updates, 1, reduction)
    return te.create_prim_func([data, where, updates, result])


UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum}


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("reduction", ["update", *UFUNCS])
def test_elements_with_duplicates_and_negative_places(reduction, on_gpu):
    where = RNG.integers(-7, 7, (9, 30, 5))
    updates = RNG.standard_normal((9, 30, 5)).astype(np.float32)
    want = DATA.copy()
    for i, k, j in np.ndindex(*where.shape):
        place, value = (i, where[i, k, j], j), updates[i, k, j]
        want[place] = UFUNCS[reduction](want[place], value) if reduction in UFUNCS else value
    func = elements(reduction, on_gpu)
    np.testing.assert_array_equal(both(func, [DATA, where, updates, np.zeros_like(DATA)]), want)


def test_a_loop_around_independent_ones_is_one_block_with_barriers():
    """`scatter_nd` as it is for CPUs: rows one after the other, of which each column is a thread's."""
    data, where, updates = (
        te.placeholder(shape, dtype)
        for shape, dtype in (((9, 35), "float32"), ((1, 40), "int64"), ((40, 35), "float32"))
    )
    func = te.create_prim_func([data, where, updates, topi.scatter_nd(data, where, updates, "add")])
    made = scheduled(func)
    copy, scatter = parts(made)
    assert threads(copy) == {"blockIdx.x": 2, "threadIdx.x": 256}
    assert threads(scatter) == {"blockIdx.x": 1, "threadIdx.x": 1024}
    rows, places = DATA.reshape(9, 35), RNG.integers(0, 9, (1, 40))
    added = RNG.standard_normal((40, 35)).astype(np.float32)
    want = rows.copy()
    for index, place in enumerate(places[0]):
        want[place] += added[index]
    np.testing.assert_array_equal(both(func, [rows, places, added, np.zeros_like(rows)]), want)


def test_a_parallel_loop_that_stores_where_a_table_says_is_one_threads():
    """TVM's `index_put` is called parallel, and equal places would race."""
    data, where, values = te.placeholder((50,)), te.placeholder((300,), "int64"), te.placeholder((300,))
    func = te.create_prim_func([data, where, values, topi.index_put(data, [where], values, accumulate=True)])
    copy, put = parts(scheduled(func))
    assert threads(copy)["threadIdx.x"] == 256 and threads(put) == {"blockIdx.x": 1, "threadIdx.x": 1}
    given, places = RNG.standard_normal(50).astype(np.float32), RNG.integers(-50, 50, 300)
    added, want = RNG.standard_normal(300).astype(np.float32), given.copy()
    np.add.at(want, places, added)
    np.testing.assert_array_equal(both(func, [given, places, added, np.zeros_like(given)]), want)


def test_blocks_take_a_thread_an_element_and_sum_in_it():
    a = te.placeholder((13, 70, 6), name="a")
    k = te.reduce_axis((0, 70), "k")
    total = te.compute((13, 6), lambda i, j: te.sum(a[i, k, j], [k]), name="total")
    func = te.create_prim_func([a, te.compute((13, 6), lambda i, j: total[i, j] * 2, name="twice")])
    given = RNG.standard_normal((13, 70, 6)).astype(np.float32)
    result = both(func, [given, np.zeros((13, 6), np.float32)])
    np.testing.assert_allclose(result, given.sum(1) * 2, rtol=1e-4, atol=1e-4)
    assert [threads(part)["threadIdx.x"] for part in parts(scheduled(func))] == [256, 256]


def test_nothing_is_computed_of_no_elements():
    a = te.placeholder((4, 2), name="a")
    func = te.create_prim_func([a, te.compute((4, 0), lambda i, j: a[i, j], name="none")])
    assert [threads(part)["threadIdx.x"] for part in parts(scheduled(func))] == [256]


@T.prim_func(private=True, s_tir=True)
def _running(a: T.Buffer((40,), "float32"), out: T.Buffer((40,), "float32")):
    with T.sblock("running"):
        T.reads()
        T.writes()
        out[0] = a[0]
        for i in range(39):
            out[i + 1] = out[i] + a[i + 1]


def test_all_else_is_one_threads():
    given = RNG.standard_normal(40).astype(np.float32)
    assert [threads(part)["threadIdx.x"] for part in parts(scheduled(_running))] == [1, 1]
    np.testing.assert_allclose(both(_running, [given, np.zeros_like(given)]), given.cumsum(), rtol=1e-5, atol=1e-5)


def test_what_calls_the_host_is_declined():
    a = te.placeholder((8,), name="a")
    called = te.extern((8,), [a], lambda i, o: tirx.call_packed("some.function", i[0], o[0]), name="called")
    result = Loops().apply(te.create_prim_func([a, called]), to_tvm(resolve("cuda-sm90")))
    assert isinstance(result, Declined) and "it calls the host" in result.reason


@T.prim_func(private=True, s_tir=True)
def _shared_value(a: T.Buffer((40,), "float32"), out: T.Buffer((40,), "float32")):
    with T.sblock("shared"):
        T.reads()
        T.writes()
        first: T.let[T.float32] = a[0]
        for i in range(40):
            out[i] = first


def test_what_statements_share_is_declined():
    result = Loops().apply(_shared_value, to_tvm(resolve("cuda-sm90")))
    assert isinstance(result, Declined) and "share a value" in result.reason


def test_it_is_asked_last():
    assert RULES[-1].name == "cuda.loops" and RULES[-2].name == "cuda.fallback"
