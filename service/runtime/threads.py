"""How many threads TVM's kernels use.

TVM keeps a pool of workers for each thread that runs a kernel. It is sized once, from the environment, by default
to half of the logical CPUs, and pins the caller to its first cores, which would slow down everything else in this
process. So a pool is made here, before its first use, with a worker for each core and nothing pinned, and every call
then says how many of the workers it wants.
"""

from __future__ import annotations

import os
import threading
from numbers import Integral
from typing import Any

from service import machine
from service.config import settings
from service.errors import InvalidOption
from service.processor import MOST_THREADS
from service.runtime.tvm_runtime import function

__all__ = ["checked_threads", "default_threads", "use_threads"]

_AFFINITY_BIG = 1  # threading::ThreadGroup::AffinityMode::kBig, the default
_environment = threading.Lock()
_this_thread = threading.local()


def default_threads() -> int:
    """Return the setting `threads`, or this process's cores where it is 0."""
    return settings().threads or machine.cpu().cores


def checked_threads(count: Any) -> int:
    """Return a number of threads that somebody gave. Raise InvalidOption where it is no whole number from 1 to 1024."""
    if type(count) is bool or not isinstance(count, Integral) or not 1 <= int(count) <= MOST_THREADS:
        raise InvalidOption(f"threads must be a whole number from 1 to {MOST_THREADS}, not {count!r}", option="threads")
    return int(count)


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
