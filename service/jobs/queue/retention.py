"""The rule of every table, of every kind of blob, and of every folder of the cache: what is deleted, and after what.

docs/retention.md is generated from this; a test fails for a table, a kind of blob or a folder that has no rule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

__all__ = ["METRIC", "RULES", "Place", "Removed", "Rule"]

METRIC = "relaxc_removed"
"""The counter of what was deleted; its labels `place` and `name` are a rule's."""


class Place(StrEnum):
    """Where something is kept."""

    TABLE = "table"
    BLOBS = "blobs"
    BUCKET = "bucket"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class Rule:
    """`deleted` says what goes, and what never does; `setting` after how long, or over which size.

    Without a setting `deleted` says why there is none. `is_counted` is False for what the stores clear for themselves.
    """

    place: Place
    name: str
    deleted: str
    setting: str | None = None
    is_counted: bool = True

    @property
    def metric(self) -> str | None:
        """The time series that counts it; Prometheus's client adds `_total`."""
        return f'{METRIC}_total{{place="{self.place}",name="{self.name}"}}' if self.is_counted else None


_UNUSED = "what its owner has not used for that long, and no job needs that waits or runs"

RULES = (
    Rule(
        Place.TABLE,
        "jobs",
        "jobs that ended that long ago, and an owner's oldest over RELAXC_JOBS_KEPT; none that waits or runs",
        "job_expiry_s",
    ),
    Rule(Place.TABLE, "job_events", "with their job", "job_expiry_s"),
    Rule(Place.TABLE, "job_trials", "when what they won is a record set, or with their job", "job_expiry_s"),
    Rule(Place.TABLE, "job_logs", "by the end of their job's run, whose log is a blob then", is_counted=False),
    Rule(Place.TABLE, "models", _UNUSED, "model_expiry_s"),
    Rule(Place.TABLE, "model_aliases", "with their owner's model", "model_expiry_s"),
    Rule(Place.TABLE, "model_contents", "models that nobody has any more and no live job needs", "model_expiry_s"),
    Rule(Place.TABLE, "model_files", "with their model's content", "model_expiry_s"),
    Rule(Place.TABLE, "artifacts", _UNUSED, "artifact_expiry_s"),
    Rule(Place.TABLE, "record_sets", _UNUSED, "records_expiry_s"),
    Rule(Place.TABLE, "deliveries", "webhook calls that arrived or were given up", "delivery_expiry_s"),
    Rule(Place.TABLE, "idempotency", "keys of that age", "idempotency_expiry_s"),
    Rule(Place.TABLE, "audit_log", "rows of that age", "audit_expiry_s"),
    Rule(
        Place.TABLE,
        "instances",
        "servers and workers that were silent for that long",
        "server_lease_s",
        is_counted=False,
    ),
    Rule(Place.TABLE, "shares", "of owners without a job, once it says no more than that there is none; loses nothing"),
    Rule(Place.TABLE, "owners", "never: whose everything is, and whom the audit log names", is_counted=False),
    Rule(Place.TABLE, "tuning_times", "of owners, over 30 days ago: no quota counts that any more"),
    Rule(Place.TABLE, "uploads", "room that an upload kept, when it has come or is dropped", "upload_expiry_s", False),
    Rule(
        Place.TABLE,
        "api_keys",
        "never: admins make them, the audit log names them, and that there was one closes a loopback server",
        is_counted=False,
    ),
    Rule(Place.BLOBS, "jobs", "logs, reports, curves, with their job; and those that no job has", "job_expiry_s"),
    Rule(Place.BLOBS, "models", "with their content; and those that no model has", "model_expiry_s"),
    Rule(Place.BLOBS, "records", "those that nobody's record set has and no live job needs", "records_expiry_s"),
    Rule(Place.BLOBS, "uploads", "what has not come whole, that long after its last byte", "upload_expiry_s"),
    Rule(Place.BLOBS, ".staging", "what a dead process left half written", "orphan_expiry_s", is_counted=False),
    Rule(Place.BUCKET, "jobs", "as here", "job_expiry_s"),
    Rule(Place.BUCKET, "models", "as here", "model_expiry_s"),
    Rule(Place.BUCKET, "records", "as here", "records_expiry_s"),
    Rule(Place.BUCKET, "artifacts", "those that nobody has any more and no live job needs", "artifact_expiry_s"),
    Rule(Place.BUCKET, "keys", "those that lead to an artifact that nobody has", "artifact_expiry_s"),
    Rule(Place.CACHE, "artifacts", "the least recently used, but for what a live job needs", "cache_max_bytes"),
    Rule(Place.CACHE, "kernels", "the least recently used, after a job that made one", "kernel_cache_max_bytes", False),
    Rule(Place.CACHE, "keys", "with their artifact", "cache_max_bytes", is_counted=False),
    Rule(Place.CACHE, "jobs", "folders of processes that are gone, at once", is_counted=False),
    Rule(Place.CACHE, "locks", "locks that nobody has held for an hour", is_counted=False),
    Rule(Place.CACHE, "staging", "what dead processes left, a minute later", is_counted=False),
    Rule(Place.CACHE, "tuning", "by each tuning of the command line, which leaves nothing there", is_counted=False),
    Rule(Place.CACHE, "peak", "never: a small file for each machine", is_counted=False),
    Rule(Place.CACHE, "place", "never: one line", is_counted=False),
    Rule(Place.CACHE, "size", "never: two numbers", is_counted=False),
    Rule(Place.CACHE, "blobs", "by the rules of blobs", is_counted=False),
    Rule(Place.CACHE, "service.sqlite3", "by the rules of tables; its free pages are given back", is_counted=False),
)

_COUNTED = frozenset((rule.place, rule.name) for rule in RULES if rule.is_counted)


class Removed:
    """How much this server has deleted, by rule. Any thread may call it."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Place, str]] = Counter(dict.fromkeys(_COUNTED, 0))
        self._lock = Lock()

    def add(self, place: Place, name: str, count: int = 1) -> None:
        """Count what was deleted by a rule. Raise KeyError where no rule says so."""
        if (place, name) not in _COUNTED:
            raise KeyError(f"no rule counts {place} {name}")
        with self._lock:
            self._counts[place, name] += count

    def counts(self) -> dict[tuple[Place, str], int]:
        """Return what was deleted since the server started, by place and name."""
        with self._lock:
            return dict(self._counts)
