"""Runs the application under uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from relaxc.service.api.app import create_app
from relaxc.service.api.auth import Anonymous
from relaxc.service.api.connections import Connection
from relaxc.service.api.drain import Drain
from relaxc.service.api.listening import Tls, is_loopback, listen
from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.objects.keys import open_keys
from relaxc.service.process.sandbox.required import require_sandbox

__all__ = ["run"]

_SWITCH_S = 5e-4
"""How long a thread may keep Python's lock: a short call waits as long for each busy thread beside it."""

_LAST_ANSWERS_S = 10
"""How long an answer that is being sent may take after the jobs have ended."""


class Server(uvicorn.Server):
    """uvicorn that says where it listens, and that on SIGTERM lets running jobs end before it stops.

    SIGINT, or a second SIGTERM, stops at once: what runs is queued again.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app
        self._drain: Drain = app.state.drain
        self._stopping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell the address."""
        await super().startup(sockets=sockets)
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                print(f"listening on {'https' if self.config.is_ssl else 'http'}://{shown}:{port}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain, or stop."""
        if sig == signal.SIGTERM and self._drain.since is None and self.started:
            self._captured_signals.append(sig)  # raised again at the end, as uvicorn does with every signal
            self._drain.begin()
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Look ten times a second, and stop when no job runs any more, or their time is over."""
        if self._drain.since is not None:
            if self._stopping is None:
                self._stopping = asyncio.create_task(self._stop_jobs(settings().drain_s))
            self.should_exit = self.should_exit or self._stopping.done()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: what still runs ends, who listens to it is told, then connections close."""
        if self._backend is not None:
            self._backend.hurry()
        await (self._stopping or self._stop_jobs(0.0))
        await super().shutdown(sockets=sockets)

    async def _stop_jobs(self, drain_s: float) -> None:
        if self._backend is not None:
            await asyncio.to_thread(self._backend.stop, drain_s)

    @property
    def _backend(self) -> Backend | None:
        """None where it could not be opened."""
        return getattr(self._app.state, "backend", None)


def run(
    host: str,
    port: int,
    *,
    open_backend: Callable[[], Backend] = Backend,
    tls: Tls | None = None,
    no_auth: bool = False,
) -> None:
    """Serve on `host` and `port` until SIGTERM or SIGINT.

    Raise InvalidOption when it cannot listen there, when `tls` cannot be used, and when others than this machine
    could ask although there are no keys (`no_auth` serves them all the same).
    """
    if tls is not None:
        tls.check()
    with listen(host, port) as listening:
        if not is_loopback(listening):
            require_sandbox()
        app = create_app(open_backend, anonymous=_anonymous(listening, no_auth=no_auth))
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            forwarded_allow_ips=settings().trusted_proxies,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        )
        sys.setswitchinterval(_SWITCH_S)
        server = Server(config, app)
        server.run(sockets=[listening])
    if not server.started:
        sys.exit(1)


def _anonymous(listening: socket.socket, *, no_auth: bool) -> Anonymous:
    if no_auth:
        return Anonymous.ALWAYS
    if is_loopback(listening):
        return Anonymous.WITHOUT_KEYS
    with open_keys() as keys:
        if not keys.any_usable():
            raise InvalidOption(
                f"{listening.getsockname()[0]} can be reached by others, and there is no key that they would need",
                remedy="Make one: relaxc keys create NAME --scope admin. Or say --no-auth, and let everybody in.",
                option="--host",
            )
    return Anonymous.NEVER
