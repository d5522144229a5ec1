"""Whatever a job's work raises, the job ends with one of our errors, on the server as on the command line."""

from __future__ import annotations

import errno
import logging

import pytest

from relaxc.service.errors import (
    Busy,
    Cancelled,
    CompileFailed,
    InvalidOption,
    RelaxcError,
    ServiceError,
    StoreUnwritable,
)
from relaxc.service.jobs.job_error import job_error

REASON = ServiceError("the service is shutting down")


@pytest.mark.parametrize("error", [InvalidOption("no"), Busy("later"), CompileFailed("bad", stage="build")])
def test_an_error_of_ours_is_the_jobs(error: RelaxcError) -> None:
    assert job_error(error, "a", reason=REASON, stage="import") is error


def test_a_cancelled_job_ends_with_the_reason_where_one_was_given() -> None:
    cancelled = Cancelled("the compile was cancelled")
    assert job_error(cancelled, "a", reason=REASON) is REASON
    assert job_error(cancelled, "a", reason=None) is cancelled


@pytest.mark.parametrize(("stage", "fields"), [(None, {}), ("pack", {"stage": "pack"})])
def test_a_folder_that_cannot_be_used_is_named_as_that(stage: str | None, fields: dict[str, str]) -> None:
    found = job_error(OSError(errno.ENOSPC, "No space left on device"), "a", reason=None, stage=stage)
    assert isinstance(found, StoreUnwritable) and "No space left" in found.message
    assert found.fields == fields


def test_a_bug_of_ours_is_logged_and_a_failed_compile(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "relaxc.jobs"):
        found = job_error(KeyError("x"), "job-7", reason=None)
    assert type(found) is CompileFailed and found.message == "KeyError: 'x'"
    assert "job-7" in caplog.text and "KeyError" in caplog.text
