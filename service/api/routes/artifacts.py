"""`GET /v1/artifacts/{digest}`: a finished file by its digest. It never changes, so it may be cached for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from service.api.problems import responses
from service.api.routes.backend import backend_of
from service.artifact.entry import Opened
from service.artifact.manifest import Manifest
from service.errors import ArtifactNotFound

__all__ = ["ArtifactFile", "artifact_response", "router"]

router = APIRouter(prefix="/v1/artifacts", tags=["artifacts"])

_IMMUTABLE = "public, max-age=31536000, immutable"
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_HAS_IT = {"description": "The sender has it already."}
_ERRORS = responses("artifact-not-found", "artifact-corrupt")
_FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "content": _BINARY},
    206: {"description": "The asked-for range of it.", "content": _BINARY},
    304: _HAS_IT,
    416: {"description": "The range is outside the file.", "content": {"text/plain": {}}},
    **_ERRORS,
}


class ArtifactFile(FileResponse):
    """A file of the store, a mebibyte at a time; it is not removed while it is sent."""

    chunk_size = 1 << 20

    def __init__(self, opened: Opened, path: Path, filename: str, headers: dict[str, str]) -> None:
        media_type = "application/octet-stream"
        super().__init__(path, headers=headers, media_type=media_type, filename=filename, stat_result=path.stat())
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it; then the store may remove it again."""
        with self._opened:
            await super().__call__(scope, receive, send)


def artifact_response(opened: Opened, request: Request, *, filename: str, headers: dict[str, str]) -> Response:
    """The library of an artifact, with links to what belongs to it; 304 where the sender has it."""
    digest = opened.entry.digest
    links = [f'</v1/artifacts/{digest}/manifest>; rel="describedby"; type="application/json"']
    if len(opened.entry.files) > 1:
        links.append(f'</v1/artifacts/{digest}/weights>; rel="related"; title="weights"')
    headers = {
        "ETag": f'"{digest}"',
        "Link": ", ".join(links),
        "Content-Location": f"/v1/artifacts/{digest}",
        "X-Content-Type-Options": "nosniff",
        **headers,
    }
    if request.method in ("GET", "HEAD") and _has_it(request, digest):
        opened.close()
        return Response(status_code=304, headers=headers)
    return ArtifactFile(opened, opened.path, filename, headers)


def _has_it(request: Request, digest: str) -> bool:
    """RFC 9110 13.1.2: a list of tags, weak or strong, or a star."""
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return f'"{digest}"' in tags or tags == ["*"]


@router.head("/{digest}", include_in_schema=False)
@router.get(
    "/{digest}",
    response_class=FileResponse,
    responses=_FILE_RESPONSES,
    summary="The compiled library",
)
def artifact(digest: str, request: Request) -> Response:
    """The `.so` with this SHA-256, whole or in ranges; `Link` names its manifest, and its weights if they are apart."""
    opened = backend_of(request).store.open(digest)
    return artifact_response(opened, request, filename=f"{digest[:12]}.so", headers={"Cache-Control": _IMMUTABLE})


@router.head("/{digest}/weights", include_in_schema=False)
@router.get(
    "/{digest}/weights",
    response_class=FileResponse,
    responses=_FILE_RESPONSES,
    summary="The weights beside the library",
)
def weights(digest: str, request: Request) -> Response:
    """The safetensors file of an artifact whose weights are too large for the library; 404 when they are inside it."""
    opened = backend_of(request).store.open(digest)
    if len(opened.entry.files) < 2:
        opened.close()
        raise ArtifactNotFound(f"the weights of {digest} are inside the library", digest=digest)
    file = opened.entry.files[1]
    headers = {"ETag": f'"{file.sha256}"', "Cache-Control": _IMMUTABLE}
    if _has_it(request, file.sha256):
        opened.close()
        return Response(status_code=304, headers=headers)
    return ArtifactFile(opened, opened.entry.folder / file.name, file.name, headers)


@router.get(
    "/{digest}/manifest",
    responses={304: _HAS_IT, **_ERRORS},
    summary="What the artifact says of itself",
)
def manifest(digest: str, request: Request) -> Response:
    """The manifest inside the library: signature, target, versions, schedule report, verification (docs/layout.md)."""
    with backend_of(request).store.open(digest) as opened:
        headers = {"ETag": f'"{digest}"', "Cache-Control": _IMMUTABLE}
        if _has_it(request, digest):
            return Response(status_code=304, headers=headers)
        text = Manifest.read(opened.path).to_json()
    return Response(text, media_type="application/json", headers=headers)
