"""How many threads the kernels of a call use: those of our pool (`pool`), or of TVM's where that cannot be had."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import lru_cache
from numbers import Integral
from typing import Any, TypeVar

from relaxc.service import machine
from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption
from relaxc.service.processor import MOST_THREADS
from relaxc.service.runtime.pool import pool
from relaxc.service.runtime.tvm_runtime import function

__all__ = ["call", "checked_threads", "default_threads", "use_threads"]

_Result = TypeVar("_Result")
_AFFINITY_BIG = 1  # threading::ThreadGroup::AffinityMode::kBig, the default
_this_thread = threading.local()


def default_threads() -> int:
    """Return the setting `threads`, or this process's cores where it is 0."""
    return settings().threads or machine.cpu().cores


def checked_threads(count: Any) -> int:
    """Return a number of threads that somebody gave. Raise InvalidOption where it is no whole number from 1 to 1024."""
    if type(count) is bool or not isinstance(count, Integral) or not 1 <= int(count) <= MOST_THREADS:
        raise InvalidOption(f"threads must be a whole number from 1 to {MOST_THREADS}, not {count!r}", option="threads")
    return int(count)


def call(count: int, function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return `function(*arguments)`, whose kernels use `count` threads at most. Raise what it does."""
    if getattr(_this_thread, "count", None) != count:
        use_threads(count)
    return function(*arguments)


def use_threads(count: int) -> None:
    """Have the kernels that the calling thread runs from now on use `count` threads at most, itself one of them."""
    if (ours := pool()) is not None:
        ours.relaxc_pool_use(count)
    else:
        _limit_tvm()
        function("runtime.config_threadpool")(_AFFINITY_BIG, count)
    _this_thread.count = count


@lru_cache(maxsize=1)
def _limit_tvm() -> None:
    """TVM makes a pool for each thread by the environment, and pins the thread to its first cores unless it is told."""
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_NUM_THREADS", str(max(2, machine.cpu().cores)))
