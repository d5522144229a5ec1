"""The server's log: our lines, uvicorn's and the libraries', for people or as JSON, with the ids they are about."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from structlog.types import EventDict, Processor

__all__ = ["open_log"]

_QUIET = ("uvicorn.error", "uvicorn.asgi", "alembic", "botocore", "urllib3", "httpcore", "httpx", "filelock", "asyncio")
"""Libraries that say more than our level wants: from warnings on."""


def open_log(level: str, form: str) -> None:
    """Send the log to stderr: `form` is `console` or `json`. What was there before is replaced."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        last += [structlog.processors.format_exc_info, _renamed, structlog.processors.JSONRenderer(default=str)]
    else:
        last += [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=shared))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if logging.getLogger().level > logging.DEBUG:
        for name in _QUIET:
            logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def _renamed(logger: Any, method: str, event: EventDict) -> EventDict:
    """`message`, as what collects logs expects."""
    event["message"] = event.pop("event", "")
    return event
