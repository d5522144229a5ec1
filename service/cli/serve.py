"""`relaxc serve`: the HTTP API on this machine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from relaxc.service.cli.options import Verbose
from relaxc.service.errors import InvalidOption

__all__ = ["serve"]


def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on, 0.0.0.0 or :: for all; RELAXC_HOST if not given (127.0.0.1)."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on, 0 for a free one; RELAXC_PORT if not given (8000)."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate and what signed it: serve HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with the certificate's key.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Jobs other than tunings at once, 0 for an API alone; RELAXC_WORKERS if not given (1)."
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Serve everybody who can reach the address, with every right.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Serve the HTTP API and its web page until Ctrl-C or SIGTERM; the first line says where.

    On loopback, no key is needed until you make the first one. For a network, make one (`relaxc keys create NAME
    --scope admin`), then `relaxc serve --host 0.0.0.0 --tls-cert CERT.pem --tls-key KEY.pem`, or leave TLS to a proxy
    before it: docs/deploying.md has both, with a systemd unit.

    With --workers 0 the server runs no jobs; `relaxc worker` runs them elsewhere. It still checks uploads, in separate
    processes.

    SIGTERM drains: the server takes no new work, running jobs get RELAXC_DRAIN_S to finish, and queued jobs stay in the
    database for the next start. A second SIGTERM stops at once. /healthz, /readyz and /metrics are for what watches it;
    RELAXC_LOG_FORMAT=json for what collects its log; docs/settings.md lists every setting, docs/api.md every call.
    """
    from relaxc.service import api
    from relaxc.service.config import settings

    if (tls_cert is None) != (tls_key is None):
        raise InvalidOption("--tls-cert and --tls-key go together", option="--tls-key" if tls_cert else "--tls-cert")
    try:
        api.serve(
            settings().host if host is None else host,
            settings().port if port is None else port,
            tls=None if tls_cert is None or tls_key is None else (tls_cert, tls_key),
            workers=workers,
            no_auth=no_auth,
            log_level="debug" if verbose else None,
        )
    except KeyboardInterrupt:  # uvicorn raises a signal again once it has stopped in order
        pass
    except SystemExit as stop:
        if stop.code != 128 + signal.SIGTERM:
            raise
