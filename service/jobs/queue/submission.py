"""A request becomes a job: checked, found in the store, joined with an equal one, or put into the queue."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaxc.service.artifact.entry import Entry
from relaxc.service.artifact.key import Key, key_for
from relaxc.service.config import settings
from relaxc.service.errors import (
    ArtifactNotFound,
    Busy,
    IdempotencyConflict,
    InvalidOption,
    ModelNotFound,
    RecordsNotFound,
    RelaxcError,
)
from relaxc.service.jobs.database import (
    artifacts,
    deliveries,
    idempotency,
    jobs,
    placed,
    quotas,
    tables,
    transitions,
    uses,
)
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.quotas import Quotas
from relaxc.service.jobs.database.rows import JobKind, JobRequest, JobRow, ModelRow, Owner
from relaxc.service.jobs.job import Origin, Submitted
from relaxc.service.jobs.objects.artifacts import Artifacts
from relaxc.service.jobs.objects.models import Models
from relaxc.service.jobs.objects.recordsets import RecordSets
from relaxc.service.jobs.queue import places
from relaxc.service.jobs.queue.budget import estimate
from relaxc.service.jobs.webhooks.deliver import check_url
from relaxc.service.jobs.workers.fleet import LOCAL_WORDS, Fleet
from relaxc.service.jobs.workers.needs import ANYTHING, needs_of
from relaxc.service.jobs.workers.placement import no_worker
from relaxc.service.process.limits import tuning_time_s
from relaxc.service.request import CompileRequest, ModelRef, TargetSpec, canonical_json

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

__all__ = ["Submission"]

_MAX_NAME = 200
_PRIORITIES = 100
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_TRIES = 5
_MAX_TRIALS = 100_000
_MAX_TIME_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class _Checked:
    """A request that can be done: the columns of its job, and the artifact that is in the store already.

    With `refused` nobody can take it, and nobody will be waited for.
    """

    columns: dict[str, Any]
    artifact: Entry | None = None
    refused: bool = False


class _Again(Exception):
    """Somebody else was faster: undo, and look again."""


class Submission:
    """Checks requests and makes them jobs; any thread may call it."""

    def __init__(
        self,
        database: Database,
        models: Models,
        artifacts: Artifacts,
        records: RecordSets,
        fleet: Fleet,
        *,
        queue_max: int,
    ) -> None:
        self._database = database
        self._models = models
        self._artifacts = artifacts
        self._records = records
        self._fleet = fleet
        self._queue_max = queue_max

    def __call__(self, owner: Owner, request: JobRequest, key: str | None, body_digest: str) -> Submitted[JobRow]:
        """As `Jobs.submit`."""
        if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
            raise InvalidOption("an Idempotency-Key has 1 to 255 visible ASCII characters", option="Idempotency-Key")
        repeated = self._repeated(owner, key, body_digest)
        if repeated is not None:
            return repeated
        checked = self._check(owner, request)
        for _ in range(_TRIES):
            try:
                return self._put(owner, checked, key, body_digest)
            except _Again:
                repeated = self._repeated(owner, key, body_digest)
                if repeated is not None:
                    return repeated
        raise Busy("equal requests come and go too fast", retry_after_s=1)

    def _repeated(self, owner: Owner, key: str | None, body_digest: str) -> Submitted[JobRow] | None:
        if key is None:
            return None
        with self._database.read() as connection:
            answered = idempotency.find(connection, owner.id, key)
            job = None if answered is None else jobs.find(connection, answered.job)
        if answered is not None and answered.body != body_digest:
            raise IdempotencyConflict("this Idempotency-Key came with another body before")
        return None if job is None else Submitted(job, Origin.REPEATED)

    def _put(self, owner: Owner, checked: _Checked, key: str | None, body_digest: str) -> Submitted[JobRow]:
        columns = checked.columns
        with self._database.begin() as connection:
            allowed = quotas.hold(connection, owner.id)
            _use(connection, owner, columns)
            live = jobs.find_live(connection, owner.id, columns["request_key"])
            if live is not None:
                submitted = Submitted(_joined(connection, live.id, columns), Origin.JOINED)
            else:
                self._admit(connection, owner.id, allowed, checked)
                id = jobs.insert(connection, owner=owner.id, weight=owner.weight, **columns)
                if id is None:
                    raise _Again
                if columns["missing"] and checked.artifact is None:
                    placed.note(connection, id, columns["missing"])
                if checked.artifact is not None:
                    job = transitions.finish_now(connection, id, Outcome.of(checked.artifact))
                    submitted = Submitted(job, Origin.HIT)
                else:
                    job = jobs.get(connection, id)
                    submitted = Submitted(job, Origin.MISS)
            if key is not None and not idempotency.insert(connection, owner.id, key, body_digest, submitted.job.id):
                raise _Again
        return submitted

    def _admit(self, connection: Connection, owner: str, allowed: Quotas, checked: _Checked) -> None:
        """Raise Busy where too many wait, QuotaExceeded and StorageQuotaExceeded where the owner has what it may."""
        made, columns = checked.artifact, checked.columns
        if made is not None:
            more = artifacts.growth(connection, owner, made.digest, made.size_bytes)
            quotas.admit_bytes(connection, owner, allowed, more)
            return
        if checked.refused:
            raise no_worker(columns["missing"])
        waiting, mine = jobs.waiting(connection, owner)
        quotas.admit_job(mine, allowed)
        places.admit(owner, mine, waiting, self._queue_max)
        if columns["kind"] is JobKind.TUNE:
            quotas.admit_tuning(connection, owner, allowed, tuning_time_s(columns["extras"].get("time_s")))
        if columns["kind"] in (JobKind.COMPILE, JobKind.TUNE):  # what comes of it is to be kept
            quotas.admit_bytes(connection, owner, allowed, 1)

    def _check(self, owner: Owner, asked: JobRequest) -> _Checked:
        needs_model = asked.kind is not JobKind.BENCH
        needs_artifact = asked.kind in (JobKind.BENCH, JobKind.VERIFY)
        _check_fields(asked, needs_model=needs_model, needs_artifact=needs_artifact)
        if asked.webhook is not None:
            check_url(asked.webhook)
        model = self._models.get(owner, str(asked.model)) if needs_model else None
        if needs_artifact and not self._artifacts.has(owner, str(asked.artifact)):
            raise ArtifactNotFound(f"there is no artifact {asked.artifact}", digest=asked.artifact)
        if asked.records is not None:
            self._records.get(owner, asked.records)
        target = self._fleet.means(asked.target, asked.kind) if not needs_artifact else None
        given = {"artifact": asked.artifact, "records": asked.records, "trials": asked.trials, "time_s": asked.time_s}
        extras = {field: value for field, value in given.items() if value is not None}
        name = asked.name or (model.name if model is not None else str(asked.artifact)[:12])
        columns = {
            "kind": asked.kind,
            "model": None if model is None else model.digest,
            "name": name.replace("\0", "")[:_MAX_NAME],
            "target": {} if target is None else target.to_dict(),
            "options": asked.options.to_dict(),
            "extras": extras if needs_artifact else {**extras, **_asked_target(asked, target)},
            "priority": asked.priority,
            "webhook": asked.webhook,
            "memory_bytes": estimate(asked.kind, self._size(asked, model)),
            **self._placed(asked, target),
        }
        if asked.kind is JobKind.COMPILE and model is not None and target is not None:
            key = self._key(asked, model, target)
            found = self._artifacts.lookup(key) or self._made_before(owner, asked, model, target)
            return _Checked({**columns, "request_key": key.digest}, found, self._is_refused(columns))
        late = {"asked": asked.target.strip()} if target is None and not needs_artifact else {}
        same = {name: columns[name] for name in ("kind", "model", "target", "options")} | {"extras": extras} | late
        digest = hashlib.sha256(canonical_json(same).encode()).hexdigest()
        return _Checked({**columns, "request_key": digest}, refused=self._is_refused(columns))

    def _is_refused(self, columns: dict[str, Any]) -> bool:
        """Whether nobody can take the job, and nobody else is to come who could."""
        return bool(columns["missing"]) and (not settings().placement_wait_s or self._fleet.is_alone)

    def _placed(self, asked: JobRequest, target: TargetSpec | None) -> dict[str, Any]:
        """The columns that say where the job may run, and what of that there is not now."""
        if asked.artifact is not None:
            target = self._target_of(asked.artifact)
            if target is None:
                return {"needs": None, "needs_key": "", "missing": None}
        is_own = asked.target.strip() in LOCAL_WORDS
        verified = target is not None and asked.options.verify and not self._fleet.lacks(target)
        needs = needs_of(asked.kind, target, asked.target, can_be_run=is_own or verified)
        given = None if needs == ANYTHING else needs.to_dict()
        return {"needs": given, "needs_key": needs.key, "missing": self._fleet.missing(asked.kind, needs) or None}

    def _target_of(self, artifact: str) -> TargetSpec | None:
        """What it was compiled for; None where it is lost, which whoever takes the job will find."""
        try:
            return self._artifacts.target(artifact)
        except ArtifactNotFound:
            return None

    def _made_before(self, owner: Owner, asked: JobRequest, model: ModelRow, target: TargetSpec) -> Entry | None:
        """What the owner had made of the model under a digest that is an alias now, which a child had computed.

        Who else had something made under that digest may have had another model, so only the owner's own counts.
        """
        for alias in self._models.aliases(owner, model.digest):
            found = self._artifacts.lookup_own(owner, self._key(asked, replace(model, digest=alias), target))
            if found is not None:
                return found
        return None

    def _key(self, asked: JobRequest, row: ModelRow, target: TargetSpec) -> Key:
        model, options = ModelRef(row.format, row.digest, row.size_bytes, Path("model")), asked.options
        if asked.records is not None:
            options = replace(options, records=(str(self._records.path(asked.records)),))
        return key_for(CompileRequest(model, target, options), self._fleet.lacks(target))

    def _size(self, asked: JobRequest, model: ModelRow | None) -> int:
        if asked.kind is not JobKind.BENCH:
            return 0 if model is None else model.size_bytes
        with self._artifacts.open_accepted(str(asked.artifact)) as opened:
            return opened.entry.size_bytes


def _use(connection: Connection, owner: Owner, columns: dict[str, Any]) -> None:
    """Note that the owner uses what the job needs; raise where that was taken from him since it was checked."""
    whose, extras = None if owner.admin else owner.id, columns["extras"]
    wanted: tuple[tuple[Table, str | None, type[RelaxcError]], ...] = (
        (tables.models, columns["model"], ModelNotFound),
        (tables.artifacts, extras.get("artifact"), ArtifactNotFound),
        (tables.record_sets, extras.get("records"), RecordsNotFound),
    )
    for table, digest, missing in wanted:
        if digest is not None and not uses.touch(connection, table, whose, digest):
            raise missing(f"what the job needs has just been deleted: {digest}", digest=digest)


def _joined(connection: Connection, id: str, columns: dict[str, Any]) -> JobRow:
    """The job that does an equal request: with the higher priority of both, and the webhooks of both."""
    job, webhook = transitions.join(connection, id, columns["priority"]), columns["webhook"]
    if job is None:
        raise _Again
    if webhook is not None and not deliveries.hold(connection, job, webhook):
        most = deliveries.MAX_JOINED
        raise InvalidOption(f"{most} webhooks wait for the end of an equal job, {id}, already", option="webhook")
    return job


def _asked_target(asked: JobRequest, target: TargetSpec | None) -> dict[str, Any]:
    """The target as it was asked for; where it is `late`, who runs the job says what it means."""
    return {"target": _as_json(asked.target), **({"late": True} if target is None else {})}


def _as_json(target: str) -> Any:
    """A target as its asker wrote it: a name, an object, or a list."""
    text = target.strip()
    return json.loads(text) if text.startswith(("{", "[")) else text


def _check_fields(asked: JobRequest, *, needs_model: bool, needs_artifact: bool) -> None:
    """Raise InvalidOption for what does not belong together."""
    tunes = asked.kind is JobKind.TUNE
    takes = {
        "model": (asked.model, needs_model, needs_model),
        "artifact": (asked.artifact, needs_artifact, needs_artifact),
        "records": (asked.records, False, not needs_artifact),
        "trials": (asked.trials, False, tunes),
        "time_s": (asked.time_s, False, tunes or asked.kind is JobKind.BENCH),
    }
    for name, (value, needed, allowed) in takes.items():
        if needed and value is None:
            raise InvalidOption(f"a {asked.kind} job needs {name}", option=name)
        if value is not None and not allowed:
            raise InvalidOption(f"a {asked.kind} job takes no {name}", option=name)
    if asked.options.plugins or asked.options.records:
        raise InvalidOption("plugins and record files are the server's own, and are not named in a request")
    if not -_PRIORITIES <= asked.priority <= _PRIORITIES:
        raise InvalidOption(f"priority is -{_PRIORITIES} to {_PRIORITIES}, not {asked.priority}", option="priority")
    if asked.trials is not None and not 1 <= asked.trials <= _MAX_TRIALS:
        raise InvalidOption(f"trials is 1 to {_MAX_TRIALS}, not {asked.trials}", option="trials")
    if asked.time_s is not None and not 0 < asked.time_s <= _MAX_TIME_S:
        raise InvalidOption(f"time_s is over 0 and at most {_MAX_TIME_S:g}, not {asked.time_s}", option="time_s")
