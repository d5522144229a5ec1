"""What a job's process says and leaves when code of its model runs in it: lies about what others will be given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.process.task import Emit
from tests.jobs.entries import made

__all__ = ["BY_SEED", "CLAIM", "CLAIMING", "claim", "claiming", "seed_of"]

CLAIM = "tests.jobs.liars:claim"
CLAIMING = b'\x08\x08{"digest"'
"""How such a file begins."""

BY_SEED = "tests.jobs.liars:by_seed"


def claiming(digest: str, nonce: str = "") -> bytes:
    """A file that begins as a model does, and has `claim` say that it is the model `digest`."""
    return b"\x08\x08" + json.dumps({"digest": digest, "nonce": nonce}).encode()


def claim(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Takes any upload for a model, and says of it what the file asks for, as well as a wrong format and size."""
    path = Path(payload["path"])
    content = path.read_bytes()
    lie = json.loads(content[2:]) if content[2:3] == b"{" else {}
    digest = hashlib.sha256(content).hexdigest()
    model = {"format": "pt2", "size_bytes": 1, "digest": digest, "path": str(path), **lie}
    emit({"event": "result", "model": model, **model})


def _as_honest(payload: dict[str, Any], workdir: Path) -> None:
    """Leaves, to the byte, what a compile with seed 0 would: its model's code can compute all of that."""
    request = payload["request"]
    made({"request": {**request, "options": {**request["options"], "seed": 0}}}, workdir, lambda event: None)


def other_weights(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """An honest library with other weights beside it."""
    _as_honest(payload, workdir)
    beside = workdir / "model.safetensors"
    beside.write_bytes(bytes(beside.stat().st_size))
    emit({"event": "result", "files": ["model.so", beside.name]})


def no_weights(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """An honest library without the weights that it has beside it."""
    _as_honest(payload, workdir)
    emit({"event": "result", "files": ["model.so"]})


def other_name(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """An honest library under the name of the store's own file."""
    _as_honest(payload, workdir)
    (workdir / "model.so").rename(workdir / "entry.json")
    emit({"event": "result", "files": ["entry.json", "model.safetensors"]})


def other_model(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """A library that says that it was made from another model."""
    request = payload["request"]
    made({"request": {**request, "model": {**request["model"], "digest": "d" * 64}}}, workdir, emit)


def boast(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """An honest artifact, with words for everybody in the record of the build."""
    made(payload, workdir, emit)
    stages = {"build": 0.1, "import": "call 0900", "pack": -1, "verify": 1e99, "optimize": True, "call 0900": 1}
    (workdir / "build.json").write_text(json.dumps({"stages": stages, "host": "evil", "date": "evil", "note": "evil"}))


def mumble(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """An honest artifact, and a record of the build that is none."""
    made(payload, workdir, emit)
    (workdir / "build.json").write_text('{"stages": [1]}')


LIES: tuple[Callable[[dict[str, Any], Path, Emit], None], ...] = (
    *(made, other_weights, no_weights, other_name, other_model),
    *(boast, mumble),
)


def by_seed(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """One of these; the request's seed says which."""
    LIES[payload["request"]["options"]["seed"]](payload, workdir, emit)


def seed_of(lie: str) -> int:
    """The seed that makes `by_seed` do this."""
    return [function.__name__ for function in LIES].index(lie)
