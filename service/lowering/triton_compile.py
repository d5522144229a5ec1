"""Triton kernels to machine code: each configuration that was chosen, in one child process of Triton's own."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxc.schedules.cuda.triton_call import Launch, TritonCall
from relaxc.service.config import settings
from relaxc.service.errors import CompileFailed, PluginError, ToolMissing
from relaxc.service.lowering.tools import run_tool
from relaxc.service.machine import version_of

__all__ = ["Binary", "Job", "compile_kernels"]

_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
_POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "int32": "*i32", "int64": "*i64"}
_POINTER_BITS = 64
_BITS = {"i32": 32, "u32": 32, "i64": 64, "u64": 64, "fp32": 32}
_SHOWN_LINES = 40
_SHARED_KIB = {70: 96, 72: 96, 75: 64, 80: 163, 87: 163, 90: 227, 100: 227, 101: 227, 103: 227}
"""What a block may have, by compute capability (CUDA Programming Guide, technical specifications)."""
_LEAST_SHARED_KIB = 99
"""That of every other device since sm_86."""
_FRONT_END = re.compile(r"\w+: at \d+:\d+:$")
"""How the message of a CompilationError begins; an excerpt of the source and then the reason follow."""


@dataclass(frozen=True)
class Job:
    """A call and the launch of it to compile, over tensors of these dtypes."""

    call: TritonCall
    launch: Launch
    dtypes: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """The name of the device function: jobs of equal code have equal names, and others do not meet."""
        classes = [[each["type"], _class_of(each["value"])] for each in self.arguments]
        text = [self.call.source, self.call.function, self.call.triton]
        what = json.dumps([*text, classes, dict(self.launch.constexprs), dict(self.launch.options)], sort_keys=True)
        return f"triton_{self.call.function}_{hashlib.sha256(what.encode()).hexdigest()[:16]}"

    @property
    def arguments(self) -> list[dict[str, Any]]:
        """What the kernel gets, by type and value, which of a tensor is None."""
        return [
            {"type": _type(each.value), "value": each.value}
            if each.tensor is None
            else {"type": _POINTERS[self.dtypes[each.tensor]], "value": None}
            for each in self.call.arguments
        ]


@dataclass(frozen=True)
class Binary:
    """A kernel's machine code, which `cuModuleLoadData` takes, and how it is launched.

    `given` are the arguments that it takes at run time, by number; `added` is how many null pointers follow them.
    """

    symbol: str
    image: bytes
    ptx: str
    threads: int
    shared_bytes: int
    given: tuple[int, ...]
    passed: tuple[str, ...]
    added: int


def compile_kernels(jobs: Sequence[Job], arch: str, folder: Path) -> list[Binary]:
    """Return the machine code of each job for a device of `arch`.

    `folder` gets all that Triton writes. Code for an architecture without an `a` comes with PTX.
    Raise ToolMissing where Triton of that version, or fatbinary, is missing, PluginError with the kernel's name for
    what it says.
    """
    folder.mkdir(parents=True)
    folder = folder.resolve()
    asked = [_described(job, arch, folder) for job in jobs]
    (folder / "jobs.json").write_text(json.dumps(asked))
    _run([job.call for job in jobs], folder)
    results = json.loads((folder / "results.json").read_text())
    return [_binary(job, found, arch, folder, at) for at, (job, found) in enumerate(zip(jobs, results, strict=True))]


def _described(job: Job, arch: str, folder: Path) -> dict[str, Any]:
    """A job as its process gets it, the kernel's file written."""
    digest = hashlib.sha256(job.call.source.encode()).hexdigest()[:16]
    file = f"{re.sub('[^A-Za-z0-9_]', '_', Path(job.call.file).stem)}_{digest}.py"
    (folder / file).write_text(job.call.source)
    return {
        "file": file,
        "function": job.call.function,
        "symbol": job.symbol,
        "arch": int(arch[3:].removesuffix("a")),
        "arguments": job.arguments,
        "constexprs": dict(job.launch.constexprs),
        "options": dict(job.launch.options),
    }


def _class_of(value: float | None) -> tuple[bool, bool] | None:
    """What Triton specializes a whole number by."""
    return (value == 1, value % 16 == 0) if isinstance(value, int) else None


def _type(value: float | None) -> str:
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= (value or 0) < 2**31 else "i64"


def _run(calls: Sequence[TritonCall], folder: Path) -> None:
    """Runs Triton's process, whose caches and temporary files stay in `folder`."""
    names = ", ".join(dict.fromkeys(call.name for call in calls))
    found = importlib.util.find_spec("triton")  # of a package at the top: finds it, and runs nothing of it
    if found is None or not found.submodule_search_locations:
        raise ToolMissing(
            f"Triton is not installed, which compiles {names}",
            tool="triton",
            remedy="Install it: pip install 'relaxc[triton]'.",
        )
    here = version_of("triton")
    if other := next((each for each in calls if each.triton != here), None):
        raise ToolMissing(
            f"{other.name} is for Triton {other.triton}, and {here} is installed",
            tool="triton",
            remedy="Compile or tune the model again here, or install that version.",
        )
    site = str(Path(found.submodule_search_locations[0]).parent)
    places = dict.fromkeys(("HOME", "TMPDIR", "TRITON_HOME", "TRITON_CACHE_DIR"), str(folder))
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    command = [sys.executable, "-I", "-B", str(Path(__file__).with_name("triton_worker.py")), str(folder), site]
    environment = {**kept, **places, "TRITON_DISABLE_LINE_INFO": "1"}  # with it the code would name the folder
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / "results.json").is_file():
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise CompileFailed(
            f"Triton's process, which compiles {names}, ended with status {done.returncode}: {said[-1]}",
            output="\n".join(said[-_SHOWN_LINES:]),
        )


def _binary(job: Job, found: dict[str, Any], arch: str, folder: Path, at: int) -> Binary:
    name = f"triton: {job.call.name}"
    shared_bytes = _SHARED_KIB.get(int(arch[3:].removesuffix("a")), _LEAST_SHARED_KIB) * 1024
    if "error" in found:
        raise _refused(job.call, found)
    if found["shared"] > shared_bytes:
        raise PluginError(
            f"{name} needs {found['shared']} bytes of shared memory for a block, and {arch} has {shared_bytes}",
            kernel=job.call.name,
            remedy="Give it smaller blocks, or fewer num_stages.",
        )
    if found["scratch"]:
        raise PluginError(
            f"{name} needs {found['scratch']} bytes of global memory of its own, which is not supported",
            kernel=job.call.name,
            remedy="Make no tensor descriptors in the kernel, and give it no profiler.",
        )
    passed, bits = found["passed"], found["parameters"]
    wanted = [_BITS.get(each, _POINTER_BITS) for each in passed]
    if bits[: len(wanted)] != wanted or set(bits[len(wanted) :]) - {_POINTER_BITS}:
        raise CompileFailed(f"{name}: Triton gave it parameters of {bits} bits for {passed}", kernel=job.call.name)
    return Binary(
        job.symbol,
        _image(folder, at, arch),
        (folder / f"{at}.ptx").read_text(),
        found["threads"] or 32 * job.launch.options["num_warps"],
        found["shared"],
        tuple(found["given"]),
        tuple(passed),
        len(bits) - len(wanted),
    )


def _refused(call: TritonCall, found: dict[str, Any]) -> PluginError:
    """What Triton says of the kernel: one line of it, with the line of the file, and the first ones in `output`."""
    lines = found["error"].strip().splitlines()
    where = f"{call.file}:{found['line']}: " if found["line"] else ""
    reason = lines[-1] if _FRONT_END.match(lines[0]) else lines[0]
    return PluginError(
        f"triton: {call.name} does not compile: {where}{reason.strip()}",
        kernel=call.name,
        line=found["line"],
        output="\n".join(lines[:_SHOWN_LINES]),
    )


def _image(folder: Path, at: int, arch: str) -> bytes:
    """The machine code, beside PTX where a later device can take that."""
    if arch.endswith("a"):
        return (folder / f"{at}.cubin").read_bytes()
    number, beside = arch[3:], shutil.which(settings().nvcc)
    program = Path(beside).with_name("fatbinary") if beside else None
    parts = [f"--image3=kind={kind},sm={number},file={at}.{end}" for kind, end in (("elf", "cubin"), ("ptx", "ptx"))]
    tool = str(program) if program is not None and program.exists() else "fatbinary"
    run_tool([tool, "-64", f"--create={at}.fatbin", *parts], folder)
    return (folder / f"{at}.fatbin").read_bytes()
