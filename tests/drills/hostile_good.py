"""The good client of the hostile drill: real compiles without a pause, each of which must succeed at its first try."""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.api.conftest import make_onnx
from tests.drills.attacks.attack import Target
from tests.drills.attacks.wire import Answer
from tests.drills.hostile_entries import ESCAPING
from tests.malformed_pt2 import archive, write

__all__ = ["Good", "events_of"]

_FORM = "Content-Type: multipart/form-data; boundary=good"
_JSON = "Content-Type: application/json"
_POLL_S = 0.2
_ENDS = ("succeeded", "failed", "cancelled")


class Good:
    """Compiles through one way and another until it is told to stop; `wrong` is what has not gone as it should."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.succeeded = 0
        self.wrong: list[str] = []
        self._stopped = threading.Event()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        with tempfile.TemporaryDirectory() as folder:
            self._program = write(Path(folder) / "net.pt2", archive()).read_bytes()

    def run(self, way: Callable[[], object]) -> None:
        """Does this again and again."""
        while not self._stopped.is_set():
            try:
                way()
            except (AssertionError, OSError, ValueError, KeyError) as error:
                self.wrong.append(f"{way.__name__}: {type(error).__name__}: {error}"[:600])
            else:
                with self._lock:
                    self.succeeded += 1

    def stop(self) -> None:
        """After what is being done."""
        self._stopped.set()

    def compile_onnx(self) -> None:
        """A new model in a form, its library in the answer."""
        self._compile(make_onnx(8, seed=next(self._numbers)), {})

    def compile_pt2(self) -> None:
        """The program, with a seed of its own."""
        self._compile(self._program, {"seed": next(self._numbers)})

    def _compile(self, model: bytes, options: dict[str, Any]) -> None:
        parts = {"model": model, "options": json.dumps(options).encode()}
        body = b"".join(
            f'--good\r\nContent-Disposition: form-data; name="{name}"; filename="net"\r\n\r\n'.encode() + part + b"\r\n"
            for name, part in parts.items()
        )
        answer = self._ask("POST", "/v1/compile", _FORM, body=body + b"--good--\r\n")
        _expect(answer, 200)
        digest = hashlib.sha256(answer.body).hexdigest()
        assert answer.header("etag") == f'"{digest}"', "the library is not what its ETag says"
        self._verified(digest)

    def job(self, seed: int | None = None) -> dict[str, Any]:
        """A new model uploaded by its digest in two parts, a job of it, and its artifact by digest; the job."""
        number = next(self._numbers)
        model = make_onnx(8, seed=10_000 + number)
        path, half, size = f"/v1/uploads/{hashlib.sha256(model).hexdigest()}", len(model) // 2, len(model)
        _expect(self._ask("PUT", path, f"Content-Range: bytes 0-{half - 1}/{size}", body=model[:half]), 202)
        kept = self._ask("PUT", path, f"Content-Range: bytes {half}-{size - 1}/{size}", body=model[half:])
        _expect(kept, 201)
        job = self._ended(self._submitted(kept.json["digest"], number if seed is None else seed))
        assert job["state"] == "succeeded", f"the job is {job['state']}: {job['error']}"
        got = self._ask("GET", f"/v1/artifacts/{job['artifact']}")
        _expect(got, 200)
        assert hashlib.sha256(got.body).hexdigest() == job["artifact"], "the artifact is not what its digest says"
        self._verified(job["artifact"])
        return job

    def escaping_job(self, port: int) -> dict[str, Any]:
        """A job that tries to get out, to the listener at this port among others; it compiles all the same."""
        return self.job(ESCAPING + port)

    def swapping_job(self, seed: int, model: str) -> tuple[dict[str, Any], bytes]:
        """A job that puts something else in place of its log; how it ended, and all that its log ever showed."""
        id, seen = self._submitted(model, seed), b""
        while (job := self._job(id))["state"] not in _ENDS:
            seen += self._ask("GET", f"/v1/jobs/{id}/logs").body
            time.sleep(_POLL_S)
        return job, seen + self._ask("GET", f"/v1/jobs/{id}/logs").body

    def done(self, model: str, options: dict[str, Any], key: str) -> dict[str, Any]:
        """A job of this model with these options, by this key, at its end."""
        id = self._submitted(model, 0, options, key)
        while (job := self.target.ask("GET", f"/v1/jobs/{id}", key=key).json)["state"] not in _ENDS:
            time.sleep(_POLL_S)
        return job  # type: ignore[no-any-return]

    def _submitted(self, model: str, seed: int, options: dict[str, Any] | None = None, key: str = "good") -> str:
        wanted = {"model": model, "options": options or {"seed": seed}}
        accepted = self.target.ask("POST", "/v1/jobs", _JSON, key=key, body=json.dumps(wanted).encode())
        _expect(accepted, 202)
        return str(accepted.json["id"])

    def _verified(self, digest: str) -> None:
        manifest = self._ask("GET", f"/v1/artifacts/{digest}/manifest")
        _expect(manifest, 200)
        assert manifest.json["verification"]["passed"], "the library is not verified"

    def _ended(self, id: str) -> dict[str, Any]:
        while (job := self._job(id))["state"] not in _ENDS:
            time.sleep(_POLL_S)
        return job

    def _job(self, id: str) -> dict[str, Any]:
        answer = self._ask("GET", f"/v1/jobs/{id}")
        _expect(answer, 200)
        job: dict[str, Any] = answer.json
        return job

    def _ask(self, method: str, path: str, *headers: str, body: bytes | None = None) -> Answer:
        return self.target.ask(method, path, *headers, key="good", body=body)


def _expect(answer: Answer, status: int) -> None:
    assert answer.status == status, f"{answer.status}: {answer.body[:300]!r}"


def events_of(target: Target, id: str) -> Iterator[dict[str, Any]]:
    """What a job that has ended told, over HTTP."""
    for line in target.ask("GET", f"/v1/jobs/{id}/events", key="good").body.decode().splitlines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
