"""`/v1/artifacts`: finished files by their digests. None ever changes, so each may be cached for ever."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from relaxc.service.api.conditional import IMMUTABLE, has_it
from relaxc.service.api.files import ArtifactFile, artifact_response
from relaxc.service.api.ids import ArtifactDigest
from relaxc.service.api.objects import ArtifactList
from relaxc.service.api.owners import Compiler, Reader
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.artifact.entry import Opened
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import ArtifactNotFound
from relaxc.service.jobs.database.rows import Owner

__all__ = ["router"]

router = APIRouter(prefix="/v1/artifacts", tags=["artifacts"])

_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_HAS_IT = {"description": "The sender has it already."}
_ERRORS = responses("artifact-not-found", "artifact-corrupt")
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file.",
        "content": _BINARY,
        "headers": {"ETag": {"description": "Its SHA-256, quoted.", "schema": {"type": "string"}}},
    },
    206: {"description": "The asked-for range of it, or several.", "content": _BINARY | {"multipart/byteranges": {}}},
    304: _HAS_IT,
    **responses("range-not-satisfiable"),
    **_ERRORS,
}
_JSON: dict[int | str, dict[str, Any]] = {
    200: {"description": "The JSON.", "content": _OBJECT},
    304: _HAS_IT,
    **_ERRORS,
}
_REPORTED = ("target", "signature", "options", "passes", "schedule", "verification", "versions", "command")


@router.head("/{digest}", include_in_schema=False)
@router.get("/{digest}", response_class=FileResponse, responses=_FILE, summary="The compiled library")
def artifact(digest: ArtifactDigest, request: Request, owner: Reader) -> Response:
    """Return the `.so` with this SHA-256, whole or in ranges; `Link` names its manifest, and its weights if they are
    apart.
    """
    opened = _open(request, owner, digest)
    return artifact_response(opened, request, filename=f"{digest[:12]}.so", headers={"Cache-Control": IMMUTABLE})


@router.head("/{digest}/weights", include_in_schema=False)
@router.get("/{digest}/weights", response_class=FileResponse, responses=_FILE, summary="The weights beside the library")
def weights(digest: ArtifactDigest, request: Request, owner: Reader) -> Response:
    """Return the safetensors file of an artifact whose weights are too large for the library; 404 when they are inside
    it.
    """
    opened = _open(request, owner, digest)
    if len(opened.entry.files) < 2:
        opened.close()
        raise ArtifactNotFound(f"the weights of {digest} are inside the library", digest=digest)
    file = opened.entry.files[1]
    headers = {"ETag": f'"{file.sha256}"', "Cache-Control": IMMUTABLE}
    if has_it(request, file.sha256):
        opened.close()
        return Response(status_code=304, headers=headers)
    return ArtifactFile(opened, opened.entry.folder / file.name, file.name, headers)


@router.get("/{digest}/manifest", responses=_JSON, summary="What the artifact says of itself")
def manifest(digest: ArtifactDigest, request: Request, owner: Reader) -> Response:
    """Return the manifest inside the library: signature, target, versions, schedule report, verification
    (docs/stages.md).
    """
    text = backend_of(request).artifacts.manifest(owner, digest)
    headers = {"ETag": f'"{digest}"', "Cache-Control": IMMUTABLE}
    if has_it(request, digest):
        return Response(status_code=304, headers=headers)
    return Response(text, media_type="application/json", headers=headers)


@router.get("/{digest}/report", responses=_JSON, summary="How the artifact was made")
def report(digest: ArtifactDigest, request: Request, owner: Reader) -> Response:
    """Return a summary of the manifest: files, kernels and their schedules, fusions, verification."""
    with _open(request, owner, digest) as opened:
        headers = {"ETag": f'"{digest}"', "Cache-Control": IMMUTABLE}
        if has_it(request, digest):
            return Response(status_code=304, headers=headers)
        read = Manifest.read(opened.path)
        made = read.to_dict()
        files = [{"name": f.name, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in opened.entry.files]
    shown = {name: made[name] for name in ("signature", "passes", "schedule", "verification", "versions", "command")}
    return JSONResponse({"artifact": digest, "files": files, "target": read.target_names, **shown}, headers=headers)


@router.get("", response_model=ArtifactList, summary="Your artifacts")
def list_artifacts(request: Request, owner: Reader) -> Response:
    """List up to 1000 artifacts, the newest first. A size of 0 means that the store has removed the file."""
    return JSONResponse({"artifacts": [row.to_dict() for row in backend_of(request).artifacts.list(owner)]})


@router.delete("/{digest}", status_code=204, responses=responses("artifact-not-found"), summary="Forget an artifact")
def remove_artifact(digest: ArtifactDigest, request: Request, owner: Compiler) -> Response:
    """Delete it from your list; jobs already accepted still run."""
    backend_of(request).artifacts.remove(owner, digest)
    return Response(status_code=204)


def _open(request: Request, owner: Owner, digest: str) -> Opened:
    return backend_of(request).artifacts.open(owner, digest)
