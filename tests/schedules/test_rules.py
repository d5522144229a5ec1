"""The contract that every rule keeps: names, refusals, the same schedule every time."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from relaxc.schedules import cpu, cuda
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.harness import legalized

pytestmark = pytest.mark.sampled

R = relax.op

CASES = {
    "cpu.matmul": (lambda a, b, c: R.nn.relu(R.add(R.matmul(a, b), c)), [(37, 40), (40, 50), (50,)]),
    "cpu.conv2d": (lambda a, b: R.nn.relu(R.nn.conv2d(a, b, padding=1)), [(1, 6, 9, 14), (10, 6, 3, 3)]),
    "cpu.depthwise": (lambda a, b: R.nn.relu(R.nn.conv2d(a, b, padding=1, groups=6)), [(1, 6, 9, 20), (6, 1, 3, 3)]),
    "cpu.reduction": (lambda a: R.nn.softmax(a, -1), [(7, 100)]),
    "cpu.rows": (lambda a: R.nn.softmax(a, -1), [(5, 100)]),
    "cpu.injective": (lambda a, b: R.add(R.tanh(a), b), [(7, 100), (100,)]),
    "cpu.fallback": (lambda a: R.nn.softmax(a, 1), [(2, 7, 33)]),
}


def function(name: str):
    """The PrimFunc of a case, under a public name."""
    build, shapes = CASES[name]
    module = legalized(build, shapes, ["float32"] * len(shapes))
    found = [func for func in module.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert len(found) == 1
    return found[0].with_attr("global_symbol", "main")


def rule(name: str):
    return next(each for each in cpu.RULES if each.name == name)


@pytest.mark.parametrize("rules", [cpu.RULES, cuda.RULES], ids=["cpu", "cuda"])
def test_names_and_versions(rules):
    names = [each.name for each in rules]
    assert len(set(names)) == len(names)
    assert all(isinstance(each.version, int) and each.version >= 1 for each in rules)
    assert names[-1] in ("cpu.fallback", "cuda.loops")
    assert all(each.__class__.__doc__ for each in rules)


@pytest.mark.parametrize("name", CASES)
def test_the_same_schedule_every_time(name):
    func, target = function(name), to_tvm(resolve("x86-64-v4"))
    first, second = (rule(name).apply(func, target) for _ in range(2))
    assert tvm_ffi.structural_equal(first.func, second.func)
    again = rule(name).apply(func, target, first.parameters)
    assert tvm_ffi.structural_equal(first.func, again.func)


@pytest.mark.parametrize("name", CASES)
def test_unknown_parameters_are_refused(name):
    func, target = function(name), to_tvm(resolve("auto"))
    with pytest.raises(ValueError, match="parameters are"):
        rule(name).apply(func, target, {"warp": 9})


@pytest.mark.parametrize("asked", CASES)
@pytest.mark.parametrize("of", CASES)
def test_a_decline_has_a_reason(asked, of):
    try:
        result = rule(asked).apply(function(of), to_tvm(resolve("x86-64-v4")))
    except tvm.s_tir.ScheduleError:
        return
    if isinstance(result, Declined):
        assert 8 < len(result.reason) < 120 and asked != of
        assert isinstance(rule(asked).points(function(of), to_tvm(resolve("x86-64-v4"))), Declined)


@pytest.mark.parametrize("name", CASES)
def test_golden(name, golden):
    made = rule(name).apply(function(name), to_tvm(resolve("x86-64-v3")))
    golden(f"{name}.txt", made.func.script(show_meta=False) + "\n")


@pytest.mark.parametrize("name", ["cpu.matmul", "cpu.reduction", "cpu.injective"])
def test_cuda_rules_bind_threads(name):
    func, target = function(name), to_tvm(resolve("cuda-sm90"))
    results = [each.apply(func, target) for each in cuda.RULES]
    taken = [result for result in results if isinstance(result, Schedule)]
    assert taken and "threadIdx.x" in taken[0].func.script()
    assert all(result.reason for result in results if isinstance(result, Declined))
