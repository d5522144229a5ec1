"""Runs the application under uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack

import uvicorn

from service.api.app import create_app
from service.config import settings
from service.errors import InvalidOption
from service.jobs.backend import Backend

__all__ = ["run"]

_DRAIN_S = 10
"""How long an answer that is being sent may take after the server was told to stop."""


class Server(uvicorn.Server):
    """uvicorn that says where it listens, and that ends the compiles before it waits for those who wait for them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, then tells the address."""
        await super().startup(sockets=sockets)
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                print(f"listening on http://{shown}:{port}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops: running compiles end as cancelled, their callers get that answer, then connections close."""
        backend: Backend | None = getattr(self.config.app.state, "backend", None)  # type: ignore[union-attr]
        if backend is not None:
            await asyncio.to_thread(backend.stop)
        await super().shutdown(sockets=sockets)


def run(host: str, port: int, *, open_backend: Callable[[], Backend] = Backend) -> None:
    """Serves on `host` and `port` until SIGTERM or SIGINT. Raises InvalidOption when it cannot listen there."""
    with _listen(host, port) as listening:
        config = uvicorn.Config(
            create_app(open_backend),
            log_level=settings().log_level,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_DRAIN_S,
        )
        server = Server(config)
        server.run(sockets=[listening])
    if not server.started:
        sys.exit(1)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as on_failure:
            listening = on_failure.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(512)
            on_failure.pop_all()
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            remedy="Choose another --port (0 picks a free one), or another --host.",
        ) from error
    return listening
