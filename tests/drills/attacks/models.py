"""The damaged and hostile models of both formats, through `POST /v1/compile` and through uploads and jobs."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relaxc.service.errors import by_code
from tests.drills.attacks.attack import Attack, Target
from tests.drills.attacks.wire import Answer
from tests.malformed_onnx import MALFORMED_ONNX
from tests.malformed_pt2 import MALFORMED as MALFORMED_PT2

__all__ = ["attacks"]

_TYPE = "Content-Type: multipart/form-data; boundary=relaxc-drill-boundary"
_POLL_S = 0.3
_ENDS = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class _Files:
    model: tuple[str, bytes]
    data: tuple[tuple[str, bytes], ...]
    code: str

    def form(self) -> bytes:
        """As a form."""
        parts = [("model", *self.model), *(("data", *file) for file in self.data)]
        found = b"".join(
            f'--relaxc-drill-boundary\r\nContent-Disposition: form-data; name="{part}"; filename="{name}"\r\n\r\n'
            .encode() + content + b"\r\n"
            for part, name, content in parts
        )  # fmt: skip
        return found + b"--relaxc-drill-boundary--\r\n"


def _built() -> Iterator[tuple[str, _Files]]:
    for format, table in (("onnx", MALFORMED_ONNX), ("pt2", MALFORMED_PT2)):
        for name, (build, code) in table.items():
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary) / "model"
                folder.mkdir()
                path = build(folder)
                beside = [other for other in sorted(path.parent.iterdir()) if other != path]
                plain = [other for other in beside if other.is_file() and not other.is_symlink()]
                if plain != beside:
                    code = "model-malformed"  # a link or a pipe cannot be uploaded: the data is not there
                data = tuple((other.name, other.read_bytes()) for other in plain)
                yield f"{format}: {name}", _Files((path.name, path.read_bytes()), data, code)


def attacks() -> Iterator[Attack]:
    """Each model both ways. Takes seconds: it exports a program."""
    kinds = by_code()
    for name, files in _built():
        documented = frozenset({(kinds[files.code].http_status, files.code)})
        yield Attack("malformed model, compiled", name, lambda target, files=files: _compile(target, files), documented)
        yield Attack("malformed model, as a job", name, lambda target, files=files: _job(target, files), documented)


def _compile(target: Target, files: _Files) -> list[Answer]:
    return [target.ask("POST", "/v1/compile", _TYPE, body=files.form())]


def _job(target: Target, files: _Files) -> list[Answer]:
    """What the upload gets, or else what the job ends with, as the problem that it is."""
    if files.data:
        kept = target.ask("POST", "/v1/models", _TYPE, body=files.form())
    else:
        content = files.model[1]
        kept = target.ask("PUT", f"/v1/uploads/{hashlib.sha256(content).hexdigest()}", body=content)
    if kept.status not in (200, 201):
        return [kept]
    body = json.dumps({"kind": "compile", "model": kept.json["digest"]}).encode()
    accepted = target.ask("POST", "/v1/jobs", "Content-Type: application/json", body=body)
    if accepted.status != 202:
        return [accepted]
    return [_ended(target, str(accepted.json["id"]))]


def _ended(target: Target, id: str) -> Answer:
    while (answer := target.ask("GET", f"/v1/jobs/{id}")).status == 200:
        job = answer.json
        if job["state"] in _ENDS:
            code = (job["error"] or {}).get("code", "")
            status = by_code()[code].http_status if code else 200
            return Answer(
                status, (("content-type", "application/problem+json"),), json.dumps({**job, "code": code}).encode()
            )
        time.sleep(_POLL_S)
    return answer
