"""The HTTP API: FastAPI lives only here. `serve` runs it; `app.create_app` makes it."""

from __future__ import annotations

__all__ = ["serve"]


def serve(host: str, port: int) -> None:
    """Serves on `host` and `port` until SIGTERM or SIGINT; port 0 picks a free one, which the first line tells."""
    from service.api.server import run

    run(host, port)
