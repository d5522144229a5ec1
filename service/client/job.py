"""What the server says of a job, a model, an event: its JSON as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relaxc.service.errors import Cancelled, RelaxcError, ServerUnreachable

__all__ = ["Event", "Job", "JobPage", "Model"]

_NOT_OURS = "the server's answer is no {}: it is no relaxc server, or one of another version"
_ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was when the server said so (docs/api.md); times are RFC 3339 text. `data` is all of its JSON.

    `shared`: this submission was answered with an equal job that was under way.
    """

    id: str
    kind: str
    state: str
    stage: str | None = None
    progress: tuple[int, int] | None = None
    model: str | None = None
    artifact: str | None = None
    records: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    error: RelaxcError | None = None
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    shared: bool = False

    @property
    def ended(self) -> bool:
        """Whether it is at its end."""
        return self.state in _ENDED

    def check(self) -> Job:
        """Return the job, if it has not failed. Raise its error, or Cancelled."""
        if self.state == "cancelled":
            raise self.error or Cancelled(f"job {self.id} was cancelled", job=self.id)
        if self.state == "failed":
            raise self.error or RelaxcError(f"job {self.id} failed", job=self.id)
        return self

    @staticmethod
    def from_dict(data: Any, *, shared: bool = False) -> Job:
        """Return the job that this JSON describes. Raise ServerUnreachable for what is none."""
        try:
            progress = data.get("progress")
            return Job(
                id=str(data["id"]),
                kind=str(data["kind"]),
                state=str(data["state"]),
                stage=data.get("stage"),
                progress=(progress["done"], progress["total"]) if progress else None,
                model=data.get("model"),
                artifact=data.get("artifact"),
                records=data.get("records"),
                result=data.get("result") or {},
                error=RelaxcError.from_dict(data["error"]) if data.get("error") else None,
                data=data,
                shared=shared,
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ServerUnreachable(
                "the answer is not a job: this is no relaxc server, or its version differs from this client's"
            ) from error


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, the newest first; `next` is the cursor of those after them, None at the end."""

    jobs: tuple[Job, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's story. `number` counts from 1; `kind` is stage, progress, log, metric, state or done."""

    number: int
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the server has; `digest` names it in a job."""

    digest: str
    name: str
    format: str
    size_bytes: int

    @staticmethod
    def from_dict(data: Any) -> Model:
        """Return the model that this JSON describes. Raise ServerUnreachable for what is none."""
        try:
            return Model(str(data["digest"]), str(data["name"]), str(data["format"]), int(data["size_bytes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ServerUnreachable(
                "the answer is not a model: this is no relaxc server, or its version differs from this client's"
            ) from error
