"""Servers and workers as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from relaxc.service.api.objects import Time

__all__ = ["Workers"]


class WorkerGpu(BaseModel):
    """A CUDA device."""

    name: str
    capability: str = Field(examples=["9.0"])


class WorkerDevice(BaseModel):
    """Phones or boards that it measures tunings on, by TVM's RPC: what they are registered as, and what they run."""

    key: str = Field(examples=["rpi5"])
    target: str = Field(examples=["neoverse-n1"])


class WorkerMachine(BaseModel):
    """What a machine says that it is; `kind` is what its targets are called."""

    kind: str = Field(examples=["znver4 cuda-sm90"])
    cpu: str
    arch: str = Field(examples=["x86_64"])
    family: str = Field(examples=["znver4"])
    features: list[str]
    cores: int
    memory_bytes: int
    gpus: list[WorkerGpu]
    tools: list[str]
    versions: dict[str, str]
    devices: list[WorkerDevice]


class WorkerSlots(BaseModel):
    """How many run there at once."""

    jobs: int
    tunings: int


class ServiceWorker(BaseModel):
    """A process of the service: `server` answers calls and may run jobs too, `worker` runs jobs only."""

    id: str
    role: Literal["server", "worker"]
    state: Literal["alive", "silent"] = Field(description="silent: it has missed heartbeats, and is dead or soon so.")
    host: str
    pid: int
    started: Time
    heartbeat: Time
    slots: WorkerSlots
    running: int = Field(description="Jobs that run there.")
    machine: WorkerMachine | None = Field(description="null for a process of an earlier version.")


class Workers(BaseModel):
    """Every server and worker of the database, the oldest first."""

    workers: list[ServiceWorker]
