"""The pool of threads: each part of a loop once, whoever comes to help, and nobody waited for who has not begun."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tvm_ffi.libinfo

from relaxc.service.config import settings
from relaxc.service.runtime import pool_build
from relaxc.service.runtime.pool import pool
from tests.waiting import PATIENCE_S, until

TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LIBRARY = pool()
FFI = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())


KEPT: list[object] = []
"""Every loop, so that none has the address of another, whose cost the pool remembers."""


def launch(part: Callable[[int], int | None], parts: int) -> int:
    assert LIBRARY is not None
    KEPT.append(task := TASK(lambda number, _env, _closure: part(number) or 0))
    return int(LIBRARY.relaxc_pool_launch(task, None, parts))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    assert LIBRARY is not None
    before = LIBRARY.relaxc_pool_use(0)
    yield
    LIBRARY.relaxc_pool_use(before)


def use(count: int) -> None:
    assert LIBRARY is not None
    LIBRARY.relaxc_pool_use(count)


def fails(text: str) -> int:
    FFI.TVMFFIErrorSetRaisedFromCStr(b"RuntimeError", text.encode())
    return -1


@pytest.mark.parametrize("threads", [1, 2, 4, 7])
@pytest.mark.parametrize("parts", [1, 2, 3, 64, 500])
def test_each_part_is_done_once(threads: int, parts: int) -> None:
    use(threads)
    done: list[int] = []
    assert launch(done.append, parts) == 0
    assert sorted(done) == list(range(parts))


def test_the_number_of_parts_is_no_matter_of_threads() -> None:
    seen = set()
    for threads in (1, 2, 7):
        use(threads)
        done: list[int] = []
        launch(done.append, 0)
        seen.add(len(done))
    assert len(seen) == 1


def test_a_loop_within_a_part_is_done_there() -> None:
    use(4)
    done: list[tuple[int, int, bool]] = []

    def outer(number: int) -> None:
        here = threading.get_native_id()
        assert launch(lambda part: done.append((number, part, threading.get_native_id() == here)), 5) == 0

    assert launch(outer, 8) == 0
    assert sorted(done) == [(number, part, True) for number in range(8) for part in range(5)]


@pytest.mark.parametrize("threads", [1, 4])
def test_the_error_is_that_of_the_first_part_that_fails(threads: int) -> None:
    use(threads)
    for _ in range(20):
        assert launch(lambda number: fails(f"part {number}") if number in (5, 6, 40) else 0, 64) == -1
        error = ctypes.c_void_p()
        FFI.TVMFFIErrorMoveFromRaised(ctypes.byref(error))
        assert message_of(error) == "part 5"
    assert launch(lambda _: 0, 64) == 0


class Cell(ctypes.Structure):
    """Of TVMFFIErrorCell: what comes before the backtrace, with the object's head."""

    _fields_ = (
        ("head", ctypes.c_uint8 * 24),
        ("kind", ctypes.c_char_p),
        ("kind_size", ctypes.c_size_t),
        ("message", ctypes.c_char_p),
        ("message_size", ctypes.c_size_t),
    )


def message_of(error: ctypes.c_void_p) -> str:
    text = ctypes.cast(error, ctypes.POINTER(Cell)).contents.message.decode()
    FFI.TVMFFIObjectDecRef(error)
    return str(text)


def in_threads(*work: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    return threads


def test_many_threads_have_loops_at_once() -> None:
    wrong: list[int] = []

    def work() -> None:
        use(3)
        for parts in (1, 2, 9, 64) * 10:
            done: list[int] = []
            if launch(done.append, parts) or sorted(done) != list(range(parts)):
                wrong.append(parts)

    for thread in in_threads(*[work] * 6):
        thread.join()
    assert not wrong


def test_nobody_waits_for_a_worker_that_is_elsewhere() -> None:
    """All workers are in one loop, which ends only after another thread's is done."""
    begun, other_done = threading.Barrier(3), threading.Event()
    reached: list[bool] = []
    use(3)

    def held(_number: int) -> None:
        begun.wait(PATIENCE_S)
        reached.append(True)
        assert other_done.wait(PATIENCE_S)

    def other() -> None:
        use(3)
        done: list[int] = []
        launch(done.append, 40)
        assert len(done) == 40
        other_done.set()

    def first() -> None:
        use(3)
        launch(held, 3)

    threads = in_threads(first)
    until(lambda: reached)
    threads += in_threads(other)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert other_done.is_set()


def module_workers() -> int:
    assert LIBRARY is not None
    return int(LIBRARY.relaxc_pool_workers())


def test_workers_are_kept_and_sleep_when_there_is_nothing_to_do() -> None:
    use(4)
    before = native_threads()
    launch(lambda _: 0, 64)
    first = native_threads()
    for _ in range(50):
        launch(lambda _: 0, 64)
    assert native_threads() == first
    until(lambda: all(state_of(thread) == "S" for thread in first - before))


def native_threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def state_of(thread: int) -> str:
    return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_forked_process_starts_workers_of_its_own() -> None:
    use(4)
    launch(lambda _: 0, 64)
    child = os.fork()
    if not child:
        signal.alarm(int(PATIENCE_S))
        done: list[int] = []
        launch(done.append, 64)
        os._exit(0 if len(done) == 64 and module_workers() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert launch(lambda _: 0, 64) == 0


def test_without_a_compiler_and_a_library_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = settings().model_copy(update={"cache_dir": tmp_path, "cxx": "no-such-compiler"})
    monkeypatch.setattr(pool_build, "settings", lambda: broken)
    assert pool.__wrapped__() is None


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_it_needs_no_newer_libraries_than_the_wheel_promises(tmp_path: Path) -> None:
    pool_build.build_pool(tmp_path / "pool.so", settings().cxx)
    command = ["objdump", "-T", str(tmp_path / "pool.so")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = re.findall(r"\bGLIBC_([\d.]+)", told)
    assert versions and max(tuple(map(int, version.split("."))) for version in versions) <= (2, 28)
