"""A scheduled, VM-ready module as one shared library that `tvm.runtime.load_module` takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaxc.service.dump import Dump, no_dump
from relaxc.service.lowering.code_target import to_code_target
from relaxc.service.lowering.cuda_binary import with_cubin
from relaxc.service.lowering.outside_functions import check_outside_functions
from relaxc.service.lowering.target import to_tvm
from relaxc.service.lowering.tools import link, linker_of, nvcc
from relaxc.service.process.environment import environment_variable
from relaxc.service.process.timings import Timings
from relaxc.service.request import TargetSpec

if TYPE_CHECKING:
    from relaxc.service.lowering.triton_compile import Binary

__all__ = ["KERNEL", "Objects", "build", "build_kernel", "build_kernels"]

KERNEL = "kernel"
"""The name of the one function in what `build_kernel` writes."""

# The symbol under which the runtime looks for the modules that are no machine code: bytecode, kernels.
_EMBEDDED = """
    .section .rodata,"a"
    .globl __tvm_ffi__library_bin
    .balign 64
__tvm_ffi__library_bin:
    .incbin "embedded.bin"
    .size __tvm_ffi__library_bin, . - __tvm_ffi__library_bin
    .section .note.GNU-stack,""
"""


Objects = Callable[[Mapping[str, str], TargetSpec, Timings], Mapping[str, bytes]]
"""What makes the object files of kernels, by name, from their texts."""


def build(
    module: Any,
    spec: TargetSpec,
    out: Path,
    *,
    dump: Dump = no_dump,
    timings: Timings | None = None,
    objects: Objects | None = None,
) -> None:
    """Compile `module` for `spec` and write the shared library `out`; equal modules give equal bytes.

    `module` holds Relax that is ready for the VM and scheduled PrimFuncs. Raise ToolMissing where a program
    is not installed, UnsupportedModel where the runtime lacks a function that it calls, and CompileFailed with a
    command that repeats it where one fails; its files stay in `OUT.build` then. For a CPU a few kernels are an
    object, which `objects` makes, or this process.
    """
    timings = timings or Timings()
    if spec.kind == "llvm":
        _build_for_cpu(module, spec, out, dump, timings, objects)
    else:
        _build_for_gpu(module, spec, out, dump)


def _build_for_cpu(
    module: Any, spec: TargetSpec, out: Path, dump: Dump, timings: Timings, objects: Objects | None
) -> None:
    """Builds the VM's part, the kernels apart from it, and links them in the order of their names."""
    import tvm

    from relaxc.service.lowering import pipeline
    from relaxc.service.lowering.objects import grouped, kernels_of
    from relaxc.service.lowering.trusted_arguments import trust_arguments

    pipeline.register()
    folder = _new_folder(out)
    module = trust_arguments(module)
    with timings("vm.build"), tvm.transform.PassContext(opt_level=3):
        machine = tvm.relax.build(module, to_tvm(spec), relax_pipeline=None, tir_pipeline=pipeline.NOTHING).mod
        check_outside_functions(machine, _names(module))
        inputs = _embed(machine, [], {}, spec, folder)
    kernels = grouped(kernels_of(module))
    if dump is not no_dump:
        _dump_kernels(kernels, spec, dump)
    linker_of(spec)
    made = _made(kernels, spec, timings, objects)
    for index, name in enumerate(sorted(kernels)):
        inputs.append(folder / f"kernel{index}.o")
        inputs[-1].write_bytes(made[name])
    with timings("link"):
        link(inputs, out, spec)
    shutil.rmtree(folder)


def _made(
    kernels: Mapping[str, Any], spec: TargetSpec, timings: Timings, objects: Objects | None
) -> Mapping[str, bytes]:
    """The object of each kernel: by `objects`, and of those that it cannot be told, or without it, by this process."""
    from relaxc.service.lowering.objects import object_of, text_of

    made: dict[str, bytes] = {}
    if objects is not None:
        with timings("save"):
            texts = {name: text for name, kernel in kernels.items() if (text := text_of(kernel)) is not None}
        made.update(objects(texts, spec, timings))
    return made | {name: object_of(kernels[name], spec, timings) for name in kernels.keys() - made.keys()}


def _dump_kernels(kernels: Mapping[str, Any], spec: TargetSpec, dump: Dump) -> None:
    from relaxc.service.lowering.objects import compiled

    modules = [compiled(kernels[name], spec, Timings()) for name in sorted(kernels)]
    dump("llvm_ir", lambda: "\n".join(module.inspect_source("ll") for module in modules), "ll")
    dump("assembly", lambda: "\n".join(module.inspect_source("asm") for module in modules), "s")


def _build_for_gpu(module: Any, spec: TargetSpec, out: Path, dump: Dump) -> None:
    import tvm

    from relaxc.service.lowering import pipeline
    from relaxc.service.lowering.triton_kernels import cuda_modules, with_triton_kernels

    pipeline.register()
    folder = _new_folder(out)
    module, kernels = with_triton_kernels(module, spec, folder / "triton")
    # TVM keeps CUDA kernels as source, as it does without a GPU, and not as a loaded module.
    with environment_variable("TVM_COMPILE_FORCE_FALLBACK", "1"), tvm.transform.PassContext(opt_level=3):
        compiled = tvm.relax.build(module, to_tvm(spec), relax_pipeline=None, tir_pipeline=pipeline.NAME).mod
        images = cuda_modules(kernels, spec)
    check_outside_functions(compiled, _names(module))
    _write(compiled, images, spec, out, folder, dump)


def _names(module: Any) -> frozenset[str]:
    """The names of the module's functions, Relax's and kernels."""
    return frozenset(str(var.name_hint) for var in module.functions)


def build_kernel(func: Any, spec: TargetSpec, out: Path) -> None:
    """Build the shared library `out` of one scheduled PrimFunc, named KERNEL, its machine code as in a whole model.

    Raise as `build` does.
    """
    build_kernels({KERNEL: func}, spec, out)


def build_kernels(funcs: Mapping[str, Any], spec: TargetSpec, out: Path) -> None:
    """Build the shared library `out` of scheduled PrimFuncs by name: one start of each tool for all.

    Raise as `build` does.
    """
    import tvm

    from relaxc.service.lowering import pipeline
    from relaxc.service.lowering.triton_kernels import cuda_modules, with_triton_kernels

    pipeline.register()
    folder = _new_folder(out)
    module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in funcs.items()})
    module, kernels = with_triton_kernels(module, spec, folder / "triton")
    with environment_variable("TVM_COMPILE_FORCE_FALLBACK", "1"), tvm.transform.PassContext(opt_level=3):
        compiled = tvm.tirx.build(module, to_code_target(spec), pipeline=pipeline.NAME)
        images = cuda_modules(kernels, spec)
    _write(compiled, images, spec, out, folder, no_dump)


def _new_folder(out: Path) -> Path:
    """An empty folder beside `out`, which stays where the build fails."""
    folder = out.with_name(out.name + ".build")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _write(
    compiled: Any, images: Mapping[str, tuple[Any, Binary]], spec: TargetSpec, out: Path, folder: Path, dump: Dump
) -> None:
    """Links the machine code and, where there is more than that, the rest embedded."""
    for module, _ in images.values():  # where host code looks for what it launches
        next(part for part in _parts(compiled) if part.kind == "llvm").import_module(module)
    parts = _parts(compiled)
    _dump_code(parts, images, dump)
    linker_of(spec)
    only_code = all(part.kind == "llvm" for part in parts)
    inputs = [] if only_code else _embed(compiled, parts, images, spec, folder)
    for index, part in enumerate(part for part in parts if part.kind == "llvm"):
        inputs.append(folder / f"host{index}.o")
        part.write_to_file(str(inputs[-1]))
    link(inputs, out, spec)
    shutil.rmtree(folder)


def _embed(
    compiled: Any, parts: list[Any], images: Mapping[str, tuple[Any, Binary]], spec: TargetSpec, folder: Path
) -> list[Path]:
    """What to link so that the runtime finds the modules that are no machine code.

    `images` are the modules whose code is there already, by the source that TVM has for it.
    """
    import tvm

    from relaxc.service.lowering.cuda_accesses import check_accesses
    from relaxc.service.lowering.cuda_arithmetic import with_extremes

    embedded = tvm.get_global_func("runtime.ModulePackImportsToTensor")(compiled).numpy().tobytes()
    with_ptx = not spec.arch.endswith("a")  # a later device does not have the instructions of such an architecture
    for part in (part for part in parts if part.kind == "cuda"):
        source = part.inspect_source("cuda")
        check_accesses(source)
        text = with_extremes(source)
        made = images[source][1].image if source in images else nvcc(text, spec.arch, folder, with_ptx=with_ptx)
        embedded = with_cubin(embedded, source, made)
    (folder / "embedded.bin").write_bytes(embedded)
    (folder / "embedded.s").write_text(_EMBEDDED)  # .s goes to the assembler as it is, .S through the C compiler first
    return [folder / "embedded.s"]


def _parts(module: Any) -> list[Any]:
    """The module and all that it imports, in order."""
    found = [module]
    for part in found:
        found.extend(part.imports)
    return found


def _dump_code(parts: list[Any], images: Mapping[str, tuple[Any, Binary]], dump: Dump) -> None:
    """LLVM IR and assembly of the host code, CUDA source of the kernels, PTX of Triton's."""
    from relaxc.service.lowering.cuda_arithmetic import with_extremes

    for part in parts:
        if part.kind == "llvm":
            dump("llvm_ir", lambda part=part: part.inspect_source("ll"), "ll")  # type: ignore[misc]
            dump("assembly", lambda part=part: part.inspect_source("asm"), "s")  # type: ignore[misc]
        elif part.kind == "cuda" and (source := part.inspect_source("cuda")) in images:
            dump("triton", lambda ptx=images[source][1].ptx: ptx, "ptx")  # type: ignore[misc]
        elif part.kind == "cuda":
            dump("cuda", lambda part=part: with_extremes(part.inspect_source("cuda")), "cu")  # type: ignore[misc]
