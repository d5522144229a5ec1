"""`GET /`: the page, as files that the browser runs as they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_FOLDER = Path(__file__).parent.parent / "page"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_SECURITY = {
    # Styles too: the page sets a width through the CSSOM, which the policy allows, and never in markup.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


@lru_cache(maxsize=1)
def _files() -> dict[str, _File]:
    """Every file of the page by its name, read once: a name that is not among them is no path to anything."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = _File(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


@router.head("/")
@router.get("/")
def page(request: Request) -> Response:
    """Return the page."""
    return _answer("index.html", request)


@router.head("/page/{name}")
@router.get("/page/{name}")
def part(name: str, request: Request) -> Response:
    """Return a file that the page loads."""
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    file = _files().get(name)
    if file is None:
        raise HTTPException(404, "the page has no such file")
    headers = {**_SECURITY, "ETag": file.etag, "Cache-Control": "no-cache"}
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in tags:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
