"""What a Ray task does on its node: the job in a sandboxed child, as a worker there would run it."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import RelaxcError, ServiceError
from relaxc.service.jobs.ray.shipment import is_plain_name, moved
from relaxc.service.process.limits import Limits
from relaxc.service.process.plain import open_plain
from relaxc.service.process.pool import Cancellation, Helper, Pool
from relaxc.service.process.sandbox.required import require_sandbox
from relaxc.service.process.task import Task
from relaxc.service.process.unnamed import unnamed
from relaxc.service.process.workspace import Workspace

__all__ = ["CHUNK_BYTES", "Cargo", "build", "perform"]

CHUNK_BYTES = 32 << 20
_LOG_BYTES = 64 << 20
_LOG_S = 1.0
_END_S = 120.0
_BUILD_ENTRY = "relaxc.service.jobs.entries:build_candidate"
_BUILD_FILE_BYTES = 1 << 30
_NOT_LEFT = ("log.txt", "tmp")

Cargo = Mapping[tuple[int, str], list[Any]]
"""The files of a shipment, in chunks, as references that `fetch` gives the bytes of."""


@dataclass(frozen=True, slots=True)
class _Here:
    """What this process keeps between tasks."""

    pool: Pool
    workspace: Workspace


@lru_cache(maxsize=1)
def _here() -> _Here:
    require_sandbox()
    root = settings().cache_dir / "jobs"
    root.mkdir(parents=True, exist_ok=True)
    return _Here(Pool(), Workspace(root))


def perform(
    text: Mapping[str, Any],
    cargo: Cargo,
    known: Mapping[str, bytes],
    fetch: Callable[[Any], bytes],
    helper: Helper | None = None,
) -> Iterator[dict[str, Any]]:
    """Run the task that `text` is (`shipment.Shipment.task`), with the files `known` in its folder, to its end.

    Yield, each by itself: an `event`; bytes that were added to the `log`; a chunk of a `file` that it left, as `data`;
    and last its `result`, or its `error`. Its processes are gone when this ends, also where it is closed early.
    """
    here = _here()
    workdir, inputs = here.workspace.folder("job"), here.workspace.folder("inputs")
    cancellation = Cancellation()
    try:
        roots = _unload(text, cargo, inputs, fetch)
        task = moved({**text, "payload": _adapted(text["payload"])}, roots, workdir, (settings().cache_dir / "peak",))
        for name, content in known.items():
            (workdir / name).write_bytes(content)
        ending: dict[str, Any] = {}
        yield from _told(here.pool, task, cancellation, helper, ending)
        if "result" in ending:
            yield from _left(workdir, known)
        yield ending
    finally:
        cancellation.cancel()
        here.workspace.remove(workdir)
        here.workspace.remove(inputs)


def build(question: Mapping[str, Any]) -> dict[str, Any]:
    """Build a candidate of a tuning; return the answer to who asked. What is asked is a stranger's word."""
    here = _here()
    workdir = here.workspace.folder("build")
    try:
        timeout_s, memory_bytes = float(question["limit_s"]), int(question["memory_bytes"])
        limits = Limits(min(timeout_s, 600.0), min(memory_bytes, settings().compile_memory_bytes), _BUILD_FILE_BYTES)
        task = Task(_BUILD_ENTRY, dict(question), workdir, limits=limits)
        return unnamed(here.pool.run(task, lambda event: None), task)
    except RelaxcError as error:
        kind = "hung" if error.code == "compiler-timeout" else "crashed"
        return {"kind": kind, "detail": error.message}
    except (TypeError, ValueError, KeyError) as error:
        return {"kind": "build-failed", "detail": f"what is asked is no build: {error}"[:300]}
    finally:
        here.workspace.remove(workdir)


def _adapted(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload without the kernel cache of who sent it, which is on their disk; its builder counts our cores."""
    kernels = payload.get("kernels")
    return payload if kernels is None else {**payload, "kernels": {"toolchain": kernels["toolchain"], "processes": 0}}


def _unload(text: Mapping[str, Any], cargo: Cargo, inputs: Path, fetch: Callable[[Any], bytes]) -> dict[int, Path]:
    """Write the files of a shipment; return where each root is."""
    roots: dict[int, Path] = {}
    for (number, rest), chunks in cargo.items():
        folder = inputs / str(number)
        path = folder / (rest or "file")
        if not path.is_relative_to(folder) or ".." in path.parts:
            raise ServiceError(f"a shipment has a file {rest!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for chunk in chunks:
                file.write(fetch(chunk))
        roots[number] = folder if rest else path
    return roots


def _told(
    pool: Pool, task: Task, cancellation: Cancellation, helper: Helper | None, ending: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """What the task tells while it runs, and what it prints; how it ended is in `ending` then."""
    said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            found = pool.run(task, said.put, cancellation=cancellation, helper=helper)
            ending["result"] = unnamed(found, task)
        except RelaxcError as error:
            ending["error"] = error.to_dict()
        except Exception as error:  # noqa: BLE001  # a bug of ours, which the job's owner hears of as such
            ending["error"] = ServiceError(f"{type(error).__name__}: {error}").to_dict()
        finally:
            said.put(None)

    log = _Log(task.log_path)
    thread = threading.Thread(target=run, name="task", daemon=True)
    thread.start()
    try:
        while True:
            try:
                event = said.get(timeout=_LOG_S)
            except queue.Empty:
                yield from log.more()
                continue
            if event is None:
                yield from log.more()
                return
            yield {"event": event}
    finally:
        cancellation.cancel()
        thread.join(_END_S)


class _Log:
    """What a job prints, as far as it has not been told."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def more(self) -> Iterator[dict[str, Any]]:
        """Yield what was added since the last call."""
        file = open_plain(self._path)
        if file is None:
            return
        with file:
            file.seek(self._at)
            added = file.read(max(0, min(CHUNK_BYTES, _LOG_BYTES - self._at)))
        if added:
            self._at += len(added)
            yield {"log": added}


def _left(workdir: Path, known: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """The files that a job left in its folder, which are plain ones; folders, links and the rest are none."""
    with os.scandir(workdir) as listed:
        names = sorted(entry.name for entry in listed)
    for name in names:
        if name in known or name in _NOT_LEFT or not is_plain_name(name):
            continue
        file = open_plain(workdir / name)
        if file is None:
            continue
        with contextlib.closing(file):
            chunk = file.read(CHUNK_BYTES)
            while True:
                yield {"file": name, "data": chunk}
                chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    break
