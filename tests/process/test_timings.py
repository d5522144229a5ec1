"""Timings: a step counts for itself alone, and of another process's word what has the form of steps."""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from relaxc.service.process.timings import Timings, told


def test_a_step_inside_of_another_counts_for_itself_alone(monkeypatch) -> None:
    now = iter([0.0, 1.0, 3.0, 10.0])
    monkeypatch.setattr("relaxc.service.process.timings.time.perf_counter", lambda: next(now))
    timings = Timings()
    with timings("outer"), timings("inner"):
        pass
    assert timings.seconds == {"inner": 2.0, "outer": 8.0}


def test_passes_of_tvm_are_steps_by_their_names() -> None:
    @T.prim_func(s_tir=True)
    def one(a: T.Buffer((1,), "float32")):
        for i in range(1):
            a[i] = T.float32(1)

    timings = Timings()
    with tvm.transform.PassContext(instruments=[timings.passes("tir")]):
        tvm.ir.transform.Sequential([tvm.tirx.transform.StmtSimplify()])(tvm.IRModule({"one": one}))
    assert "tir.StmtSimplify" in timings.seconds
    assert all(name.startswith("tir.") and took >= 0 for name, took in timings.seconds.items())


def test_instruments_are_of_one_class() -> None:
    """Python keeps of each class what it found out about it and every other: 2.6 million references after 2,300."""
    assert type(Timings().passes("tir")) is type(Timings().passes("graph"))


def test_of_a_strangers_word_only_steps_and_times_are_kept() -> None:
    good = {"link": 0.5, "tir.UnrollLoop": 1}
    bad = {"call 0900": 1, "link2 ": 1, "llvm": "1", "emit": -1, "load": 1e9, "tir.x" * 40: 1, "save": True}
    assert told({**good, **bad}, most_s=10) == good
    assert told([1], 10) == {}
    assert len(told({f"tir.p{i}": 0.1 for i in range(10_000)}, 10)) == 512
