"""How a job ended, and what of it the job's row keeps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from relaxc.service.artifact.entry import Entry
from relaxc.service.errors import Cancelled, RelaxcError
from relaxc.service.jobs.database.rows import RecordsRow
from relaxc.service.jobs.job import State
from relaxc.service.process.task import finite

__all__ = ["Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: without an error it succeeded. Its owner has the record set once this is written down.

    So with an artifact of `artifact_bytes`, all its files counted.
    """

    artifact: str | None = None
    artifact_bytes: int = 0
    records: RecordsRow | None = None
    result: dict[str, Any] | None = None
    error: RelaxcError | None = None

    @staticmethod
    def of(entry: Entry) -> Outcome:
        """Return the end of a compile; its result is the record of the build, as a local compile has it but for `host`.

        That is the server's own name, which is no matter of its clients'.
        """
        build = {name: value for name, value in entry.build.items() if name != "host"}
        return Outcome(artifact=entry.digest, artifact_bytes=entry.size_bytes, result={"build": finite(build)})

    @property
    def state(self) -> State:
        """The state that the job is in afterwards."""
        if self.error is None:
            return State.SUCCEEDED
        return State.CANCELLED if isinstance(self.error, Cancelled) else State.FAILED

    def columns(self) -> dict[str, Any]:
        """Return what the job's row keeps of it."""
        error = None if self.error is None else finite(json.loads(json.dumps(self.error.to_dict(), default=str)))
        made = None if self.records is None else self.records.digest
        return {"artifact": self.artifact, "records": made, "result": self.result, "error": error}
