"""What children do on a node in tests."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

from relaxc.service.process.task import Emit


def copy(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Copies what it was given, and leaves what is no plain file; tells whether it has a network."""
    print("copying", flush=True)
    data = Path(payload["path"]).read_bytes()
    emit({"event": "log", "level": "info", "message": "half"})
    (workdir / "copied").write_bytes(data)
    (workdir / "empty").touch()
    (workdir / "folder").mkdir()
    with contextlib.suppress(OSError):
        (workdir / "link").symlink_to("/etc/passwd")
    print("copied", flush=True)
    emit({"event": "log", "level": "info", "message": "whole"})
    try:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
        network = "open"
    except OSError:
        network = "refused"
    known = (workdir / "known").read_text()
    emit({"event": "result", "known": known, "path": payload["path"], "network": network})
