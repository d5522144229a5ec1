"""docs/retention.md: what is deleted, after what, from the rules that the sweep follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from relaxc.service.config import Settings
from relaxc.service.jobs.queue.retention import RULES, Place, Rule

__all__ = ["retention_page"]

_PLACES = {
    Place.TABLE: "Tables of the database",
    Place.BLOBS: "Files of `RELAXC_BLOBS_URL`, `blobs/` in the cache folder",
    Place.BUCKET: "Objects of the bucket, where `RELAXC_BLOBS_URL` names one",
    Place.CACHE: "The rest of the cache folder",
}
_DAY_S = 24 * 3600


def retention_page(table: Callable[[tuple[str, ...], Iterable[Iterable[object]]], str]) -> str:
    """Return the page: a table for each place, a row a rule."""
    head = ("what", "deleted", "after", "counted by")
    parts = (f"## {title}\n\n{table(head, _rows(place))}" for place, title in _PLACES.items())
    return f"""# Retention: what is deleted, and when

Generated from `service/jobs/queue/retention.py` by `python -m docs.generate`; do not edit.

A server sweeps every ten minutes; several of one database may at once. It deletes in transactions of some thousand
rows, with pauses in which others write. Nothing goes that a job needs which waits or runs, however old it is: models,
artifacts and record sets count from their last use, and asking for a job is one. `expires`, in the answers of the
API, says before when a job, a model, an artifact or a record set may be deleted; null is never.

**By default only what can be had again goes, and what is said**: ended jobs with their events and logs after 30 days,
the audit log after 400, settled webhook calls after 7, Idempotency-Keys and unfinished uploads after one, and the
least recently used artifacts of a store over its size, which the same request makes again. Models, record sets and
who has what stay until their owner deletes them, or until you set a time.

SQLite: pages that are free are used again, and all but an eighth are given back to the file system a little after. A
database that was made before this has its file at its largest size until it is rebuilt once, while no server runs:
`sqlite3 service.sqlite3 'PRAGMA auto_vacuum = INCREMENTAL; VACUUM'`. PostgreSQL: autovacuum makes the room of deleted
rows free for new ones; the files themselves become smaller by `VACUUM FULL` only.

The counters are of each server since its start; `relaxc_retention_finished_seconds` is when it last swept without a
failure.

{chr(10).join(parts)}"""


def _rows(place: Place) -> Iterator[tuple[object, ...]]:
    for rule in RULES:
        if rule.place is place:
            yield f"`{rule.name}`", rule.deleted, _after(rule), f"`{rule.metric}`" if rule.metric else ""


def _after(rule: Rule) -> str:
    if rule.setting is None:
        return ""
    value: Any = Settings.model_fields[rule.setting].default
    shown = f"{value / (1 << 30):g} GiB" if rule.setting.endswith("bytes") else _time(value)
    return f"`RELAXC_{rule.setting.upper()}` ({shown})"


def _time(seconds: float) -> str:
    if not seconds:
        return "never"
    return f"{seconds / _DAY_S:g} d" if seconds >= _DAY_S else f"{seconds:g} s"
