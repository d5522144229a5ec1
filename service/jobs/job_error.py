"""The error that a job ends with when its work raised something."""

from __future__ import annotations

import logging

from relaxc.service.errors import Cancelled, CompileFailed, RelaxcError, StoreUnwritable

__all__ = ["job_error"]

_LOG = logging.getLogger("relaxc.jobs")


def job_error(raised: Exception, job: str, *, reason: RelaxcError | None, stage: str | None = None) -> RelaxcError:
    """Return how the job of this id ends; `reason` is why it was cancelled, if it was. Log what is a bug of ours.

    Whoever waits for a job would wait for ever for one that ends without an error.
    """
    where = {} if stage is None else {"stage": stage}
    if isinstance(raised, Cancelled):
        return reason or raised
    if isinstance(raised, RelaxcError):
        return raised
    if isinstance(raised, OSError):
        return StoreUnwritable(f"the job's folder cannot be used: {raised.strerror}", **where)
    _LOG.error("job %s", job, exc_info=raised)
    return CompileFailed(f"{type(raised).__name__}: {raised}", **where)
