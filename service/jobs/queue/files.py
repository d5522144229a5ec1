"""The blobs of a job, each named by the claim that wrote it: who has lost the job overwrites nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.job import Claim

__all__ = ["LOG", "TUNE_FILES", "blob_of", "blobs_of", "latest"]

LOG = "log.txt"
"""What a job's process printed."""

TUNE_FILES = ("report.json", "curve.svg", "curve.png")
"""What is kept of a tuning beside its records; curve.png is of older versions."""


def blob_of(claim: Claim, name: str) -> str:
    """Return the blob of this file of a job; before there were epochs it had the file's own name."""
    job, epoch = claim
    return f"jobs/{job}/{epoch}-{name}" if epoch else f"jobs/{job}/{name}"


def latest(blobs: Blobs, claim: Claim, name: str) -> Path | None:
    """Return the file that the last of all claims up to this one has left, None where none has."""
    found = (blobs.find(blob_of(each, name)) for each in _up_to(claim))
    return next((path for path in found if path is not None), None)


def blobs_of(claim: Claim, kind: JobKind) -> Iterator[str]:
    """Yield every blob that a job of this kind may have, of all its claims up to this one."""
    names = (LOG, *TUNE_FILES) if kind is JobKind.TUNE else (LOG,)
    return (blob_of(each, name) for each in _up_to(claim) for name in names)


def _up_to(claim: Claim) -> Iterator[Claim]:
    return ((claim[0], epoch) for epoch in range(claim[1], -1, -1))
