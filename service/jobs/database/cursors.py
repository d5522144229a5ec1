"""Cursors of pages: the sort key of the last row that was shown, as a word that means nothing to who sends it back."""

from __future__ import annotations

import base64
import json
from typing import Any

from relaxc.service.errors import InvalidOption

__all__ = ["read", "written"]


def written(*key: str | float) -> str:
    """Return the cursor of what follows this key."""
    text = json.dumps(key, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read(cursor: str, *types: type) -> tuple[Any, ...]:
    """Return the key, whose values have these types. Raise InvalidOption for what `written` has not made."""
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii"))
        fits = isinstance(key, list) and [type(value) for value in key] == list(types) and written(*key) == cursor
        fits = fits and all(_is_storable(value) for value in key)
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        raise InvalidOption("the cursor is none that this service gave", option="cursor")
    return tuple(key)


def _is_storable(value: Any) -> bool:
    """Whether a database can compare with it."""
    return "\0" not in value if isinstance(value, str) else 0 <= value < 2**63
