"""Jobs of the hostile drill: a real compile, before which some try what a model's code would, could it run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from service.jobs.task import Emit
from tests.jobs.hostile import attempt

__all__ = ["ESCAPING", "MARKER", "compile_or_escape"]

ESCAPING = 666_000_000
"""Seeds from here on try; what is above is the port of a listener on loopback."""

MARKER = "hunter2-of-the-drill"
"""The value of every secret in the server's environment."""


def compile_or_escape(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Compiles; a job with an escaping seed first tells as log events what came of each attempt."""
    from service.jobs.tasks import compile_model

    seed = payload["request"]["options"]["seed"]
    if seed >= ESCAPING:
        for name, text in _tried(seed - ESCAPING, workdir).items():
            emit({"event": "log", "level": "info", "message": f"attempt {name}: {text}"})
    compile_model(payload, workdir, emit)


def _tried(port: int, workdir: Path) -> dict[str, str]:
    cache = Path(os.environ["RELAXC_CACHE_DIR"])
    database = str(cache / "service.sqlite3")
    got: dict[str, str] = {}
    attempt(
        {
            "tcp": port,
            "read": database,
            "link_and_read": database,
            "list": str(cache),
            "write": str(cache / "mine"),
            "environments": [],
        },
        workdir,
        lambda event: got.update(event["got"]),
    )
    found = got.pop("environments")
    got["secrets"] = "got one" if MARKER in found else "refused: there is none"
    return got
