"""How much a job may say of how it ended: a page of `GET /v1/jobs` has hundreds of them."""

from __future__ import annotations

import json
from typing import Any

from relaxc.service.errors import CompileFailed, RelaxcError

__all__ = ["MAX_OUTCOME_BYTES", "bounded", "checked"]

MAX_OUTCOME_BYTES = 1 << 20
"""Of a result or an error, as JSON. A bench of a thousand kernels has 300 KB."""

_MESSAGE_CHARS = 4096


def checked(result: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the result of a job. Raise CompileFailed for one over MAX_OUTCOME_BYTES: half of it would be no JSON."""
    size = len(json.dumps(result))
    if size > MAX_OUTCOME_BYTES:
        raise CompileFailed(f"the job's result has {size} bytes, over {MAX_OUTCOME_BYTES}", size_bytes=size)
    return result


def bounded(error: RelaxcError) -> RelaxcError:
    """Return the error, or one of its class with the beginning of its message where it is over MAX_OUTCOME_BYTES."""
    size = len(json.dumps(error.to_dict(), default=str))
    if size <= MAX_OUTCOME_BYTES:
        return error
    message = f"{error.message[:_MESSAGE_CHARS]} … (of an error of {size} bytes the rest is left out)"
    return type(error)(message, left_out_bytes=size)
