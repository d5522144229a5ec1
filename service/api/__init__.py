"""The HTTP API: FastAPI lives only here. `serve` runs it; `app.create_app` makes it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

__all__ = ["serve"]


def serve(
    host: str,
    port: int,
    *,
    tls: tuple[Path, Path] | None = None,
    workers: int | None = None,
    no_auth: bool = False,
    log_level: str | None = None,
) -> None:
    """Serve on `host` and `port` until SIGTERM or SIGINT; port 0 picks a free one, which the first line tells.

    `workers` 0 is an API alone, None the setting's. `tls` is a certificate and its key (PEM files); `log_level` None is
    the setting's. Raise InvalidOption as `server.run` does.
    """
    from relaxc.service.api.logs import open_log
    from relaxc.service.config import settings

    open_log(log_level or settings().log_level, settings().log_format)

    from relaxc.service.api.listening import Tls
    from relaxc.service.api.server import run  # what it imports may have something to say
    from relaxc.service.jobs.backend import Backend

    opened = partial(Backend, workers=workers)
    run(host, port, open_backend=opened, tls=Tls(*tls) if tls else None, no_auth=no_auth)
