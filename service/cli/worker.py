"""`relaxc worker`: a process that runs jobs of the service, and answers no calls."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from relaxc.service.cli.options import Verbose

__all__ = ["worker"]


def worker(
    workers: Annotated[
        int | None, typer.Option(min=0, help="Jobs other than tunings at once; RELAXC_WORKERS if not given (1).")
    ] = None,
    tune_workers: Annotated[
        int | None, typer.Option(min=0, help="Tunings at once; RELAXC_TUNE_WORKERS if not given (1).")
    ] = None,
    resources: Annotated[
        bool, typer.Option("--resources", help="Print what a Ray node of this machine offers, and run nothing.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Run jobs of the servers' database until Ctrl-C or SIGTERM; the first line says as whom.

    RELAXC_DATABASE_URL and RELAXC_BLOBS_URL have to be the servers': PostgreSQL and S3 for a machine of its own, or on
    the servers' machine their SQLite file and RELAXC_CACHE_DIR. It listens on no port. It takes what its machine can
    run: `relaxc workers` shows what that is. A tuning runs alone (RELAXC_TUNE_ALONE).

    With RELAXC_RUNNER=ray://HOST:PORT the nodes of that Ray cluster run the jobs, each node as many as --workers and
    --tune-workers say: on each, `ray start --address HOST:PORT --resources "$(relaxc worker --resources)"`.

    SIGTERM drains: no new job starts, and running jobs get RELAXC_DRAIN_S to finish before they are queued again. A
    second SIGTERM, or a SIGINT, stops at once.
    """
    if resources:
        _print_resources()
        return
    from relaxc.service.api.logs import open_log
    from relaxc.service.config import settings
    from relaxc.service.jobs.working import work

    open_log("debug" if verbose else settings().log_level, settings().log_format)
    work(workers=workers, tune_workers=tune_workers)


def _print_resources() -> None:
    from relaxc.service.jobs.ray.resources import resources_of
    from relaxc.service.jobs.workers.machine import Machine

    print(json.dumps(resources_of(Machine.here())))
