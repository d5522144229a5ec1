"""The child of the page's tests: a real compile, or a bad one by the seed of the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaxc.service.jobs.entries import compile_model
from relaxc.service.process.task import Emit
from tests.jobs import entries

SLEEP, MADE, LOUD = 2, 3, 4


def page(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Compiles; with one of the seeds above it sleeps for ten minutes, makes an empty library, or logs markup."""
    seed = payload["request"]["options"]["seed"]
    if seed == SLEEP:
        entries.sleep(payload, workdir, emit)
    elif seed == MADE:
        entries.made(payload, workdir, emit)
    elif seed == LOUD:
        emit({"event": "log", "level": "warning", "message": "<img src=x onerror='window.pwned=1'> is strange"})
        entries.refuse(payload, workdir, emit)
    else:
        compile_model(payload, workdir, emit)
