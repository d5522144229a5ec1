"""How a call reaches the backend of its application."""

from __future__ import annotations

from fastapi import Request

from relaxc.service.jobs.backend import Backend

__all__ = ["backend_of"]


def backend_of(request: Request) -> Backend:
    """Return the backend that the application opened."""
    backend: Backend = request.app.state.backend
    return backend
