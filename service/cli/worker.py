"""`relaxc worker`: a process that runs jobs of the service, and answers no calls."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Verbose

__all__ = ["worker"]


def worker(
    workers: Annotated[
        int | None, typer.Option(min=0, help="Jobs other than tunings at once; RELAXC_WORKERS if not given (1).")
    ] = None,
    tune_workers: Annotated[
        int | None, typer.Option(min=0, help="Tunings at once; RELAXC_TUNE_WORKERS if not given (1).")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Run jobs of the servers' database until Ctrl-C or SIGTERM; the first line says as whom.

    RELAXC_DATABASE_URL and RELAXC_BLOBS_URL have to be the servers': PostgreSQL and S3 for a machine of its own, or on
    the servers' machine their SQLite file and RELAXC_CACHE_DIR. It listens on no port. It takes what its machine can
    run: `relaxc workers` shows what that is. A tuning runs alone (RELAXC_TUNE_ALONE).

    SIGTERM drains: no job is begun, running ones have RELAXC_DRAIN_S to end, then they are queued again; a second
    SIGTERM, or a SIGINT, stops at once.
    """
    from service.api.logs import open_log
    from service.config import settings
    from service.jobs.working import work

    open_log("debug" if verbose else settings().log_level, settings().log_format)
    work(workers=workers, tune_workers=tune_workers)
