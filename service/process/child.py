"""The job's own process: limits, a private folder, a log; then the entry, and what came of it as an event."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import importlib
import os
import re
import resource
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from relaxc.service.errors import (
    CompileError,
    CompileFailed,
    CompilerOutOfDisk,
    CompilerOutOfMemory,
    RelaxcError,
    ServiceError,
    StoreUnwritable,
)
from relaxc.service.process.limits import Limits, die_with_parent, is_full, name_process
from relaxc.service.process.line import Line
from relaxc.service.process.sandbox.confine import confine
from relaxc.service.process.sandbox.confinement import Confinement, Place

__all__ = ["EXIT_OUT_OF_MEMORY", "run_child"]

EXIT_OUT_OF_MEMORY = 71
"""The exit code of a job that had not even the memory left to say so."""

# How C++, LLVM, the linker and g++ say it.
_OUT_OF_MEMORY = re.compile(r"bad_alloc|out of memory|Cannot allocate memory|bad_array_new_length", re.IGNORECASE)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)


def run_child(channel: socket.socket, spec: dict[str, Any], place: Place) -> NoReturn:
    """Run the task `spec` and leave the process; events, and last `result` or `error`, go to `channel`."""
    workdir = Path(spec["workdir"])
    _move_in(workdir, channel)
    Limits(**spec["limits"]).apply()
    emit = Line(channel)
    try:
        error = _confine(spec, workdir, place) or _call(spec, workdir, emit)
        if error is not None:
            emit({"event": "error", "error": error.to_dict()})
        with contextlib.suppress(OSError):  # the log is on the job's disk, which may be full
            sys.stdout.flush()
            sys.stderr.flush()
    except MemoryError:
        os._exit(EXIT_OUT_OF_MEMORY)
    # No atexit handlers and no destructors: tvm and torch tear down threads that the fork does not have.
    os._exit(0)


def _move_in(workdir: Path, channel: socket.socket) -> None:
    os.setsid()
    name_process("relaxc-job")
    os.chdir(workdir)
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for source, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
    os.close(log)
    os.close(null)
    faulthandler.enable(all_threads=False)
    (workdir / "tmp").mkdir(exist_ok=True)
    os.environ["TMPDIR"] = os.environ["HOME"] = tempfile.tempdir = str(workdir / "tmp")
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _confine(spec: dict[str, Any], workdir: Path, place: Place) -> RelaxcError | None:
    parent = os.getppid()
    try:
        confine(workdir, Confinement.from_dict(spec["confinement"]), place)
    except RelaxcError as error:
        return error
    except OSError as error:
        _print_trace()
        return ServiceError(f"the job's sandbox cannot be set up: {error}")
    die_with_parent(parent)  # another user id, or other rights, have undone it
    return None


def _call(spec: dict[str, Any], workdir: Path, emit: Callable[[dict[str, Any]], None]) -> RelaxcError | None:
    try:
        _entry(spec["entry"])(spec["payload"], workdir, emit)
    except MemoryError:
        return CompilerOutOfMemory("the compiling process passed its memory limit")
    except RelaxcError as error:
        if isinstance(error, CompileError):
            _print_trace()
        return _true_cause(error)
    except Exception as error:  # noqa: BLE001  # the boundary of the process: a bug becomes our documented error
        _print_trace()
        return _true_cause(CompileFailed(f"{type(error).__name__}: {error}"), error)
    return None


def _print_trace() -> None:
    with contextlib.suppress(OSError):
        traceback.print_exc()


def _entry(name: str) -> Callable[[dict[str, Any], Path, Callable[[dict[str, Any]], None]], None]:
    module, _, function = name.partition(":")
    entry: Callable[[dict[str, Any], Path, Callable[[dict[str, Any]], None]], None]
    entry = getattr(importlib.import_module(module), function)
    return entry


def _true_cause(error: RelaxcError, cause: BaseException | None = None) -> RelaxcError:
    """A 'compile failed' that in truth ran into one of our limits, as the error of that limit."""
    if not isinstance(error, CompileFailed):
        return error
    for link in _chain(cause or error):
        if isinstance(link, MemoryError) or _OUT_OF_MEMORY.search(str(link)):
            return CompilerOutOfMemory(f"out of memory: {error.message}", **error.fields)
        if isinstance(link, OSError) and link.errno == errno.EFBIG:
            remedy = "Raise RELAXC_COMPILE_FILE_BYTES."
            return CompilerOutOfDisk(f"a file passed its size limit: {error.message}", remedy=remedy, **error.fields)
        if _DISK_FULL.search(str(link)):
            return _disk_is_full(error)
    # A tool of the build says of it what it likes, and is told of as having failed.
    return _disk_is_full(error) if is_full(Path.cwd()) else error


def _disk_is_full(error: RelaxcError) -> RelaxcError:
    remedy = "Free space in RELAXC_CACHE_DIR, where jobs have their folders."
    return StoreUnwritable(f"the disk is full: {error.message}", remedy=remedy, **error.fields)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
