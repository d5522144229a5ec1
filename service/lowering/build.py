"""A scheduled, VM-ready module as one shared library that `tvm.runtime.load_module` takes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.dump import Dump, no_dump
from service.lowering.target import to_tvm
from service.lowering.tools import link, linker_of, nvcc
from service.request import TargetSpec

__all__ = ["build"]


def build(module: Any, spec: TargetSpec, out: Path, *, dump: Dump = no_dump) -> None:
    """Compiles `module` for `spec` and writes the shared library `out`; equal modules give equal bytes.

    `module` holds Relax that is ready for the VM and scheduled PrimFuncs. Raises ToolMissing where a program
    is not installed, and CompileFailed with a command that repeats it where one fails; its files stay in
    `OUT.build` then.
    """
    import tvm

    from service.lowering import pipeline

    folder = out.with_name(out.name + ".build")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pipeline.register()
    target = to_tvm(spec)
    with _cuda_compiler(spec, folder, dump), tvm.transform.PassContext(opt_level=3):
        executable = tvm.relax.build(module, target, relax_pipeline=None, tir_pipeline=pipeline.NAME)
    _dump_code(executable.mod, dump)
    linker_of(spec)
    executable.export_library(
        str(out),
        fcompile=lambda name, objects, **_: link([Path(o) for o in objects], Path(name), spec),
        workspace_dir=str(folder),
    )
    shutil.rmtree(folder)


def _dump_code(module: Any, dump: Dump) -> None:
    """LLVM IR and assembly of the host code, CUDA source of the kernels."""
    pending = [module]
    while pending:
        part = pending.pop(0)
        pending.extend(part.imports)
        if part.kind == "llvm":
            dump("llvm_ir", lambda part=part: part.inspect_source("ll"), "ll")  # type: ignore[misc]
            dump("assembly", lambda part=part: part.inspect_source("asm"), "s")  # type: ignore[misc]


@contextmanager
def _cuda_compiler(spec: TargetSpec, folder: Path, dump: Dump) -> Iterator[None]:
    """While it is open, TVM's CUDA code generator compiles through `nvcc` of the settings, for `spec.arch`."""
    if spec.kind != "cuda":
        yield
        return
    import tvm_ffi
    from tvm.support import nvcc as tvm_nvcc

    def compile_kernels(source: str) -> bytearray:
        dump("cuda", lambda: source, "cu")
        return bytearray(nvcc(source, spec.arch, folder))

    name = "tvm_callback_cuda_compile"
    tvm_ffi.register_global_func(name, compile_kernels, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(name, tvm_nvcc.tvm_callback_cuda_compile, override=True)
