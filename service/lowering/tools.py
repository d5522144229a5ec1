"""The programs that the build runs: found or named as missing, and repeatable by hand when they fail."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from relaxc.service import machine
from relaxc.service.config import settings
from relaxc.service.errors import CompileFailed, ToolMissing
from relaxc.service.request import TargetSpec

__all__ = ["link", "linker_of", "nvcc", "run_tool"]

_CROSS = {"aarch64": ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")}


def run_tool(command: Sequence[str], folder: Path) -> None:
    """Run `command` in `folder`. Raise ToolMissing, or CompileFailed with the command that repeats it."""
    if shutil.which(command[0]) is None:
        raise ToolMissing(f"{command[0]} is not installed", tool=command[0])
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        repeat = f"cd {shlex.quote(str(folder))} && {shlex.join(command)}"
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CompileFailed(
            f"{command[0]} failed with status {done.returncode}: {said[-1] if said else 'it said nothing'}",
            command=repeat,
            output="\n".join(said[-40:]),
            remedy=f"Repeat it with: {repeat}",
        )


def linker_of(spec: TargetSpec) -> str:
    """Return the C++ compiler that links for `spec`. Raise ToolMissing, naming the package, where there is none."""
    arch = (spec.host or spec).triple.partition("-")[0]
    if arch == machine.cpu().arch or arch not in _CROSS:
        return settings().cxx
    program, package = _CROSS[arch]
    if shutil.which(program) is None:
        raise ToolMissing(
            f"{program} is not installed, which links for {arch}",
            tool=program,
            remedy=f"Install a cross compiler (on Debian: apt-get install {package}).",
        )
    return program


def link(objects: Sequence[Path], out: Path, spec: TargetSpec) -> None:
    """Link `objects` into the shared library `out`; equal objects give equal bytes.

    No build id, no symbol table with file names; what is not used of libm is not needed at run time.
    """
    options = ["-shared", "-fPIC", "-Wl,--build-id=none", "-Wl,-s", "-Wl,--as-needed", "-Wl,-z,noexecstack"]
    names = [path.name for path in objects]
    run_tool([linker_of(spec), *options, "-o", "library.so", *names, "-lm"], objects[0].parent)
    shutil.move(objects[0].parent / "library.so", out)


def nvcc(source: str, arch: str, folder: Path, *, with_ptx: bool = False) -> bytes:
    """Compile CUDA `source` to machine code for `arch`, with IEEE arithmetic; equal sources give equal bytes.

    With PTX it is a fat binary that has PTX too, which the driver of a later device compiles.
    """
    (folder / "kernels.cu").write_text(source)
    code = f"-gencode=arch=compute_{arch[3:]},code=[{arch},compute_{arch[3:]}]"
    form = ["--fatbin", code] if with_ptx else ["--cubin", f"-arch={arch}"]
    options = [*form, "-O3", "--expt-relaxed-constexpr", "-std=c++17"]
    run_tool([settings().nvcc, *options, "-o", "kernels.bin", "kernels.cu"], folder)
    return (folder / "kernels.bin").read_bytes()
