"""Machine code of kernels, an object file for a few, and the text of these, which is all that its code depends on.

A kernel is a scheduled PrimFunc. All of a module that call one another are one kernel, and so are tiny ones.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import Call

from relaxc.schedules.ir.tir import collect
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.code_target import to_code_target
from relaxc.service.process.timings import Timings
from relaxc.service.request import TargetSpec

__all__ = ["compiled", "grouped", "kernel_of", "kernels_of", "object_of", "text_of", "warm_up"]

_SHAPES = "shape_func"
"""How the VM's functions of sizes are named: a dozen instructions each, which are built together."""

_TOGETHER = 3
"""How many kernels an object has. A fork and a module of LLVM's take 33 ms of a processor before a line is compiled, as
long as a small kernel takes itself; with more of them together processes would wait for the last."""

_UNTOLD = re.compile(r'"value":-?\d(\.\d+)?e-3[0-9][0-9]\b|\.(ll|bc)"')
"""Constants that TVM writes and cannot read, which are float64 below the least normal number, and LLVM IR that is
imported from a file."""


def kernels_of(module: Any) -> dict[str, Any]:
    """Return the PrimFuncs of `module` as kernels by name, each a module of its own."""
    functions = {str(var.name_hint): f for var, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    called = {name: _called(function) for name, function in functions.items()}
    together = {name for name, others in called.items() if others or name.startswith(_SHAPES)}
    together |= {name for others in called.values() for name in others}
    kernels = {name: tvm.IRModule({name: function}) for name, function in functions.items() if name not in together}
    if together:
        kernels[min(together)] = tvm.IRModule({name: functions[name] for name in sorted(together)})
    return kernels


def grouped(kernels: Mapping[str, Any]) -> dict[str, Any]:
    """Return kernels by name as modules of a few each, by their names: what an object is made of.

    Which are together depends on the names alone, so that equal requests have equal objects. Neighbours by name are
    alike, and so go apart: no object is much more work than others.
    """
    names, count = sorted(kernels), -(-len(kernels) // _TOGETHER)
    groups = [names[index::count] for index in range(count)]
    return {", ".join(group): _joined([kernels[name] for name in group]) for group in groups}


def _joined(modules: Sequence[Any]) -> Any:
    """The functions of modules as one."""
    return tvm.IRModule({var: function for each in modules for var, function in each.functions_items()})


def _called(function: Any) -> set[str]:
    return {str(node.op.name_hint) for node in collect(function.body, Call) if isinstance(node.op, tvm.ir.GlobalVar)}


def text_of(kernel: Any) -> str | None:
    """Return the kernel as JSON, all that its code depends on but the target; None where that is not all."""
    text = str(tvm.ir.save_json(kernel))
    return None if _UNTOLD.search(text) else text


def kernel_of(text: str) -> Any:
    """Return the kernel that `text_of` described."""
    return tvm.ir.load_json(text)


def compiled(kernel: Any, spec: TargetSpec, timings: Timings) -> Any:
    """Return the LLVM module of a kernel for the CPU target `spec`."""
    pipeline.register()
    passes = tvm.transform.PassContext(opt_level=3, instruments=[timings.passes("tir")])
    with passes, timings("llvm"):
        return tirx.build(kernel, to_code_target(spec), pipeline=pipeline.NAME)


def object_of(kernel: Any, spec: TargetSpec, timings: Timings) -> bytes:
    """Return the object file of a kernel; equal kernels and targets give equal bytes."""
    module = compiled(kernel, spec, timings)
    with timings("emit"):
        return _emitted(module)


def _emitted(module: Any) -> bytes:
    with _memory_file() as (path, read):
        module.write_to_file(path, "o")
        return read()


def warm_up() -> None:
    """Build a kernel of our own, before forks: none does for itself then what TVM and LLVM do the first time.

    Forks also copy a third less of the pages that they share with this process.
    """
    element = te.placeholder((16,), "float32", name="element")
    twice = te.compute(element.shape, lambda i: element[i] + element[i], name="twice")
    kernel = tvm.IRModule({"warm": te.create_prim_func([element, twice]).with_attr("global_symbol", "warm")})
    _emitted(compiled(kernel, TargetSpec("warm", "llvm", f"{os.uname().machine}-linux-gnu", "generic"), Timings()))
    gc.collect()
    gc.freeze()


@contextmanager
def _memory_file() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Give the path of a file that no other process can name, and what reads it whole."""
    number = os.memfd_create("kernel", os.MFD_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        yield f"/proc/self/fd/{number}", file.read
