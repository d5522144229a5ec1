"""How a job's process ended, as one of our errors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, BinaryIO

from relaxc.service.errors import (
    Cancelled,
    CompileError,
    CompilerCrashed,
    CompilerOutOfDisk,
    CompilerOutOfMemory,
    CompilerTimeout,
    RelaxcError,
    StoreUnwritable,
)
from relaxc.service.process.child import EXIT_OUT_OF_MEMORY
from relaxc.service.process.guard import Ending
from relaxc.service.process.limits import is_full, most_processes
from relaxc.service.process.plain import open_plain
from relaxc.service.process.quota import CROWD, FULL, HEAVY, OVER
from relaxc.service.process.task import Task

__all__ = ["error_of_ending", "log_tail", "tail_of", "with_context"]

_TAIL_LINES = 40
_TAIL_BYTES = 64 << 10
_LINE_CHARS = 1000
# A limit hit shows as one of these where the code does not look at what malloc gave.
_SIGNALS_OF_NO_MEMORY = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}
_SAYS_NO_MEMORY = ("bad_alloc", "out of memory", "Cannot allocate memory", "MemoryError")
_NEAR_THE_LIMIT = 0.9


def log_tail(path: Path) -> list[str]:
    """Return `tail_of` the log of a job, which may have put something else there; none without a log."""
    file = open_plain(path)
    if file is None:
        return []
    with file:
        return tail_of(file)


def tail_of(file: BinaryIO) -> list[str]:
    """Return the last 40 lines of a log, or of one that a crash ended, those around its Python stack."""
    file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
    lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    # faulthandler's line; TVM's own handler prints the C++ stack after it, which is long.
    crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error:")), None)
    end = len(lines) if crash is None else min(len(lines), crash + _TAIL_LINES // 4 * 3)
    return [line[:_LINE_CHARS] for line in lines[max(0, end - _TAIL_LINES) : end]]


def with_context(error: RelaxcError, task: Task, stage: str | None) -> RelaxcError:
    """Return `error`, if it is the compiler's failure, with what a bug report needs: `stage`, `log_tail`, `repro`."""
    if isinstance(error, CompileError):
        error.fields.setdefault("stage", stage)
        error.fields.setdefault("log_tail", log_tail(task.log_path))
        error.fields.setdefault("repro", task.repro)
    return error


def error_of_ending(ending: Ending | None, task: Task, stage: str | None) -> RelaxcError:
    """Return the error of a job that ended without saying why; `ending` None means that its guard died as well."""
    where = f" in stage {stage}" if stage else ""
    fields: dict[str, Any] = {"stage": stage, "log_tail": log_tail(task.log_path), "repro": task.repro}
    if ending is None:
        return CompilerCrashed(f"the compiling process and its guard were killed{where}", signal="SIGKILL", **fields)
    if ending.cause == "timeout":
        limit = task.limits.timeout_s
        return CompilerTimeout(f"the compile passed its limit of {limit:g} s{where}", limit_s=limit, **fields)
    if ending.cause == "hangup":
        return Cancelled(f"the compile was cancelled{where}", **fields)
    if ending.cause == OVER:
        limit_bytes = task.limits.disk_bytes
        says = f"the job's files passed their limit of {limit_bytes} bytes, or cannot be counted{where}"
        return CompilerOutOfDisk(says, limit_bytes=limit_bytes, **fields)
    if ending.cause == FULL:
        return StoreUnwritable(f"the disk had too little left for a job that takes much of it{where}")
    if ending.cause == CROWD:
        return CompilerCrashed(f"the compiling process had over {most_processes()} processes{where}", **fields)
    if ending.cause == HEAVY or _ran_out_of_memory(ending, task, fields["log_tail"]):
        limit_bytes = task.limits.memory_bytes
        return CompilerOutOfMemory(
            f"the compiling process ran out of memory{where}",
            limit_bytes=limit_bytes,
            max_rss_bytes=ending.max_rss_bytes,
            signal=_name(ending.signal),
            **fields,
        )
    if is_full(task.workdir):
        return StoreUnwritable(f"the disk is full, and the compiling process has ended{where}")
    how = f"died of {_name(ending.signal)}" if ending.signal else f"left with exit code {ending.exit_code}"
    return CompilerCrashed(
        f"the compiling process {how}{where}", signal=_name(ending.signal), exit_code=ending.exit_code, **fields
    )


def _name(number: int) -> str | None:
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return f"signal {number}"


def _ran_out_of_memory(ending: Ending, task: Task, tail: list[str]) -> bool:
    """Whether memory is why it ended; of a SIGKILL, only the kernel's own count of OOM kills can tell: that of the
    job's control group, or else of the whole machine."""
    if ending.exit_code == EXIT_OUT_OF_MEMORY:
        return True
    if ending.signal == signal.SIGKILL:
        return ending.oom_kills > 0
    near = ending.max_rss_bytes > _NEAR_THE_LIMIT * task.limits.memory_bytes
    says = any(text in line for line in tail[-_TAIL_LINES:] for text in _SAYS_NO_MEMORY)
    return ending.signal in _SIGNALS_OF_NO_MEMORY and (near or says)
