"""The thread pool: as many threads as asked, and the caller pinned to no core."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import tvm

from service import config, machine
from service.runtime import threads
from service.runtime.threads import default_threads, use_threads


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


def test_neither_the_caller_nor_the_environment_is_changed() -> None:
    code = """
import os
from service.runtime.threads import use_threads
before = os.sched_getaffinity(0), os.environ.get("TVM_NUM_THREADS")
use_threads(1)
assert (os.sched_getaffinity(0), os.environ.get("TVM_NUM_THREADS")) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TVM_NUM_THREADS": "7"})
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_setting_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_threads() == machine.cpu().cores
    monkeypatch.setattr(threads, "settings", lambda: config.Settings(threads=3))
    assert default_threads() == 3
