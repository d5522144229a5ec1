"""Files as answers: ranges of any, and of the artifact store's validators and links."""

from __future__ import annotations

from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.responses import MalformedRangeHeader, RangeNotSatisfiable
from starlette.types import Receive, Scope, Send

from relaxc.service.api.conditional import has_it
from relaxc.service.artifact.entry import Opened

__all__ = ["ArtifactFile", "RangedFile", "artifact_response"]


class RangedFile(FileResponse):
    """A file, a mebibyte at a time: whole or in ranges, of which the refusals are problems."""

    chunk_size = 1 << 20

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        """Starlette's, whose refusals are no problems: an invalid range is ignored (RFC 9110, 14.2)."""
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader:
            return []
        except RangeNotSatisfiable as error:
            size = {"Content-Range": f"bytes */{file_size}"}
            raise HTTPException(416, f"the file has {file_size} bytes", headers=size) from error


class ArtifactFile(RangedFile):
    """A file of the store; it is not removed while it is sent."""

    def __init__(self, opened: Opened, path: Path, filename: str, headers: dict[str, str]) -> None:
        media_type = "application/octet-stream"
        super().__init__(path, headers=headers, media_type=media_type, filename=filename, stat_result=path.stat())
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it; then the store may remove it again."""
        with self._opened:
            await super().__call__(scope, receive, send)


def artifact_response(opened: Opened, request: Request, *, filename: str, headers: dict[str, str]) -> Response:
    """Return the library of an artifact, with links to what belongs to it; 304 where the sender has it."""
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
    if request.method in ("GET", "HEAD") and has_it(request, digest):
        opened.close()
        return Response(status_code=304, headers=headers)
    return ArtifactFile(opened, opened.path, filename, headers)
