"""Compile options as they come over HTTP."""

from __future__ import annotations

import json
from typing import Any

from relaxc.service.api.calls import canonical_body
from relaxc.service.errors import InvalidOption
from relaxc.service.request import CompileOptions

__all__ = ["compile_options", "parsed_options"]


def compile_options(data: dict[str, Any]) -> CompileOptions:
    """Return the options that these JSON values mean. Raise InvalidOption, also for plugins and paths, and
    InvalidShape.
    """
    if data.get("plugins"):
        raise InvalidOption(
            "plugins are code, and are not taken over HTTP",
            option="plugins",
            remedy="Compile with `relaxc compile --plugin FILE` on a machine of yours.",
        )
    if data.get("records"):
        raise InvalidOption(
            "the option records names files, and is not taken over HTTP",
            option="records",
            remedy="Send the records with POST /v1/records, and name the set by its digest in POST /v1/jobs.",
        )
    options = CompileOptions.from_dict(data)
    if options.calibration is not None and not options.calibration.is_beside:
        raise InvalidOption(
            "calibration.samples is the plain name of a file that was sent beside the model",
            option="calibration",
            remedy="Send the .npz as a part named data, as external data is.",
        )
    return options


def parsed_options(text: str) -> CompileOptions:
    """Return the options in a form's part. Raise InvalidOption and InvalidShape."""
    try:
        data: Any = json.loads(text)
        canonical_body(data)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"the part options is not JSON: {error}", option="options") from error
    if not isinstance(data, dict):
        raise InvalidOption(f"the part options must be a JSON object, not {type(data).__name__}", option="options")
    return compile_options(data)
