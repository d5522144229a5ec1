"""A process that builds kernels for the one that compiles a model: forked before a byte of the model is read.

It gets a kernel's text, which it does not parse: it looks for the object in the kernel cache, and has what is not there
built by a fork of its own that sees this one text. So what it notes as made from a text depends on nothing else of
the model, or of the process that read it. That process cannot look into this one, nor name the file of the notes.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

from relaxc.service.cgroups import cores_left
from relaxc.service.errors import CompileFailed, CompilerCrashed, CompilerOutOfMemory, RelaxcError, in_one_line
from relaxc.service.lowering.kernel_cache import MAX_OBJECT_BYTES, Record, is_object, kernel_key, read_object
from relaxc.service.process.each_apart import each_apart
from relaxc.service.process.limits import die_with_parent, name_process
from relaxc.service.process.sandbox.kernel import prctl
from relaxc.service.process.timings import Timings, told
from relaxc.service.request import TargetSpec, canonical_json

__all__ = ["KernelBuilder", "start_builder"]

_PR_SET_DUMPABLE = 4
_MAX_TEXT_BYTES = 256 << 20
_MAX_KERNELS = 1 << 20
_MOST_S = 24 * 3600.0
_FOUND, _MADE, _FAILED, _DIED = b"f", b"m", b"e", b"d"


@dataclass(frozen=True, slots=True)
class _Config:
    """What the process that started the job says; of the cache nothing is read without a `folder`."""

    toolchain: str
    folder: Path | None
    journal: Path | None
    processes: int

    @staticmethod
    def of(data: Mapping[str, Any], workdir: Path) -> _Config:
        folder = Path(data["folder"]) if data.get("folder") else None
        journal = workdir / data["journal"] if data.get("journal") else None
        return _Config(str(data["toolchain"]), folder, journal, int(data["processes"]) or _cores())


def start_builder(data: Mapping[str, Any], workdir: Path) -> KernelBuilder:
    """Fork the builder, and return when it is apart from this process, which may read its model from then on.

    `data`: `toolchain`; `processes`, 0 for as many as there are cores; and where there is a cache its `folder` and the
    name of the `journal` to write, a file of `workdir`.
    """
    ours, theirs = Pipe()
    parent = os.getpid()
    if os.fork() == 0:
        code = 70
        try:
            ours.close()
            die_with_parent(parent)
            _live(theirs, _Config.of(data, workdir))
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    try:
        ours.recv_bytes()
    except EOFError:
        raise CompilerCrashed("the builder of kernels did not start", signal=None) from None
    return KernelBuilder(ours)


class KernelBuilder:
    """Our side of a builder."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, texts: Mapping[str, str], spec: TargetSpec, timings: Timings) -> dict[str, bytes]:
        """Return the objects of kernels by name, from their texts. Raise what the first that fails raises."""
        names = list(texts)
        with timings("objects"):
            try:
                return self._asked(names, texts, spec, timings)
            except (EOFError, ConnectionError):
                raise CompilerCrashed("the builder of kernels was ended", signal=None) from None

    def _asked(
        self, names: Sequence[str], texts: Mapping[str, str], spec: TargetSpec, timings: Timings
    ) -> dict[str, bytes]:
        self._connection.send_bytes(str(len(names)).encode())
        self._connection.send_bytes(canonical_json(spec.to_dict()).encode())
        for name in names:
            self._connection.send_bytes(texts[name].encode())
        made: dict[str, bytes] = {}
        while len(made) < len(names):
            state, index = self._connection.recv_bytes(64).split()
            said, content = self._connection.recv_bytes(), self._connection.recv_bytes()
            name = names[int(index)]
            if state in (_FAILED, _DIED):
                raise _error(name, state, said)
            timings.merge(told(json.loads(said or b"{}"), _MOST_S))
            timings.add(f"kernels.{'found' if state == _FOUND else 'made'}", 0.0)
            made[name] = content
        return made


def _error(name: str, state: bytes, said: bytes) -> RelaxcError:
    if state == _FAILED and said.startswith(b"MemoryError"):
        return CompilerOutOfMemory(f"the process that compiled kernel {name} ran out of memory", function=name)
    if state == _FAILED:
        return CompileFailed(f"kernel {name}: {said.decode(errors='replace')}", function=name)
    status = int(said)
    by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else None
    how = f"died of {by}" if by else "ended without an answer"
    return CompilerCrashed(f"the process that compiled kernel {name} {how}", signal=by, function=name)


def _live(connection: Connection, config: _Config) -> None:
    """Builds until the other end closes."""
    # Nobody of our user may look into this process or its forks from now on, or open what they have open (proc(5)).
    prctl(_PR_SET_DUMPABLE, 0)
    name_process("relaxc-kernels")
    builder = _Builder(connection, config)
    connection.send_bytes(b"ready")
    with suppress(Exception):  # or else each fork does what is done the first time
        importlib.import_module("relaxc.service.lowering.objects").warm_up()
    with suppress(EOFError, ConnectionError):
        while True:
            builder.serve()


class _Builder:
    """What the builder's process does. It holds texts and objects as bytes, and parses none."""

    def __init__(self, connection: Connection, config: _Config) -> None:
        self._connection = connection
        self._config = config
        self._toolchain = f"{config.toolchain} LLVM {_llvm_version()}"
        self._journal: BinaryIO | None = None
        if config.journal is not None:
            with suppress(OSError):  # on another machine there is none
                self._journal = config.journal.open("r+b")
                config.journal.unlink()

    def serve(self) -> None:
        """Answer one request: for each kernel its state and number, what is said of it, and the object."""
        count = int(self._connection.recv_bytes(16))
        if not 0 <= count <= _MAX_KERNELS:
            raise ConnectionError("no such number of kernels")
        target = self._connection.recv_bytes(1 << 20)
        texts = [self._connection.recv_bytes(_MAX_TEXT_BYTES) for _ in range(count)]
        keys = [kernel_key(self._toolchain, target, text) for text in texts]
        missing = [index for index in range(count) if not self._find(index, keys[index])]
        missing.sort(key=lambda index: -len(texts[index]))  # the largest first: none of them is to end alone
        died = self._make(missing, target, texts, keys, last=False)
        self._make(died, target, texts, keys, last=True)

    def _find(self, index: int, key: str) -> bool:
        folder = self._config.folder
        content = read_object(folder, key) if folder is not None else None
        if content is None:
            return False
        self._note(Record(key, None))
        self._answer(_FOUND, index, b"{}", content)
        return True

    def _make(
        self, wanted: Sequence[int], target: bytes, texts: Sequence[bytes], keys: Sequence[str], *, last: bool
    ) -> list[int]:
        """Builds these, and returns those whose process died; the `last` time that is the answer."""
        died: list[int] = []
        calls: list[Callable[[], bytes]] = [partial(_built, target, texts[index]) for index in wanted]
        for answer in each_apart(calls, at_once=self._config.processes, closed=self._own_files()):
            index = wanted[answer.index]
            state, said, content = _parts(answer.data)
            if state == _MADE:
                self._note(Record(keys[index], content))
                self._answer(_MADE, index, said, content)
            elif state == _FAILED:
                self._answer(_FAILED, index, said, b"")
            elif last:
                self._answer(_DIED, index, str(answer.status).encode(), b"")
            else:
                died.append(index)
        return died

    def _own_files(self) -> list[int]:
        return [self._connection.fileno(), *([self._journal.fileno()] if self._journal else [])]

    def _answer(self, state: bytes, index: int, said: bytes, content: bytes) -> None:
        self._connection.send_bytes(state + b" " + str(index).encode())
        self._connection.send_bytes(said)
        self._connection.send_bytes(content)

    def _note(self, record: Record) -> None:
        if self._journal is None:
            return
        try:
            record.write(self._journal)
        except OSError:  # a full disk: what is not noted is built again
            self._journal = None


def _cores() -> int:
    """How many cores this process may use."""
    return max(1, min(len(os.sched_getaffinity(0)), cores_left() or 1 << 20))


def _llvm_version() -> int:
    import tvm

    return int(tvm.get_global_func("target.llvm_version_major")())


def _built(target: bytes, text: bytes) -> bytes:
    """In a fork: what a text gives, as one answer."""
    from relaxc.service.lowering import objects

    timings = Timings()
    try:
        with timings("load"):
            kernel = objects.kernel_of(text.decode())
        content = objects.object_of(kernel, TargetSpec.from_dict(json.loads(target)), timings)
    except Exception as error:  # noqa: BLE001  # TVM and LLVM raise whatever they like
        return _whole(_FAILED, in_one_line(error).encode(), b"")
    return _whole(_MADE, json.dumps(timings.seconds).encode(), content)


def _whole(state: bytes, said: bytes, content: bytes) -> bytes:
    return state + len(said).to_bytes(8, "big") + said + content


def _parts(data: bytes | None) -> tuple[bytes, bytes, bytes]:
    """The state, what is said, and the object of an answer; `_DIED` where it is none, or has no whole object."""
    if data is None or len(data) < 9:
        return _DIED, b"", b""
    state, size = data[:1], int.from_bytes(data[1:9], "big")
    said, content = data[9 : 9 + size], data[9 + size :]
    if state == _FAILED or (state == _MADE and len(content) <= MAX_OBJECT_BYTES and is_object(content)):
        return state, said, content
    return _DIED, b"", b""
