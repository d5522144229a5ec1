"""Rules for tests of the measurer: one that does what it should, and every way in which one may not."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tvm import te, tirx

from relaxc.schedules.template import Choices, Declined, Parameters, Template

__all__ = ["FAULTS", "RULES", "SIZE", "plus_one"]

SIZE = 1 << 14

FAULTS = (
    *("none", "wrong", "segfault", "hang", "exit", "memory", "4-gib", "mismatch"),  # of the kernel
    *("declined", "no-such-point", "raises", "builder-segfault", "builder-hang", "builder-4-gib"),  # of the rule
)
"""What the parameter `fault` numbers."""

_PLENTY_BYTES = 1 << 44
_4_GIB = 1 << 32


def plus_one(size: int = SIZE) -> Any:
    """y[i] = x[i] + 1"""
    return _plus(tirx.const(1.0, "float32"), size)


def _plus(term: Any, size: int = SIZE) -> Any:
    x = te.placeholder((size,), name="x")
    return te.create_prim_func([x, te.compute((size,), lambda i: x[i] + term, name="y")])


def _calls(name: str, *arguments: Any) -> Any:
    """A kernel that calls a function of libc for each element."""
    return _plus(tirx.call_extern("int32", name, *arguments).astype("float32"))


def _exhausting() -> Any:
    plenty = tirx.const(_PLENTY_BYTES, "int64")
    return _calls("memset", tirx.call_extern("handle", "malloc", plenty), 1, plenty)


def _allocating() -> Any:
    """Once in a run it wants memory that it hardly touches; its numbers are wrong where it gets it."""
    count = tirx.const(_4_GIB, "int64")
    touched = tirx.call_extern(
        "int32", "memset", tirx.call_extern("handle", "malloc", count), 1, tirx.const(1, "int64")
    )
    x = te.placeholder((SIZE,), name="x")
    zero = tirx.const(0.0, "float32")
    y = te.compute((SIZE,), lambda i: x[i] + tirx.if_then_else(i == 0, touched.astype("float32"), zero), name="y")
    return te.create_prim_func([x, y])


_KERNELS = {
    "wrong": lambda: _plus(tirx.const(1.5, "float32")),
    "segfault": lambda: _calls("raise", int(signal.SIGSEGV)),
    "hang": lambda: _calls("sleep", 1000),
    "exit": lambda: _calls("_exit", 3),
    "memory": _exhausting,
    "4-gib": _allocating,
    "mismatch": lambda: plus_one(2 * SIZE),
}


class Faulty(Template[Any, Any]):
    """y = x + 1, or the fault that its one parameter numbers."""

    name = "test.faulty"
    version = 1

    def matched(self, func: Any, target: Any) -> Any:
        """Take everything."""
        return func

    def default(self, form: Any, machine: Any) -> Parameters:
        """Return no fault."""
        return {"fault": 0}

    def space(self, form: Any, machine: Any) -> Choices:
        """See `Template`."""
        return {"fault": tuple(range(len(FAULTS)))}

    def emit(self, func: Any, form: Any, parameters: Parameters, machine: Any) -> Any:
        """See `Template`."""
        fault = FAULTS[parameters["fault"]]
        if fault == "declined":
            return Declined("it has the fault to decline")
        if fault == "no-such-point":
            raise ValueError("that is no point of the space")
        if fault == "raises":
            raise RuntimeError("a bug of the rule")
        if fault == "builder-segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "builder-4-gib":
            bytearray(_4_GIB)
        if fault == "builder-hang":
            time.sleep(1000)
        return _KERNELS.get(fault, plus_one)()


RULES = (Faulty(),)
