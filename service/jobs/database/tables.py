"""Every table of the service. The migrations make these; a test of the engine fails where the two differ.

Times are Unix seconds. JSON is text in SQLite and `json` in PostgreSQL; no query looks into it, but for the errors of a
list of jobs. `used` is when an owner last used what is his, to a day: retention counts from there
(`relaxc.service.jobs.queue.retention` has a rule for every table).
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

__all__ = [
    "api_keys",
    "artifacts",
    "audit_log",
    "deliveries",
    "idempotency",
    "instances",
    "job_events",
    "job_logs",
    "job_trials",
    "jobs",
    "metadata",
    "model_aliases",
    "model_contents",
    "model_files",
    "models",
    "owners",
    "record_sets",
    "shares",
    "tuning_times",
    "uploads",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Id = String(64)
_Digest = String(64)
_Number = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER PRIMARY KEY counts by itself there

_LIVE = text("state IN ('queued', 'running')")

jobs = Table(
    "jobs",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("id", _Id, nullable=False, unique=True),
    Column("kind", String(16), nullable=False),
    Column("owner", _Id, nullable=False),
    Column("state", String(16), nullable=False),
    Column("stage", String(64)),
    Column("done", BigInteger),
    Column("total", BigInteger),
    Column("model", _Digest),
    Column("name", Text, nullable=False),
    Column("target", JSON, nullable=False),
    Column("options", JSON, nullable=False),
    Column("extras", JSON, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("weight", Double, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    Column("instance", _Id),
    Column("cancelling", Boolean, nullable=False),
    Column("artifact", _Digest),
    Column("records", _Digest),
    Column("result", JSON(none_as_null=True)),
    Column("error", JSON(none_as_null=True)),
    Column("request_key", _Digest, nullable=False),
    Column("webhook", Text),
    Column("events", Integer, nullable=False),
    Column("created", Double, nullable=False),
    Column("started", Double),
    Column("finished", Double),
    Column("needs", JSON(none_as_null=True)),  # of its machine; NULL is nothing
    Column("needs_key", _Digest, nullable=False, server_default=text("''")),
    Column("missing", JSON(none_as_null=True)),  # of a queued job, what no live worker has
    Column("missing_since", Double),
    Index("ix_jobs_owner_number", "owner", "number"),
    Index("ix_jobs_state_owner", "state", "owner", "number"),
    Index("ix_jobs_owner_kind", "owner", "kind", "number"),
    Index("ix_jobs_owner_model", "owner", "model", "number"),
    # For an admin, who sees all owners' jobs.
    Index("ix_jobs_state_number", "state", "number"),
    Index("ix_jobs_kind", "kind", "number"),
    Index("ix_jobs_model", "model", "number"),
    Index("ix_jobs_finished", "finished"),
    Index("ix_jobs_state_needs", "state", "needs_key", "kind"),
    # Equal requests of one owner share one job while it lives: the database itself refuses a second.
    Index("uq_jobs_live_request", "owner", "request_key", unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE),
)

job_events = Table(
    "job_events",
    metadata,
    Column("job", _Id, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("time", Double, nullable=False),
    Column("data", JSON, nullable=False),
    ForeignKeyConstraint(["job"], ["jobs.id"], ondelete="CASCADE"),
)

job_trials = Table(
    "job_trials",
    metadata,
    Column("job", _Id, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("run", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Column("value", JSON, nullable=False),
    ForeignKeyConstraint(["job"], ["jobs.id"], ondelete="CASCADE"),
)

# What a job that runs has printed until now: whoever is asked for it may be another machine. The blob has it later.
job_logs = Table(
    "job_logs",
    metadata,
    Column("job", _Id, primary_key=True),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
    ForeignKeyConstraint(["job"], ["jobs.id"], ondelete="CASCADE"),
)

# Servers and workers. One that has no slots runs no jobs; one from before 0009 does not say what its machine is.
instances = Table(
    "instances",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("place", _Id, nullable=False),
    Column("workspace", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started", Double, nullable=False),
    Column("heartbeat", Double, nullable=False),
    Column("role", String(16), nullable=False, server_default=text("'server'")),
    Column("slots", Integer, nullable=False, server_default=text("1")),
    Column("tune_slots", Integer, nullable=False, server_default=text("1")),
    Column("machine", JSON(none_as_null=True)),
)

shares = Table(
    "shares",
    metadata,
    Column("owner", _Id, primary_key=True),
    Column("finish", Double, nullable=False),
)

model_contents = Table(
    "model_contents",
    metadata,
    Column("digest", _Digest, primary_key=True),
    Column("format", String(16), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
    Column("folder", String(80)),  # of its files among the blobs; NULL, before 0003, where that is its digest
    Index("ix_model_contents_folder", "folder"),
)

models = Table(
    "models",
    metadata,
    Column("owner", _Id, primary_key=True),
    Column("digest", _Digest, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("used", Double),
    ForeignKeyConstraint(["digest"], ["model_contents.digest"]),
    Index("ix_models_digest", "digest"),
    Index("ix_models_owner_created", "owner", "created"),
    Index("ix_models_created", "created"),
    Index("ix_models_used", "used"),
)

# Digests that models had before 0003, for those alone who had them by these: a child had computed them.
model_aliases = Table(
    "model_aliases",
    metadata,
    Column("owner", _Id, primary_key=True),
    Column("alias", _Digest, primary_key=True),
    Column("digest", _Digest, nullable=False),
    ForeignKeyConstraint(["owner", "digest"], ["models.owner", "models.digest"], ondelete="CASCADE"),
    Index("ix_model_aliases_alias", "alias"),
    Index("ix_model_aliases_digest", "digest"),
)

model_files = Table(
    "model_files",
    metadata,
    Column("digest", _Digest, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", _Digest, nullable=False),
    ForeignKeyConstraint(["digest"], ["model_contents.digest"], ondelete="CASCADE"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("owner", _Id, primary_key=True),
    Column("digest", _Digest, primary_key=True),
    Column("created", Double, nullable=False),
    Column("size_bytes", BigInteger, nullable=False, server_default=text("0")),  # 0 where the store has it no more
    Column("used", Double),
    Index("ix_artifacts_digest", "digest"),
    Index("ix_artifacts_owner_created", "owner", "created"),
    Index("ix_artifacts_created", "created"),
    Index("ix_artifacts_used", "used"),
)

record_sets = Table(
    "record_sets",
    metadata,
    Column("owner", _Id, primary_key=True),
    Column("digest", _Digest, primary_key=True),
    Column("name", Text, nullable=False),
    Column("count", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
    Column("job", _Id),
    Column("used", Double),
    Index("ix_record_sets_digest", "digest"),
    Index("ix_record_sets_owner_created", "owner", "created"),
    Index("ix_record_sets_created", "created"),
    Index("ix_record_sets_used", "used"),
)

# Bytes that are on their way, by the upload's SHA-256 or a name of the request's own: room that nobody else gets.
uploads = Table(
    "uploads",
    metadata,
    Column("owner", _Id, primary_key=True),
    Column("name", _Id, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("touched", Double, nullable=False),
    Index("ix_uploads_touched", "touched"),
    Index("ix_uploads_name", "name"),
)

# How long each claim on a tuning took: an owner's quota counts them also when their jobs are forgotten.
tuning_times = Table(
    "tuning_times",
    metadata,
    Column("job", _Id, primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("owner", _Id, nullable=False),
    Column("ended", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Index("ix_tuning_times_owner", "owner", "ended"),
    Index("ix_tuning_times_ended", "ended"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", _Number, primary_key=True, autoincrement=True),
    Column("job", _Id, nullable=False),
    Column("owner", _Id, nullable=False),
    Column("url", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created", Double, nullable=False),
    Column("due", Double, nullable=False),
    Column("last_error", Text),
    Index("ix_deliveries_state_due", "state", "due"),
    Index("ix_deliveries_job", "job"),
    Index("ix_deliveries_created", "created"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner", _Id, primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body", _Digest, nullable=False),
    Column("job", _Id, nullable=False),
    Column("created", Double, nullable=False),
    Index("ix_idempotency_created", "created"),
)

owners = Table(
    "owners",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False),
    Column("weight", Double, nullable=False),
    Column("quotas", JSON, nullable=False),  # those of its own; the settings have the others
    Column("webhook_secret", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("disabled", Double),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("owner", _Id, nullable=False, server_default=text("''")),
    Column("name", Text, nullable=False),
    Column("secret_sha256", _Digest, nullable=False, unique=True),
    Column("scopes", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    Index("ix_api_keys_owner", "owner"),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("time", Double, nullable=False),
    Column("owner", _Id, nullable=False, server_default=text("''")),
    Column("key", _Id, nullable=False),
    Column("action", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("detail", JSON, nullable=False),
    # A page goes on after (time, number), among all rows or those of an owner, a key or an action.
    Index("ix_audit_log_time", "time", "number"),
    Index("ix_audit_log_owner", "owner", "time", "number"),
    Index("ix_audit_log_key", "key", "time", "number"),
    Index("ix_audit_log_action", "action", "time", "number"),
)
