"""What a hostile model could make a job try: each attempt says what it got, or how it was refused."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relaxc.service import machine
from relaxc.service.process.task import Emit
from tests.jobs.hostile_calls import CALLS

_PTRACE_ATTACH = 16


def attempt(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tries every attempt that `payload` has an argument for; the result has under `got` what came of each."""
    emit({"event": "result", "got": {name: _tried(_ATTEMPTS[name], argument) for name, argument in payload.items()}})


def attempts(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Does all of `tries`; the result has under `got` what came of each."""
    emit({"event": "result", "got": attempt_all(payload["tries"])})


def attempt_all(tries: Sequence[tuple[str, str, Any]]) -> dict[str, str]:
    """What came of each of these, by its name; a try is that, the name of an attempt, and its argument."""
    return {name: _tried(_ATTEMPTS[attack], argument) for name, attack, argument in tries}


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


def _start_cuda_in_a_child(_: Any) -> str:
    """The same in a process that the job has forked, as a tuning forks its runners."""
    child = os.fork()
    if child == 0:
        try:
            _start_as_cuda_does(None)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    error = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if error:
        raise OSError(error, os.strerror(error))
    return "started"


def _open_for_writing(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY))
    return "opened"


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


def _chmod(path: str) -> str:
    os.chmod(path, 0o777)  # noqa: PTH101  # what the attack would call
    return "changed"


def _chmod_by_descriptor(path: str) -> str:
    """A file that may be read, or a folder, can be opened."""
    fd = os.open(path, os.O_RDONLY)
    os.fchmod(fd, 0o777)
    return "changed"


def _chown(path: str) -> str:
    os.chown(path, os.getuid(), os.getgid())  # to whom it belongs already: a change of no id is a change of the time
    return "changed"


def _utime(path: str) -> str:
    os.utime(path, (0, 0))
    return "changed"


def _truncate(path: str) -> str:
    os.truncate(path, 0)
    return "emptied"


def _open_and_truncate(path: str) -> str:
    os.open(path, os.O_RDONLY | os.O_TRUNC)
    return "emptied"


def _attribute(path: str) -> str:
    os.setxattr(path, "user.relaxc", b"x")
    return "set"


def _rename(path: str) -> str:
    os.rename(path, f"{path}.gone")  # noqa: PTH104  # what the attack would call
    return "moved"


def _unlink(path: str) -> str:
    os.unlink(path)  # noqa: PTH108  # what the attack would call
    return "removed"


def _hard_link(path: str) -> str:
    os.link(path, "taken")  # what the attack would call
    return "linked"


def _limit(pid: int) -> str:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))
    return "limited"


def _priority(pid: int) -> str:
    os.setpriority(os.PRIO_PROCESS, pid, 19)
    return "slowed"


def _pin(pid: int) -> str:
    os.sched_setaffinity(pid, os.sched_getaffinity(0))
    return "pinned"


def _pidfd(pid: int) -> str:
    signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT)
    return "sent"


def _score(pid: int) -> str:
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    return "written"


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


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
            _start_cuda_in_a_child,
            _open_for_writing,
            _read,
            _list,
            _write,
            _link_and_read,
            _kill,
            _attach,
            _environments,
        ),
        *(_chmod, _chmod_by_descriptor, _chown, _utime, _truncate, _open_and_truncate, _attribute),
        *(_rename, _unlink, _hard_link, _limit, _priority, _pin, _pidfd, _score, _command_line),
        *(_become_root, _namespace, _breed, _facts),
    )
} | CALLS
