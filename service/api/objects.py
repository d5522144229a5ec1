"""The objects of docs/api.md as JSON: what calls take and give, for checks and for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.job import State

__all__ = [
    "DIGEST",
    "LINE",
    "ArtifactList",
    "AuditPage",
    "Job",
    "JobError",
    "JobPage",
    "JobSubmission",
    "Model",
    "Models",
    "RecordSet",
    "RecordSets",
    "Time",
    "UploadProgress",
]

DIGEST = "^[0-9a-f]{64}$"
LINE = r"^[^\x00-\x1f\x7f-\x9f]+$"
_A_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_A_JOB = "j_4fUqk0ZtX1aWc9LmPr7sYe"
_A_TIME = "2026-11-21T08:00:00.000Z"

Digest = Annotated[str, Field(pattern=DIGEST, examples=[_A_DIGEST])]
Time = Annotated[str, Field(examples=[_A_TIME])]
Expires = Time | None
"""From when on it may be deleted, unless a job needs it then; null is never."""


class Links(BaseModel):
    """Where to go from here."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": {"type": "string"}})

    self: str


class JobError(BaseModel):
    """Why a job has not succeeded: the same as a problem, without what is HTTP's."""

    code: str = Field(examples=["unsupported-model"])
    message: str = Field(examples=["2 operators are not supported: Frob (2 nodes)"])
    remedy: str
    fault: str = Field(description="request, model, compiler or service: who has to change something.")
    node: str | None
    retryable: bool
    fields: dict[str, Any]


class Progress(BaseModel):
    """How far the stage is."""

    done: int
    total: int


class ListedJob(BaseModel):
    """A job in a list: without its result, and of its error without the fields."""

    id: str = Field(examples=[_A_JOB])
    kind: JobKind
    state: State
    stage: str | None = Field(examples=["schedule"])
    progress: Progress | None
    model: Digest | None
    name: str = Field(examples=["resnet.onnx"])
    target: str | dict[str, Any] | list[str | dict[str, Any]] | None = Field(
        description="As it was asked for.", examples=["auto"]
    )
    resolved: str | None = Field(
        description="The name of the machine that `target` meant; null before a worker says what `auto` is there.",
        examples=["x86-64-v4"],
    )
    options: dict[str, Any]
    priority: int
    attempts: int = Field(description="How often a server has begun it, since it last got on.")
    missing: list[str] = Field(
        description="What it waits for: a machine that has this. Empty where a live worker can take it.",
        examples=[["a CUDA device of compute capability 9.0 (there is none)"]],
    )
    artifact: Digest | None
    records: Digest | None
    error: JobError | None
    request_key: str = Field(description="Equal requests have equal ones.")
    created: Time
    started: Time | None
    finished: Time | None
    expires: Expires = Field(description="When it may be forgotten, once it has ended; null is never.")
    links: Links


class Job(ListedJob):
    """A job as it is now."""

    result: dict[str, Any] | None


class JobPage(BaseModel):
    """Some jobs, the newest first; `next` is the `cursor` of what follows."""

    jobs: list[ListedJob]
    next: str | None = Field(description="Absent at the end: null.")


class JobSubmission(BaseModel):
    """What is asked for. `compile` and `tune` need `model`, `bench` needs `artifact`, `verify` both."""

    model_config = ConfigDict(extra="forbid")

    kind: JobKind = JobKind.COMPILE
    model: Digest | None = None
    artifact: Digest | None = None
    records: Digest | None = Field(
        None, description="Tuned schedules, to compile with or to start a search from.", examples=[None]
    )
    target: str | dict[str, Any] | list[str | dict[str, Any]] = Field(
        "auto",
        description="auto, a name that /v1/targets lists, or a target as JSON; several CUDA devices as a list.",
        examples=["auto"],
        max_length=16 << 10,
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Any of precision, calibration, weights, small_weights, opt_level, shapes, values, state, verify, "
        "seed.",
        examples=[{"opt_level": 2}],
    )
    priority: int = Field(0, ge=-100, le=100, description="Higher goes first among the key's own jobs.")
    webhook: str | None = Field(
        None, max_length=2048, description="Where the end of the job is told with a POST.", examples=[None]
    )
    trials: int | None = Field(None, ge=1, le=100_000, description="tune: measurements at most.", examples=[None])
    time_s: float | None = Field(
        None,
        gt=0,
        le=7 * 86400,
        allow_inf_nan=False,
        description="tune: seconds at most. bench: seconds of measuring.",
        examples=[None],
    )
    name: str | None = Field(
        None,
        pattern=LINE,
        max_length=200,
        description="What you call it; the model's name if not given.",
        examples=["resnet.onnx"],
    )


class Model(BaseModel):
    """An uploaded model."""

    digest: Digest
    name: str = Field(examples=["resnet.onnx"])
    format: str = Field(examples=["onnx"])
    size_bytes: int
    created: Time
    expires: Expires = Field(description="When it may be deleted, if nobody uses it until then; null is never.")
    links: Links


class Models(BaseModel):
    """The owner's models, the newest first."""

    models: list[Model]


class Artifact(BaseModel):
    """A compiled library, with its weights where they are apart."""

    digest: Digest
    size_bytes: int = Field(description="0 where the store has it no more.")
    created: Time
    expires: Expires = Field(description="When it may be deleted, if nobody uses it until then; null is never.")
    links: Links


class ArtifactList(BaseModel):
    """The owner's artifacts, the newest first."""

    artifacts: list[Artifact]


class UploadProgress(BaseModel):
    """How much of an upload has come."""

    sha256: Digest
    offset: int = Field(description="The byte to go on with.")
    total: int


class BegunUpload(BaseModel):
    """An upload that is on its way: the quota has room for all of it."""

    sha256: Digest
    total: int = Field(description="The bytes of the whole.")
    touched: Time = Field(description="When its last byte came.")
    expires: Time | None = Field(description="When it is dropped if nobody goes on with it.")
    links: Links


class BegunUploads(BaseModel):
    """Uploads that are on their way, the newest first."""

    uploads: list[BegunUpload]


class RecordSet(BaseModel):
    """Tuning records in the form of docs/tuning.md."""

    digest: Digest
    name: str
    count: int = Field(description="How many records.")
    size_bytes: int
    created: Time
    expires: Expires = Field(description="When it may be deleted, if nobody uses it until then; null is never.")
    job: str | None = Field(description="The tuning that made it.", examples=[_A_JOB])
    links: Links


class RecordSets(BaseModel):
    """The owner's record sets, the newest first."""

    records: list[RecordSet]


class AuditRow(BaseModel):
    """A call that changed something, or tried to."""

    time: Time
    owner: str = Field(examples=["o_4fUqk0ZtX1aW"])
    key: str = Field(examples=["k_4fUqk0ZtX1aW"])
    action: str = Field(examples=["POST /v1/jobs"])
    object: str = Field(description="What the path names, or where the answer says that something was made.")
    outcome: str = Field(description="The answer's status.", examples=["202"])
    address: str = Field(examples=["192.0.2.1"])
    detail: dict[str, Any]


class AuditPage(BaseModel):
    """Some rows, the newest first; `next` is the `cursor` of what follows."""

    rows: list[AuditRow]
    next: str | None = Field(description="Absent at the end: null.")
