"""The thread pool: as many threads as asked, and the caller pinned to no core."""

from __future__ import annotations

import os
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
from relaxc.service.runtime.threads import call, checked_threads, default_threads, use_threads
from tests.waiting import PATIENCE_S

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None"  # which tvm would import: seconds for nothing


def count() -> int:
    """Threads that a kernel of this thread would use."""
    return int(tvm.get_global_func("runtime.NumThreads")())


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


def test_the_number_of_threads_follows_each_call() -> None:
    cores = machine.cpu().cores

    def work() -> None:
        for wanted in (cores + 1, 1, cores, 1):
            use_threads(wanted)
            assert count() == wanted

    in_new_thread(work)


def test_a_pool_has_a_worker_for_each_core() -> None:
    def work() -> None:
        use_threads(1)
        use_threads(machine.cpu().cores)
        assert count() == machine.cpu().cores

    in_new_thread(work)


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


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"TVM_NUM_THREADS": "1"}, {"TVM_NUM_THREADS": "7"}])
def test_a_launch_runs_on_as_many_threads_as_asked(tmp_path: Path, environment: dict[str, str]) -> None:
    library = tmp_path / "who.so"
    tvm.compile(who_runs, "llvm").export_library(str(library))
    code = f"""{WITHOUT_TORCH}
import tvm
from relaxc.service.runtime.threads import use_threads
function = tvm.runtime.load_module({str(library)!r})["who_runs"]
for wanted in (2, 1):
    use_threads(wanted)
    out = tvm.runtime.tensor(__import__("numpy").zeros(2, "int32"))
    function(out)
    assert len(set(out.numpy())) == wanted, (wanted, out)
"""
    clean = {name: value for name, value in os.environ.items() if name != "TVM_NUM_THREADS"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**clean, **environment})


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


def native_threads() -> int:
    """The threads of this process, TVM's too."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_threads_that_come_and_go_leave_no_pools_behind() -> None:
    def twice() -> None:
        assert [call(wanted, count) for wanted in (2, 1)] == [2, 1]

    most = 64 // machine.cpu().cores + 2
    for _ in range(most):  # some of them with pools of their own
        in_new_thread(twice)
    before = native_threads()
    for _ in range(3 * most):
        in_new_thread(twice)
    assert native_threads() <= before + machine.cpu().cores  # one more shared thread at most


def test_what_a_call_raises_comes_back_from_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ValueError("as it is")

    def work() -> None:
        with pytest.raises(ValueError, match="as it is"):
            call(2, fails)

    in_new_thread(work)
    monkeypatch.setattr(threads, "_takes_pool", lambda: False)
    in_new_thread(work)


FORKED = f"""{WITHOUT_TORCH}
import os, signal, threading
import numpy, tvm
from relaxc.service.runtime.threads import call
function = tvm.runtime.load_module(LIBRARY)["who_runs"]

def ran():
    out = tvm.runtime.tensor(numpy.zeros(2, "int32"))
    call(2, function, out)
    assert len(set(out.numpy())) == 2, out

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


def test_a_forked_process_has_workers_of_its_own(tmp_path: Path) -> None:
    library = tmp_path / "who.so"
    tvm.compile(who_runs, "llvm").export_library(str(library))
    code = FORKED.replace("LIBRARY", repr(str(library))).replace("PATIENCE", str(int(PATIENCE_S)))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
