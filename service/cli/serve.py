"""`relaxc serve`: the HTTP API on this machine."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from service.cli.options import Verbose

__all__ = ["serve"]


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; RELAXC_HOST if not given.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on, 0 for a free one; RELAXC_PORT if not given."),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Serve the HTTP API until Ctrl-C or SIGTERM, which is success; the first line says where.

    POST /v1/compile takes a model and returns the .so: see README.md.
    """
    from service import api
    from service.config import settings

    try:
        api.serve(settings().host if host is None else host, settings().port if port is None else port)
    except KeyboardInterrupt:  # uvicorn raises a signal again once it has stopped in order
        pass
    except SystemExit as stop:
        if stop.code != 128 + signal.SIGTERM:
            raise
