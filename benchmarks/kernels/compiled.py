"""One operator through every stage of a compile, and its PrimFuncs to be called one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.runtime.vm import VirtualMachine

from relaxc.service import passes
from relaxc.service.dump import Dump, no_dump
from relaxc.service.lowering import build, schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.common.constants import constant
from relaxc.service.request import CompileOptions

__all__ = ["Compiled", "Kernel", "compile_op"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kernel:
    """A call that the compiled operator makes: the PrimFunc, its row of the schedule report, and its tensors."""

    function: Callable[..., Any]
    row: dict[str, Any]
    tensors: tuple[Any, ...]

    @property
    def computes(self) -> bool:
        """Whether it is more than a change of layout."""
        return bool(self.row["flops"] != 0)


@dataclass(frozen=True)
class Compiled:
    """An operator: its results on the given inputs, and the kernels that made them, in order."""

    outputs: list[Array]
    kernels: list[Kernel]


def compile_op(
    make: Callable[..., Any],
    inputs: Sequence[Array],
    weights: Sequence[Array],
    *,
    target: str = "auto",
    dump: Dump = no_dump,
) -> Compiled:
    """`make(*inputs, *weights)` as Relax, compiled as a model is, its weights constants, and run once."""
    spec = resolve(target)
    variables = [relax.Var(f"x{i}", relax.TensorType(array.shape, str(array.dtype))) for i, array in enumerate(inputs)]
    block = relax.BlockBuilder()
    with block.function("main", variables):
        with block.dataflow():
            made = block.normalize(make(*variables, *(constant(array) for array in weights)))
            result = block.emit_output(relax.Tuple([made]))
        block.emit_func_output(result)
    optimized = passes.optimize(block.get(), to_tvm(spec), CompileOptions(), dump=dump)
    scheduled = schedule(optimized.module, spec, dump=dump)
    ready, _ = passes.finalize(scheduled.module, to_tvm(spec), bounds={})
    with tempfile.TemporaryDirectory(prefix="relaxc-kernels-") as folder:
        build(ready, spec, Path(folder) / "op.so", dump=dump)
        library = tvm_ffi.load_module(str(Path(folder) / "op.so"))
    return _run(library, scheduled.report, inputs, list(optimized.weights.values()))


def _run(library: Any, report: list[dict[str, Any]], inputs: Sequence[Array], weights: list[Any]) -> Compiled:
    machine = VirtualMachine(library, tvm.cpu())
    rows = {row["function"]: row for row in report}
    kernels: list[Kernel] = []

    def note(function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
        if before and name in rows:
            kernels.append(Kernel(function, rows[name], tuple(map(_copied, arguments))))
        return 0

    machine.set_instrument(tvm_ffi.convert_func(note))
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    packed = [weight if isinstance(weight, tvm.runtime.Tensor) else tvm.runtime.tensor(weight) for weight in weights]
    tail = [tvm_ffi.convert(packed)] if int(machine.module["get_function_arity"]("main")) > len(tensors) else []
    results = machine["main"](*tensors, *tail)
    return Compiled([result.numpy() for result in results], kernels)


def _copied(tensor: Any) -> Any:
    """The memory of a tensor is used again when the program is done with it."""
    return tvm.runtime.tensor(tensor.numpy())
