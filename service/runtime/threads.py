"""How many threads TVM's kernels use.

TVM keeps a pool of workers for each thread that runs a kernel. It is sized once, from the environment, by default
to half of the logical CPUs, and pins the caller to its first cores, which would slow down everything else in this
process. So a pool is made here, before its first use, with a worker for each core and nothing pinned, and every call
then says how many of the workers it wants.

TVM never gives a pool back, also when its thread has ended, and a process that was forked has the pools' memory without
their workers: a launch would wait for them for ever. So the first threads that come have pools of their own, and calls
from others, and from the thread that was forked, are made by threads that stay and are shared (`call`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from numbers import Integral
from typing import Any, TypeVar

from relaxc.service import machine
from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption
from relaxc.service.processor import MOST_THREADS
from relaxc.service.runtime.tvm_runtime import function

__all__ = ["call", "checked_threads", "default_threads", "use_threads"]

_Result = TypeVar("_Result")
_AFFINITY_BIG = 1  # threading::ThreadGroup::AffinityMode::kBig, the default
_MOST_WORKERS = 64
"""Of all pools of callers together, and again of the threads that are shared."""
_environment = threading.Lock()
_this_thread = threading.local()


class _Shared:
    """How many callers have a pool of their own, and the threads that call for all others."""

    def __init__(self, *, is_forked: bool = False) -> None:
        self.most = max(2, _MOST_WORKERS // machine.cpu().cores)
        self.pools = 0
        self.threads = ThreadPoolExecutor(self.most, thread_name_prefix="relaxc-kernels")
        self.forked = threading.get_ident() if is_forked else None
        """The thread that goes on in a forked process, whose pool is dead."""


_shared: _Shared | None = None


def _forked() -> None:
    global _environment, _shared, _this_thread
    _environment, _this_thread, _shared = threading.Lock(), threading.local(), _Shared(is_forked=True)


os.register_at_fork(after_in_child=_forked)


def default_threads() -> int:
    """Return the setting `threads`, or this process's cores where it is 0."""
    return settings().threads or machine.cpu().cores


def checked_threads(count: Any) -> int:
    """Return a number of threads that somebody gave. Raise InvalidOption where it is no whole number from 1 to 1024."""
    if type(count) is bool or not isinstance(count, Integral) or not 1 <= int(count) <= MOST_THREADS:
        raise InvalidOption(f"threads must be a whole number from 1 to {MOST_THREADS}, not {count!r}", option="threads")
    return int(count)


def call(count: int, function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return `function(*arguments)`, whose kernels use `count` threads. Raise what it does.

    It runs in this thread where that has a pool or is one of the first, else in a thread that is kept for such calls,
    which takes two switches of threads more.
    """
    if getattr(_this_thread, "count", None) == count:
        return function(*arguments)
    if hasattr(_this_thread, "count") or _takes_pool():
        use_threads(count)
        return function(*arguments)
    assert _shared is not None
    made = _shared.threads.submit(_called, count, function, arguments)
    try:
        return made.result()
    except BaseException:
        wait([made])  # an interrupt: what the function works on is not free before it has ended
        raise


def _called(count: int, function: Callable[..., _Result], arguments: tuple[Any, ...]) -> _Result:
    use_threads(count)
    return function(*arguments)


def _takes_pool() -> bool:
    """Whether this thread, which has no pool, may have one."""
    global _shared
    with _environment:
        if _shared is None:
            _shared = _Shared()
        taken = _shared.pools < _shared.most and _shared.forked != threading.get_ident()
        _shared.pools += taken
    return taken


def use_threads(count: int) -> None:
    """Have the kernels that the calling thread runs from now on use `count` threads, or as many as its pool has.

    The pool is made on the thread's first call here, with max(`count`, cores) workers; one that TVM made earlier in
    this thread keeps its size.
    """
    try:
        if _this_thread.count == count:
            return
    except AttributeError:
        _make_pool(max(count, machine.cpu().cores))
    if _this_thread.count != count:
        function("runtime.config_threadpool")(_AFFINITY_BIG, count)
        _this_thread.count = count


def _make_pool(workers: int) -> None:
    """Makes this thread's pool. TVM_NUM_THREADS stays set, and raised if need be: TVM reads it again at every launch,
    takes half of the logical CPUs where it is unset, and runs a launch on one thread where that gives one."""
    with _environment:
        os.environ.setdefault("TVM_BIND_THREADS", "0")
        before = os.environ.get("TVM_NUM_THREADS", "")
        os.environ["TVM_NUM_THREADS"] = str(max(workers, int(before) if before.isdecimal() else 0))
        _this_thread.count = function("runtime.NumThreads")()
