"""What the tables hold, as frozen values: nothing here knows SQL, so that every layer above may have them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from relaxc.service.config import settings
from relaxc.service.jobs.job import Claim, State
from relaxc.service.request import CompileOptions, ModelFormat

__all__ = [
    "LOCAL_OWNER",
    "SCOPES",
    "AuditFilter",
    "AuditPage",
    "AuditRow",
    "EventRow",
    "JobKind",
    "JobPage",
    "JobRequest",
    "JobRow",
    "KeyRow",
    "ModelFile",
    "ModelRow",
    "Owner",
    "RecordsRow",
    "expires",
    "iso_time",
]

SCOPES = ("read", "compile", "tune", "admin")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asks: an owner's id, what its key may do, its share of the workers relative to other owners', and the key's
    id."""

    id: str
    scopes: frozenset[str]
    weight: float = 1.0
    key: str = ""

    @property
    def admin(self) -> bool:
        """Whether it sees what others made."""
        return "admin" in self.scopes


LOCAL_OWNER = Owner("k_local", frozenset(SCOPES), key="k_local")
"""Everybody, where the server has no keys."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An API key without its secret, and what of its owner decides about a request."""

    id: str
    name: str
    scopes: frozenset[str]
    owner_id: str
    owner_name: str
    weight: float
    created: float
    expires: float | None = None
    revoked: float | None = None
    disabled: float | None = None

    @property
    def owner(self) -> Owner:
        """Who asks with it. The scope `admin` has all the others in it."""
        scopes = frozenset(SCOPES) if "admin" in self.scopes else self.scopes
        return Owner(self.owner_id, scopes, self.weight, self.id)

    def in_force(self, time: float) -> bool:
        """Return whether it is neither revoked, nor its owner disabled, nor, at `time`, expired."""
        refused = self.revoked is not None or self.disabled is not None
        return not refused and (self.expires is None or time < self.expires)

    def to_dict(self) -> dict[str, Any]:
        """Return the key as JSON, without what is secret."""
        return {
            "id": self.id,
            "name": self.name,
            "owner": self.owner_id,
            "owner_name": self.owner_name,
            "scopes": sorted(self.scopes),
            "weight": self.weight,
            "created": iso_time(self.created),
            "expires": iso_time(self.expires),
            "revoked": iso_time(self.revoked),
        }


@dataclass(frozen=True, slots=True)
class AuditRow:
    """That `owner`, by `key`, called `action` (`POST /v1/jobs`) on `object` from `address`; `outcome` is the answer's
    status."""

    time: float
    key: str
    action: str
    object: str
    outcome: str
    address: str
    detail: dict[str, Any]
    owner: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON."""
        return {**asdict(self), "time": iso_time(self.time)}


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows of the audit log are wanted: from `since` on and before `until`, in Unix seconds; None is all."""

    since: float | None = None
    until: float | None = None
    owner: str | None = None
    key: str | None = None
    action: str | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some rows, newest first; `next` is the cursor of what follows, None at the end."""

    rows: tuple[AuditRow, ...]
    next: str | None


class JobKind(StrEnum):
    """What a job does."""

    COMPILE = "compile"
    TUNE = "tune"
    BENCH = "bench"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is asked for. `compile` and `tune` need `model`, `bench` needs `artifact`, `verify` both.

    `model`, `artifact` and `records` are digests of what the owner has; `target` is as `lowering.target.resolve` takes
    it; `records` are tuned schedules, to compile with or to start a search from. `trials` and `time_s` (seconds) bound
    a `tune`; `time_s` is how long a `bench` measures. Higher `priority` goes first among the owner's own jobs.
    """

    kind: JobKind
    model: str | None = None
    artifact: str | None = None
    target: str = "auto"
    options: CompileOptions = field(default_factory=CompileOptions)
    priority: int = 0
    webhook: str | None = None
    records: str | None = None
    trials: int | None = None
    time_s: float | None = None
    name: str | None = None


_LAST_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""What is later has no date, and is never."""


def expires(since: float | None, after_s: float) -> float | None:
    """Return from when on what is unused, or ended, since then may be deleted; None for never, and not known yet."""
    end = None if since is None or not after_s else since + after_s
    return None if end is None or end > _LAST_S else end


def iso_time(seconds: float | None) -> str | None:
    """Unix time as `2026-11-21T08:00:00.000Z`."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as it is now. Times are Unix seconds; `number` orders all jobs by their creation.

    `target`, `options` and `records_in` say what was asked for; `artifact`, `records` (a record set's digest), `result`
    and `error` (as docs/api.md shows it) what came of it. The server `instance` runs it by the claim of this `epoch`.
    `missing` is what it needs of a machine and no live worker has.
    """

    id: str
    number: int
    kind: JobKind
    owner: str
    state: State
    stage: str | None
    progress: tuple[int, int] | None
    model: str | None
    name: str
    target: dict[str, Any]
    options: dict[str, Any]
    extras: dict[str, Any]
    priority: int
    attempts: int
    epoch: int
    artifact: str | None
    records: str | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    request_key: str
    webhook: str | None
    created: float
    started: float | None
    finished: float | None
    instance: str | None
    cancelling: bool
    events: int
    missing: list[str] | None = None

    @property
    def claim(self) -> Claim:
        """What its last server held, or holds."""
        return self.id, self.epoch

    @property
    def ended(self) -> bool:
        """Whether it is in one of its three last states."""
        return self.state not in (State.QUEUED, State.RUNNING)

    def listed(self) -> dict[str, Any]:
        """Return the job as a list has it, without its result."""
        return {name: value for name, value in self.to_dict().items() if name != "result"}

    def to_dict(self) -> dict[str, Any]:
        """Return the job as JSON, the same over HTTP and in a webhook (docs/api.md).

        A bench's or a verify's `artifact` is the one that it was asked about. `target` is as it was asked for, so that
        it can be asked for again; `resolved` is the name of what that meant on the server that took the job.
        """
        done_of = {"done": self.progress[0], "total": self.progress[1]} if self.progress else None
        here = f"/v1/jobs/{self.id}"
        links = {"self": here, "events": f"{here}/events", "logs": f"{here}/logs"}
        artifact = self.artifact or self.extras.get("artifact")
        if artifact is not None:
            links["artifact"] = f"/v1/artifacts/{artifact}"
        if self.records is not None:
            links["records"] = f"/v1/records/{self.records}"
        return {
            "id": self.id,
            "kind": self.kind.value,
            "state": self.state.value,
            "stage": self.stage,
            "progress": done_of,
            "model": self.model,
            "name": self.name,
            "target": self.extras.get("target"),
            "resolved": self.target.get("name"),
            "options": self.options,
            "priority": self.priority,
            "attempts": self.attempts,
            "missing": self.missing or [],
            "artifact": artifact,
            "records": self.records,
            "result": self.result,
            "error": self.error,
            "request_key": self.request_key,
            "created": iso_time(self.created),
            "started": iso_time(self.started),
            "finished": iso_time(self.finished),
            "expires": iso_time(expires(self.finished, settings().job_expiry_s)),
            "links": links,
        }


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs without results, newest first; `next` is the cursor of what follows, None at the end."""

    jobs: tuple[JobRow, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """One line of a job's story: `seq` counts from 1, `data` is the event's JSON, whose `event` is its kind."""

    job: str
    seq: int
    time: float
    data: dict[str, Any]

    @property
    def last(self) -> bool:
        """Whether it tells the end of the job: nothing follows."""
        return self.data.get("event") == "state" and self.data.get("state") in ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: the plain name by which the others find it, and its own SHA-256."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelRow:
    """An uploaded model: `files` has the model's own first, then external data; `name` is what its sender calls it.

    `used` is the Unix time at which its owner last sent or used it, to a day.
    """

    owner: str
    digest: str
    name: str
    format: ModelFormat
    size_bytes: int
    created: float
    used: float
    files: tuple[ModelFile, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON."""
        return {
            "digest": self.digest,
            "name": self.name,
            "format": self.format.value,
            "size_bytes": self.size_bytes,
            "created": iso_time(self.created),
            "expires": iso_time(expires(self.used, settings().model_expiry_s)),
            "links": {"self": f"/v1/models/{self.digest}"},
        }


@dataclass(frozen=True, slots=True)
class RecordsRow:
    """A record set: `count` records; `job` is the tuning that made it, None where it was sent; `used` as a model's."""

    owner: str
    digest: str
    name: str
    count: int
    size_bytes: int
    created: float
    used: float
    job: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the record set as JSON, without its records."""
        return {
            "digest": self.digest,
            "name": self.name,
            "count": self.count,
            "size_bytes": self.size_bytes,
            "created": iso_time(self.created),
            "expires": iso_time(expires(self.used, settings().records_expiry_s)),
            "job": self.job,
            "links": {"self": f"/v1/records/{self.digest}"},
        }
