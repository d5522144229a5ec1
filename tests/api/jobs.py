"""What the tests of the API do with jobs: upload, ask, follow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from tests.api.conftest import RunningServer
from tests.jobs.entries import seed_of
from tests.waiting import PATIENCE_S

__all__ = ["ENDS", "Event", "ended", "options_of", "parsed", "submit", "uploaded"]

ENDS = ("succeeded", "failed", "cancelled")

Event = tuple[int | None, str, dict[str, Any]]


def uploaded(server: RunningServer, model: bytes, name: str = "net.onnx") -> str:
    """The digest of a model that the server now has."""
    answer = server.client.post("/v1/models", files={"model": (name, model)})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["digest"])


def options_of(entry: str = "made", **shapes: int) -> dict[str, Any]:
    """Options that make the child do what `entry` of tests/jobs/entries.py does."""
    return {"seed": seed_of(entry), "shapes": {name: [size] for name, size in shapes.items()}}


def submit(server: RunningServer, digest: str, entry: str = "made", **wanted: Any) -> httpx.Response:
    """Asks for a compile."""
    headers = wanted.pop("headers", {})
    shapes = wanted.pop("shapes", {})
    body = {"kind": "compile", "model": digest, "options": options_of(entry, **shapes), **wanted}
    return server.client.post("/v1/jobs", json=body, headers=headers)


def ended(server: RunningServer, id: str) -> dict[str, Any]:
    """The job at its end."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        job: dict[str, Any] = server.client.get(f"/v1/jobs/{id}").json()
        if job["state"] in ENDS:
            return job
        time.sleep(0.05)
    raise AssertionError(f"job {id} is {job['state']} in stage {job['stage']}")


def parsed(lines: Iterator[str]) -> Iterator[Event]:
    """The server-sent events in a stream's lines: number, kind, data."""
    number, kind, data = None, "message", ""
    for line in lines:
        name, _, value = line.partition(": ")
        if not line:
            if data:
                yield number, kind, json.loads(data)
            kind, data = "message", ""
        elif name == "id":
            number = int(value)
        elif name == "event":
            kind = value
        elif name == "data":
            data += value
