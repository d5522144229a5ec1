"""What tuning records do for a model, found out in a child: which kernels they cover, whether their times hold."""

from __future__ import annotations

from typing import Any

from relaxc.service.compiler import places_read
from relaxc.service.config import settings
from relaxc.service.jobs.local.calls import local_backend
from relaxc.service.process.sandbox.confinement import Confinement, folders_of
from relaxc.service.process.task import Emit, Flavour, Task
from relaxc.service.request import CompileRequest

__all__ = ["cover_local", "verify_local"]


def cover_local(request: CompileRequest, on_event: Emit) -> list[dict[str, Any]]:
    """Return the rows of `Kernel.to_dict`, heaviest first, by the stages before the build. Raise a RelaxcError."""
    found: list[dict[str, Any]] = _run("relaxc.service.jobs.entries:cover_model", request, {}, on_event)["kernels"]
    return found


def verify_local(request: CompileRequest, *, sample: int, seed: int, on_event: Emit) -> dict[str, Any]:
    """Measure `sample` of the model's records again, and return what `drift.run` does. Raise a RelaxcError."""
    return _run("relaxc.service.jobs.entries:verify_records", request, {"sample": sample, "seed": seed}, on_event)


def _run(entry: str, request: CompileRequest, payload: dict[str, Any], on_event: Emit) -> dict[str, Any]:
    backend = local_backend()
    workdir = backend.workspace.folder("records")
    try:
        writes = settings().cache_dir / "tuning"  # where measurement has its own files
        writes.mkdir(parents=True, exist_ok=True)
        reads, is_gpu = folders_of(request.model.path, *places_read(request)), request.target.kind == "cuda"
        allowed = Confinement(reads, (writes,), own_user=is_gpu, gpu_in_children=is_gpu)
        task = Task(
            entry,
            {"request": request.to_dict(), **payload},
            workdir,
            Flavour(request.model.format),
            confinement=allowed,
        )
        return backend.pool.run(task, on_event)
    finally:
        backend.workspace.remove(workdir)
