"""What a hostile model could make a job try: each attempt says what it got, or how it was refused."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service import machine
from service.process.task import Emit

_PTRACE_ATTACH = 16


def attempt(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tries every attempt that `payload` has an argument for; the result has under `got` what came of each."""
    emit({"event": "result", "got": {name: _tried(_ATTEMPTS[name], argument) for name, argument in payload.items()}})


def _tried(attack: Callable[[Any], Any], argument: Any) -> str:
    try:
        return f"got {attack(argument)!r}"
    except OSError as error:
        return f"refused: {error.strerror}"


def _tcp(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        return connection.recv(100).decode()


def _unix(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        return connection.recv(100).decode()


def _datagram(path: str) -> str:
    """A pair of sockets needs no name; one of them can yet send to any."""
    with contextlib.ExitStack() as closing:
        mine, _ = (closing.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        return f"sent {mine.sendto(b'x', path)}"


def _raw(path: str) -> str:
    """SOCK_RAW is a datagram socket by another name."""
    with contextlib.ExitStack() as closing:
        mine, _ = (closing.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW))
        return f"sent {mine.sendto(b'x', path)}"


def _unconnected(path: str) -> str:
    """A socket of packets that was never connected."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as packets:
        return f"sent {packets.sendto(b'x', path)}"


def _named_socket(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(path)
        return "bound"


def _start_as_cuda_does(_: Any) -> str:
    """What the CUDA driver's cuInit does beside opening devices: it is refused (304) where it may not."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("cuda")
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as waiting:
            waiting.bind(f"\0cuda-uvmfd-{os.getpid()}-{kind.value}")
            waiting.listen(16)
    return f"started, the GPU asked for before: {machine._asked_gpu.cache_info().currsize}"


def _read(path: str) -> str:
    return Path(path).read_text()


def _list(path: str) -> list[str]:
    return os.listdir(path)  # noqa: PTH208  # what the attack would call


def _write(path: str) -> str:
    Path(path).write_text("x")
    return "written"


def _link_and_read(path: str) -> str:
    Path("link").symlink_to(path)
    return Path("link").read_text()


def _kill(pid: int) -> str:
    os.kill(pid, signal.SIGCONT)
    return "sent"


def _attach(pid: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_PTRACE_ATTACH, pid, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "attached"


def _environments(pids: list[int]) -> str:
    """Its own, from memory and from the kernel, and those of the processes named."""
    found = [f"{name}={value}" for name, value in os.environ.items()]
    for pid in ("self", os.getppid(), *pids):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/environ").read_text())
    return "\n".join(found)


def _become_root(_: Any) -> str:
    os.setresuid(0, 0, 0)
    return "root"


def _namespace(_: Any) -> str:
    done = subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True, check=False)
    if done.returncode != 0:
        raise PermissionError(1, "unshare failed")
    return "new namespaces"


def _breed(most: int) -> int:
    """Forks until it is refused; how many there were then."""
    for count in range(most):
        try:
            if os.fork() == 0:
                time.sleep(600)
        except BlockingIOError:
            return count
    return most


def _facts(_: Any) -> dict[str, Any]:
    return {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "home": os.environ["HOME"]}


_ATTEMPTS: dict[str, Callable[[Any], Any]] = {
    function.__name__.lstrip("_"): function
    for function in (
        *(
            _tcp,
            _unix,
            _datagram,
            _raw,
            _unconnected,
            _named_socket,
            _start_as_cuda_does,
            _read,
            _list,
            _write,
            _link_and_read,
            _kill,
            _attach,
            _environments,
        ),
        *(_become_root, _namespace, _breed, _facts),
    )
}
