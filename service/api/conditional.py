"""Answers that depend on what the sender has (RFC 9110, 13)."""

from __future__ import annotations

from fastapi import Request

__all__ = ["IMMUTABLE", "has_it"]

IMMUTABLE = "private, max-age=31536000, immutable"
"""For what is named by its digest; private, because whose key may see it is no matter of a shared cache's."""


def has_it(request: Request, digest: str) -> bool:
    """Return whether If-None-Match names the digest: a list of tags, weak or strong, or a star."""
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return f'"{digest}"' in tags or tags == ["*"]
