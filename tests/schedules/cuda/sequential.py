"""Scheduled kernels without a GPU: a thread after the other, which is what the loops of a schedule mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.common.races import race
from relaxc.schedules.template import Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests import quickly
from tests.schedules.numpy_tir import random_inputs

__all__ = ["assert_means_the_same", "scheduled_by"]


def scheduled_by(name: str, func: Any) -> Any:
    """The PrimFunc as the rule `name` schedules it; it must take it."""
    rule = next(rule for rule in RULES if rule.name == name)
    result = rule.apply(func, to_tvm(resolve("cuda-sm90")))
    assert isinstance(result, Schedule), result
    return result.func


def assert_means_the_same(scheduled: Any, func: Any, tolerance: float = 1e-5) -> None:
    """Compare what both write into the last parameter, its error relative to its largest value."""
    assert race(scheduled) == ""
    funcs = {"scheduled": tvm_ffi.structural_map(scheduled, (tirx.For, _serial)), "plain": func}
    module = tvm.IRModule({name: each.with_attr("global_symbol", name) for name, each in funcs.items()})
    built = tvm.compile(module, target=quickly.target())
    arrays = random_inputs(func)
    results = []
    for name in funcs:
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        built[name](*tensors)
        results.append(tensors[-1].numpy().astype(np.float64))
    got, want = results
    assert float(np.abs(got - want).max()) <= tolerance * float(np.abs(want).max())


def _serial(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.THREAD_BINDING:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
