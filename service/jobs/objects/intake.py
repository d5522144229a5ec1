"""An uploaded file becomes a ModelRef, in a child: what somebody else wrote is not parsed in the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from service.process.limits import Limits
from service.process.pool import Pool
from service.process.sandbox.confinement import Confinement
from service.process.task import Task
from service.process.workspace import Workspace
from service.request import ModelFormat, ModelRef

__all__ = ["refer"]

_LIMIT_S = 120.0


def refer(pool: Pool, workspace: Workspace, path: Path, sha256: str) -> ModelRef:
    """Return the reference to the model at `path`, whose own digest is `sha256`; external data lies beside it.

    Raise UnknownFormat, ModelMalformed, ModelUnsafe, ModelTooLarge, or CompilerTimeout after two minutes.
    """
    limits = Limits.of_settings()
    limits = replace(limits, timeout_s=min(limits.timeout_s, _LIMIT_S))
    workdir = workspace.folder("refer")
    try:
        payload = {"path": str(path), "sha256": sha256}
        task = Task(
            "service.jobs.entries:refer_to_model",
            payload,
            workdir,
            limits=limits,
            confinement=Confinement(reads=(path.parent,)),
        )
        model = pool.run(task, lambda event: None)["model"]
    finally:
        workspace.remove(workdir)
    return ModelRef(ModelFormat(model["format"]), str(model["digest"]), int(model["size_bytes"]), path)
