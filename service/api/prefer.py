"""The `Prefer` header (RFC 7240): how long a sender wants to wait."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Preference", "preference_of"]

_PART = re.compile(r'\s*(respond-async|wait)\s*(?:=\s*"?(\d{1,9})"?\s*)?(?:;.*)?', re.IGNORECASE)
_MOST_S = 86_400


@dataclass(frozen=True, slots=True)
class Preference:
    """`wait_s` seconds to wait for the result, None for as long as it takes; `applied` is what was granted."""

    wait_s: float | None
    applied: str | None

    @property
    def headers(self) -> dict[str, str]:
        """What tells the sender that its preference was heard."""
        return {"Preference-Applied": self.applied} if self.applied else {}


def preference_of(prefer: str) -> Preference:
    """Return what the header asks for. What we do not know, or is not well-formed, is ignored, as the RFC demands.

    `wait=N` waits N seconds, a day at most; `respond-async` does not wait, unless `wait` is there too (section 4.3).
    """
    found: dict[str, str | None] = {}
    for part in prefer.split(","):
        if matched := _PART.fullmatch(part):
            found.setdefault(matched[1].lower(), matched[2])
    if wait := found.get("wait"):
        seconds = min(int(wait), _MOST_S)
        applied = f"respond-async, wait={seconds}" if "respond-async" in found else f"wait={seconds}"
        return Preference(float(seconds), applied)
    return Preference(0.0, "respond-async") if "respond-async" in found else Preference(None, None)
