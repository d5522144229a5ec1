"""What of the network a job tries to reach."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relaxc.service.process.task import Emit

__all__ = ["reach"]

_MPTCP = 262


def reach(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tries each way; the result has under `got` what came of it."""
    here = "127.0.0.1"

    def connect(port: int) -> None:
        socket.create_connection((here, port), timeout=5).close()

    def listen() -> None:
        with socket.socket() as listening:
            listening.bind((here, 0))

    def fast_open(*, by_message: bool) -> None:
        with socket.socket() as connection:
            where = (here, payload["other"])
            if by_message:
                connection.sendmsg([b"x"], [], socket.MSG_FASTOPEN, where)
            else:
                connection.sendto(b"x", socket.MSG_FASTOPEN, where)

    ways: dict[str, Callable[[], Any]] = {
        "allowed": lambda: connect(payload["allowed"]),
        "other": lambda: connect(payload["other"]),
        "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "udp 6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        "mptcp": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, _MPTCP),
        "sctp": lambda: socket.socket(socket.AF_INET, socket.SOCK_SEQPACKET),
        "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "unix datagrams": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        "listen": listen,
        "fast open": lambda: fast_open(by_message=False),
        "fast open by sendmsg": lambda: fast_open(by_message=True),
        "pair": socket.socketpair,
    }
    emit({"event": "result", "got": {name: _tried(way) for name, way in ways.items()}})


def _tried(way: Callable[[], Any]) -> str:
    try:
        way()
    except OSError:
        return "refused"
    return "reached"
