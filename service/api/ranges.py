"""`Content-Range` of a part that is sent (RFC 9110, 14.4): which bytes of how many."""

from __future__ import annotations

import re
from dataclasses import dataclass

from relaxc.service.errors import InvalidOption

__all__ = ["Span", "span_of"]

_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")


@dataclass(frozen=True, slots=True)
class Span:
    """`size` bytes from `offset` of a file of `total`."""

    offset: int
    size: int
    total: int


def span_of(content_range: str | None, announced_bytes: int | None) -> Span:
    """Return what a body is of its file: `bytes FIRST-LAST/TOTAL`, or without that header the whole.

    Raise InvalidOption for another form, for a range that no file has, and where it contradicts Content-Length.
    """
    if content_range is None:
        if announced_bytes is None:
            raise InvalidOption(
                "a whole file needs Content-Length, a part of one Content-Range", option="Content-Range"
            )
        return Span(0, announced_bytes, announced_bytes)
    found = _RANGE.fullmatch(content_range)
    if found is None:
        raise InvalidOption("Content-Range must be `bytes FIRST-LAST/TOTAL`", option="Content-Range")
    first, last, total = map(int, found.groups())
    if not first <= last < total:
        raise InvalidOption(f"no file has the range {content_range}", option="Content-Range")
    size = last - first + 1
    if announced_bytes not in (None, size):
        raise InvalidOption(f"{content_range} is {size} bytes, Content-Length says {announced_bytes}")
    return Span(first, size, total)
