"""The ids in paths: what cannot be one is not looked up, and gets the same 404 as one that does not exist."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Path
from pydantic import AfterValidator

from relaxc.service.errors import (
    ArtifactNotFound,
    InvalidOption,
    JobNotFound,
    KeyNotFound,
    ModelNotFound,
    OwnerNotFound,
    RecordsNotFound,
    RelaxcError,
)

__all__ = ["ArtifactDigest", "JobId", "KeyId", "ModelDigest", "OwnerId", "RecordsDigest", "UploadDigest"]

_SHA256 = "[0-9a-f]{64}"
_A_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def _looks_like(pattern: str, error: type[RelaxcError], message: str) -> AfterValidator:
    """Raise `error`, which FastAPI passes on as it is no ValueError."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise error(message.format(text[:80]))
        return text

    return AfterValidator(check)


def _path(pattern: str, example: str) -> Any:
    return Path(json_schema_extra={"pattern": f"^{pattern}$"}, openapi_examples={"one": {"value": example}})


_JOB = "j_[0-9A-Za-z]{22}"
_KEY = "k_[0-9A-Za-z]{1,40}"
_OWNER = "[ko]_[0-9A-Za-z]{1,40}"

JobId = Annotated[str, _path(_JOB, "j_4fUqk0ZtX1aWc9LmPr7sYe"), _looks_like(_JOB, JobNotFound, "there is no job {}")]
KeyId = Annotated[str, _path(_KEY, "k_4fUqk0ZtX1aW"), _looks_like(_KEY, KeyNotFound, "there is no key {}")]
OwnerId = Annotated[str, _path(_OWNER, "o_4fUqk0ZtX1aW"), _looks_like(_OWNER, OwnerNotFound, "there is no owner {}")]
ModelDigest = Annotated[str, _path(_SHA256, _A_SHA256), _looks_like(_SHA256, ModelNotFound, "there is no model {}")]
ArtifactDigest = Annotated[
    str, _path(_SHA256, _A_SHA256), _looks_like(_SHA256, ArtifactNotFound, "there is no artifact {}")
]
RecordsDigest = Annotated[
    str, _path(_SHA256, _A_SHA256), _looks_like(_SHA256, RecordsNotFound, "there is no record set {}")
]
UploadDigest = Annotated[
    str,
    _path(_SHA256, _A_SHA256),
    _looks_like(_SHA256, InvalidOption, "an upload is named by its SHA-256, 64 hex digits in lower case, not by {!r}"),
]
