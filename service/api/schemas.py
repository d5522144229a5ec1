"""The JSON bodies of the API, for its answers and for OpenAPI."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from relaxc.service.errors import Fault

__all__ = ["Health", "Problem", "ProblemType", "Ready", "Target", "Targets"]


class Problem(BaseModel):
    """RFC 9457. `code`, `remedy` and `fields` are the same as the command line's `--json` gives."""

    type: str = Field(examples=["/problems/unsupported-model"])
    title: str = Field(examples=["Unsupported model"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["2 operators are not supported: Frob (2 nodes)"])
    code: str = Field(examples=["unsupported-model"])
    remedy: str
    fault: Fault = Field(description="Who has to change something.")
    node: str | None = Field(description="The first node of the model that the problem is about.")
    retryable: bool = Field(description="The same request may succeed later.")
    fields: dict[str, Any] = Field(description="What the error knows: node names, limits, the stage, the log's tail.")


class ProblemType(BaseModel):
    """What a problem's `type` points to."""

    code: str
    title: str
    status: int
    remedy: str
    fault: Fault
    retryable: bool


class Target(BaseModel):
    """A machine to compile for. `target` is what to ask for; `missing` says what this machine lacks to run it."""

    target: str = Field(examples=["x86-64-v4"])
    name: str
    kind: str = Field(examples=["llvm"])
    triple: str
    mcpu: str
    features: list[str]
    cores: int
    vector_bits: int
    arch: str = Field(examples=["", "sm_90"])
    host: dict[str, Any] | None
    caches: list[int] = Field(
        default=[], description="Bytes of L1 and L2 of a core and of L3, where they were read from a machine."
    )
    missing: list[str]


class Targets(BaseModel):
    """Every named target, `auto` (the server's machine) first."""

    targets: list[Target]


class Health(BaseModel):
    """That the server answers, and what it does."""

    status: str = Field(examples=["ok"])
    version: str = Field(examples=["0.2.0"])
    running: int | None = Field(description="Jobs that run now; null while the database does not answer.")
    waiting: int | None = Field(description="Jobs that wait for a worker; null likewise.")


class Ready(BaseModel):
    """That requests are taken, the sandbox of each warm worker's jobs, and what bounds a job's processes together."""

    ready: bool
    sandbox: dict[str, dict[str, Any]] = Field(
        examples=[{"onnx": {"network": "namespace", "files": "landlock", "calls": "seccomp", "user": "own"}}]
    )
    limits: dict[str, Any] = Field(
        examples=[{"together": ["cpu", "memory", "pids"], "cgroup": "/sys/fs/cgroup/relaxc.service", "missing": ""}]
    )
