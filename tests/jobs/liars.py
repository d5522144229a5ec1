"""What a job's process says and leaves when code of its model runs in it: lies about what others will be given."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from relaxc.service.lowering.kernel_builder import start_builder
from relaxc.service.lowering.kernel_cache import Record, path_of
from relaxc.service.process.task import Emit
from tests.jobs.entries import made
from tests.lowering.object_files import elf

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


def poison(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Begins as a compile does, and then tries all ways to have an object of its own kept; tells those that went."""
    start_builder(payload["kernels"], workdir)
    (builder,) = psutil.Process().children()
    forged = Record("ab" * 32, elf(b"evil"))
    folder = Path(payload["kernels"]["folder"])

    def journal_by_name() -> None:
        with (workdir / payload["kernels"]["journal"]).open("wb") as file:
            forged.write(file)
        raise PermissionError  # it may write a file of that name, which is another one

    def into_the_cache() -> None:
        path_of(folder, forged.key).parent.mkdir(exist_ok=True)

    ways: dict[str, Callable[[], object]] = {
        "journal": journal_by_name,
        "cache": into_the_cache,
        "staging": lambda: (folder / "staging" / "x").write_bytes(b"x"),
        "memory": lambda: os.open(f"/proc/{builder.pid}/mem", os.O_RDWR),
        **{f"fd {number}": partial(os.open, f"/proc/{builder.pid}/fd/{number}", os.O_RDWR) for number in range(3, 20)},
    }
    went = []
    for name, way in ways.items():
        with suppress(OSError):
            way()
            went.append(name)
    emit({"event": "result", "went": went})


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
