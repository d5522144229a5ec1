"""`relaxc serve`: the HTTP API on this machine."""

from __future__ import annotations

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
    """Serve the HTTP API until Ctrl-C or SIGTERM; the first line says where.

    POST /v1/compile takes a model and returns the .so: see README.md.
    """
    from service import api
    from service.config import settings

    api.serve(settings().host if host is None else host, settings().port if port is None else port)
