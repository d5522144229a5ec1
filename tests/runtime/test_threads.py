"""Kernels on our pool: the same numbers by any number of threads, and the caller pinned to no core."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from relaxc.service import config, machine
from relaxc.service.errors import InvalidOption
from relaxc.service.runtime import threads
from relaxc.service.runtime.pool import pool as load_pool
from relaxc.service.runtime.threads import call, checked_threads, default_threads
from tests.waiting import PATIENCE_S

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None"  # which tvm would import: seconds for nothing


def in_new_thread(work: object) -> None:
    """Runs a function in a thread that has no pool yet."""
    failures = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001  # raised again below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


@pytest.mark.slow
def test_the_caller_is_pinned_to_no_core() -> None:
    code = f"""{WITHOUT_TORCH}
import os
from relaxc.service.runtime.threads import use_threads
before = os.sched_getaffinity(0)
use_threads(1)
assert os.sched_getaffinity(0) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@T.prim_func(s_tir=True)
def who_runs(out: T.Buffer((2,), "int32")) -> None:
    """Each parallel iteration writes the id of the thread that runs it."""
    for i in T.parallel(2):
        with T.sblock("who"):
            v = T.axis.spatial(2, i)
            out[v] = T.call_extern("int32", "gettid")


@T.prim_func(s_tir=True)
def rows(x: T.Buffer((61, 300), "float32"), out: T.Buffer((61,), "float32")) -> None:
    """Sums of rows: rounded otherwise where a row is summed in another order."""
    for i in T.parallel(61):
        for k in T.serial(300):
            with T.sblock("sum"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    out[v] = T.float32(0)
                out[v] = out[v] + x[v, r] * x[v, r]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "kernels.so"
    tvm.compile(tvm.IRModule({"who_runs": who_runs, "rows": rows}), "llvm").export_library(str(path))
    return path


def test_kernels_run_on_our_pool(library: Path) -> None:
    """TVM's is not made: none of its threads pins the caller, or is missing after a fork."""
    load_pool()
    kernel, out = tvm.runtime.load_module(str(library))["who_runs"], tvm.runtime.tensor(np.zeros(2, "int32"))

    def work() -> None:
        for wanted in (1, 2):
            before = native_threads()
            call(wanted, kernel, out)
            assert len(set(out.numpy())) <= wanted
            assert len(native_threads() - before) <= max(wanted, machine.cpu().cores)

    in_new_thread(work)


def test_numbers_are_the_same_by_any_number_of_threads(library: Path) -> None:
    load_pool()
    kernel = tvm.runtime.load_module(str(library))["rows"]
    x = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((61, 300)).astype("float32"))
    found = []

    def work() -> None:
        for wanted in (1, 2, 4, 7) * 5:
            out = tvm.runtime.tensor(np.full(61, np.nan, "float32"))
            call(wanted, kernel, x, out)
            found.append(out.numpy().tobytes())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    assert len(set(found)) == 1


def test_the_setting_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_threads() == machine.cpu().cores
    monkeypatch.setattr(threads, "settings", lambda: config.Settings(threads=3))
    assert default_threads() == 3


@pytest.mark.parametrize("count", [0, -1, 1025, 10**30, True, 2.0, "2"])
def test_what_is_no_number_of_threads_is_refused(count: object) -> None:
    with pytest.raises(InvalidOption, match="threads must be a whole number from 1 to 1024"):
        checked_threads(count)


def test_numbers_of_numpy_are_numbers() -> None:
    assert type(checked_threads(np.int64(2))) is int


def native_threads() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}


FORKED = f"""{WITHOUT_TORCH}
import os, signal, threading
import numpy, tvm
from relaxc.service.runtime.pool import pool
from relaxc.service.runtime.threads import call
pool()
function = tvm.runtime.load_module(LIBRARY)["who_runs"]

def ran():
    out = tvm.runtime.tensor(numpy.zeros(2, "int32"))
    call(2, function, out)
    assert 1 <= len(set(out.numpy())) <= 2, out

ran()
child = os.fork()
if not child:
    signal.alarm(PATIENCE)  # it would wait for ever for workers that it does not have
    ran()
    thread = threading.Thread(target=ran)
    thread.start()
    thread.join()
    ran()
    os._exit(0)
assert not os.waitpid(child, 0)[1]
ran()
"""


def test_a_forked_process_has_workers_of_its_own(library: Path) -> None:
    code = FORKED.replace("LIBRARY", repr(str(library))).replace("PATIENCE", str(int(PATIENCE_S)))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_without_our_pool_kernels_run_on_tvms(library: Path) -> None:
    """In a process of its own: a library keeps the pool that it was loaded with."""
    code = f"""{WITHOUT_TORCH}
import numpy, tvm
from relaxc.service.runtime import threads
threads.pool = lambda: None
function = tvm.runtime.load_module({str(library)!r})["who_runs"]
for wanted in (2, 1):
    out = tvm.runtime.tensor(numpy.zeros(2, "int32"))
    threads.call(wanted, function, out)
    assert len(set(out.numpy())) == wanted, (wanted, out)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
