"""`torch.compile(m, backend="relaxc")`, by this name once it is imported or relaxc is installed, and what it did."""

from __future__ import annotations

from torch._dynamo import list_backends, register_backend

from relaxc.service.torch_backend.backend import RunsEagerly, backend, report

__all__ = ["RunsEagerly", "backend", "report"]

if "relaxc" not in list_backends(exclude_tags=()):
    register_backend(backend, name="relaxc")
