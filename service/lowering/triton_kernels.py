"""PrimFuncs of Triton kernels as host code that launches them, and the CUDA modules that hold their machine code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.script import tirx

from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.triton_call import CONFIGURATION, TritonCall, call_of
from relaxc.service.lowering.target import to_tvm
from relaxc.service.lowering.triton_compile import Binary, Job, compile_kernels
from relaxc.service.request import TargetSpec

__all__ = ["cuda_modules", "with_triton_kernels"]

_TYPES = {"i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64", "fp32": "float32"}


def with_triton_kernels(module: Any, spec: TargetSpec, folder: Path) -> tuple[Any, list[Binary]]:
    """Return the module with each PrimFunc of a Triton kernel as host code, and what it launches, equal ones once.

    The same module where there is none. Raise as `compile_kernels` does.
    """
    calls = {var: call for var, func in module.functions_items() if (call := _call_of(func)) is not None}
    if not calls:
        return module, []
    jobs = {var: _job(module[var], call) for var, call in calls.items()}
    once = {job.symbol: job for job in jobs.values()}
    binaries = compile_kernels(list(once.values()), spec.arch, folder)
    by_symbol = {each.symbol: each for each in binaries}
    module = module.clone()
    for var, job in jobs.items():
        module.update_func(var, _host(module[var], job, by_symbol[job.symbol]))
    return module, binaries


def _call_of(func: Any) -> TritonCall | None:
    return call_of(func) if isinstance(func, tvm.tirx.PrimFunc) else None


def _job(func: Any, call: TritonCall) -> Job:
    launch = call.launches[int(func.attrs.get(CONFIGURATION, 0))]
    return Job(call, launch, tuple(str(buffer.dtype) for buffer in func.params))


def _host(func: Any, job: Job, binary: Binary) -> Any:
    """The PrimFunc that launches the kernel on its parameters."""
    arguments = [_argument(job, at, kind) for at, kind in zip(binary.given, binary.passed, strict=True)]
    values = {f"f{at}": job.call.arguments[at].value for at in binary.given}
    # Infinite ones and NaN have no literal
    floats = {name: tvm.tirx.FloatImm("float64", float(of)) for name, of in values.items() if of is not None}
    grid, shared = job.launch.grid, [f"T.int64({binary.shared_bytes})"] if binary.shared_bytes else []
    numbers = [f"T.int64({each})" for each in (*[0] * binary.added, *grid, binary.threads)]
    lines = [f"@T.prim_func\ndef main({', '.join(f'p{at}: T.handle' for at in range(len(func.params)))}):\n"]
    for at, buffer in enumerate(func.params):
        shape = ", ".join(str(int(size)) for size in buffer.shape)
        lines.append(f'    b{at} = T.match_buffer(p{at}, ({shape},), "{buffer.dtype}", align=16)\n')
    words = ", ".join([*arguments, *numbers, *shared])
    lines.append(f'    T.evaluate(T.call_packed("{binary.symbol}", {words}))\n')
    built = tvm.script.from_source("".join(lines), {"T": tirx, **floats})
    built = built.with_attr("tirx.noalias", True).with_attr("tirx.is_scheduled", True).with_attr(TEXT_KERNEL, True)
    symbol = func.attrs.get("global_symbol")
    return built.with_attr("global_symbol", symbol) if symbol else built.without_attr("global_symbol")


def _argument(job: Job, at: int, kind: str) -> str:
    argument = job.call.arguments[at]
    if argument.tensor is not None:
        return f"b{argument.tensor}.data"
    return f"f{at}" if kind == "fp32" else f"T.int64({int(argument.value or 0)})"


def cuda_modules(binaries: Sequence[Binary], spec: TargetSpec) -> Mapping[str, tuple[Any, Binary]]:
    """Return a CUDA module of each kernel as TVM packs it, and the kernel, by the source that stands for it.

    TVM knows how to launch a kernel by its signature; the text of an empty one has that, and gives way to `image`.
    """
    found = {}
    for binary in binaries:
        module = tvm_ffi.get_global_func("target.build.cuda")(_signature(binary, spec), to_tvm(spec))
        found[module.inspect_source("cuda")] = (module, binary)
    return found


def _signature(binary: Binary, spec: TargetSpec) -> Any:
    kinds = [*binary.passed, *["*i8"] * binary.added]
    types = ['T.handle("int8", "global")' if kind.startswith("*") else f"T.{_TYPES[kind]}" for kind in kinds]
    parameters = ", ".join(f"p{at}: {kind}" for at, kind in enumerate(types))
    text = f"@T.prim_func\ndef main({parameters}):\n    T.evaluate(0)\n"
    tags = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x"]
    if binary.shared_bytes:
        tags.append("tirx.use_dyn_shared_memory")
    func = tvm.script.from_source(text, {"T": tirx}).with_attr("global_symbol", binary.symbol)
    func = func.with_attr("calling_conv", 2).with_attr("tirx.is_global_func", True)  # a device function to launch
    func = func.with_attr("tirx.kernel_launch_params", tags).with_attr("target", to_tvm(spec))
    return tvm.IRModule({binary.symbol: func})
