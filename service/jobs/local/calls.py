"""A compile for somebody in this process: the command line, or Python code. The same path as over HTTP."""

from __future__ import annotations

import atexit
import contextlib
import os
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from relaxc.service.artifact.compiled import CompiledArtifact, EarlyCopy, check_output
from relaxc.service.artifact.entry import Entry
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.compiler import prepare
from relaxc.service.errors import ArtifactCorrupt, ArtifactError, InvalidOption, RelaxcError
from relaxc.service.frontend import digest, former_digest, identify
from relaxc.service.jobs.job import Event, Job, Origin
from relaxc.service.jobs.local.backend import LocalBackend
from relaxc.service.process.sandbox.confinement import Confinement, folders_of
from relaxc.service.process.task import Emit, Flavour, Task
from relaxc.service.request import CompileOptions, CompileRequest, ModelFormat

__all__ = ["compile", "compile_local", "inspect_local", "local_backend", "verify_local", "warm_for"]

# A program that asks for more than it lets run waits; `busy` is for a server's clients.
_NO_QUEUE_LIMIT = 1 << 30


def compile(
    model: Path | str | bytes,
    *,
    target: str = "auto",
    options: CompileOptions | None = None,
    output: Path | str | None = None,
    on_event: Emit | None = None,
) -> CompiledArtifact:
    """Compile a model file, or the bytes of one, in a child process; equal requests come from the store.

    `output` is where the artifact is copied to (a sidecar with weights goes beside it). `on_event` gets the events
    of docs/stages.md, in this thread. Raise a RelaxcError of any family but `InputError`.
    """
    if isinstance(model, bytes):
        backend = local_backend()
        folder = backend.workspace.folder("model")
        try:
            path = folder / "model"
            path.write_bytes(model)
            return compile(path, target=target, options=options, output=output, on_event=on_event)
        finally:
            backend.workspace.remove(folder)
    warm_for(Path(model))
    request = prepare(model, target=target, options=options)
    if output is not None:
        check_output(Path(output), [file for file, _ in request.model.seen])
    return compile_local(request, on_event, output=None if output is None else Path(output))


def warm_for(model: Path) -> None:
    """Start the worker for a model: it imports TVM on another core while this process looks the request up.

    What is wrong with the file is left to who reads it.
    """
    with contextlib.suppress(RelaxcError, OSError):
        local_backend().pool.warm(Flavour(identify(model)))


def compile_local(
    request: CompileRequest,
    on_event: Emit | None = None,
    *,
    output: Path | None = None,
    dump_dir: Path | None = None,
    force: bool = False,
) -> CompiledArtifact:
    """Return the artifact of `request`, copied to `output`; with `dump_dir` each stage writes there what it saw.

    What the store has and turns out to be damaged is removed, and compiled again. With `dump_dir` or `force` it is
    compiled even if the store has it. Ctrl-C, or an exception of `on_event`, ends the compile and every process of it.
    """
    if dump_dir is not None:
        _make(dump_dir)
    early = None if output is None else EarlyCopy(output)
    try:
        return _compiled(request, on_event, output, early, dump_dir, force)
    finally:
        if early is not None:
            early.drop()


def _compiled(
    request: CompileRequest,
    on_event: Emit | None,
    output: Path | None,
    early: EarlyCopy | None,
    dump_dir: Path | None,
    force: bool,
) -> CompiledArtifact:
    finished = (lambda files: None) if early is None else early.begin
    submitted = local_backend().queue.submit(request, dump_dir=dump_dir, force=force, finished=finished)
    try:
        entry = _follow(submitted.job, on_event or (lambda event: None))
    except BaseException:
        submitted.job.cancel()
        submitted.job.wait()
        raise
    cached = submitted.origin is Origin.HIT
    try:
        made = _artifact(entry, cached=cached)
        return made if early is None else early.finish(made)
    except ArtifactCorrupt:
        if not cached:
            raise
        with contextlib.suppress(ArtifactError):
            local_backend().store.verify(entry.digest)  # which removes it
        return compile_local(request, on_event, output=output, force=True)


def _make(folder: Path) -> None:
    """Jobs write into folders that exist: the sandbox cannot open what does not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption(f"cannot make {folder}: {error.strerror}", option="dump") from error


def inspect_local(path: Path, format: ModelFormat) -> dict[str, Any]:
    """Run `frontend.inspect` in a child, as `ModelInfo.to_dict()`: an importer that crashes takes nobody with it."""
    backend = local_backend()
    workdir = backend.workspace.folder("inspect")
    try:
        payload = {"path": str(path.resolve()), "format": format.value}
        allowed = Confinement(reads=folders_of(path), own_user=False)
        task = Task("relaxc.service.jobs.entries:inspect_model", payload, workdir, Flavour(format), confinement=allowed)
        info: dict[str, Any] = backend.pool.run(task, lambda event: None)["info"]
        return info
    finally:
        backend.workspace.remove(workdir)


def verify_local(artifact: Path, model: Path, on_event: Emit, *, samples: Path | None = None) -> dict[str, Any]:
    """Compare an artifact with the model that it was compiled from, in a child, on drawn inputs and on `samples`, an
    .npz as `--calibrate` takes it. Return what `verify_artifact` reports. Raise InvalidOption for another model.
    """
    backend, format = local_backend(), identify(model)
    workdir = backend.workspace.folder("verify")
    try:
        reference = digest(model, format)
        payload = {
            "artifact": str(artifact.resolve()),
            "model": {
                "format": format.value,
                "digest": reference.digest,
                "size_bytes": reference.size_bytes,
                "path": str(model.resolve()),
            },
            "aliases": [former_digest(model, format)],
            "samples": str(samples.resolve()) if samples else None,
        }
        reads = folders_of(artifact, model, *([samples] if samples else []))
        allowed = Confinement(reads=reads, own_user=False)
        task = Task(
            "relaxc.service.jobs.entries:verify_artifact", payload, workdir, Flavour(format), confinement=allowed
        )
        report: dict[str, Any] = backend.pool.run(task, on_event)["report"]
        return report
    finally:
        backend.workspace.remove(workdir)


def _follow(job: Job, on_event: Emit) -> Entry:
    """Hands events over to this thread until the job is at its end."""
    events: SimpleQueue[Event | None] = SimpleQueue()
    job.listen(events.put)
    job.done.add_done_callback(lambda _: events.put(None))
    while (event := events.get()) is not None:
        if event.data.get("event") != "state":
            on_event(event.data)
    return job.result()


def _artifact(entry: Entry, *, cached: bool) -> CompiledArtifact:
    return CompiledArtifact(
        entry.digest, entry.path, tuple(entry.paths), Manifest.read(entry.path), entry.build, cached
    )


def local_backend() -> LocalBackend:
    """Return this process's own backend; its workers stay warm until the process ends."""
    return _backend_of(os.getpid())


@lru_cache(maxsize=1)
def _backend_of(pid: int) -> LocalBackend:  # a fork of this process needs one of its own
    backend = LocalBackend(queue_max=_NO_QUEUE_LIMIT)
    atexit.register(backend.close)
    return backend
