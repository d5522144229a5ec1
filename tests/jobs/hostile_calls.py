"""What a hostile model could make a job ask of the kernel by number: each call says what it got, or raises OSError."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["CALLS", "NUMBERS"]

_CLONE_NEWUSER = 0x10000000
_AT_FDCWD = -100

# Name → number on x86_64, on aarch64.
NUMBERS = {
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "clone": (56, 220),
    "clone3": (435, 435),
    "acct": (163, 89),
    "swapon": (167, 224),
    "reboot": (169, 142),  # without its magic numbers: rights are looked at first
    "sethostname": (170, 161),
    "vhangup": (153, 58),
    "syslog": (103, 116),
    "ioprio_set": (251, 30),
    "fanotify_init": (300, 262),
    "fchmodat2": (452, 452),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
_ARGUMENTS: dict[str, tuple[int | ctypes.c_char_p, ...]] = {
    "fchmodat2": (_AT_FDCWD, ctypes.c_char_p(b"/etc/passwd"), 0o644),
    "mq_open": (ctypes.c_char_p(b"relaxc-left"), os.O_CREAT | os.O_RDWR, 0o600),
    "unshare": (_CLONE_NEWUSER,),
    "clone": (_CLONE_NEWUSER | signal.SIGCHLD,),
    "syslog": (5,),
    "ioprio_set": (1, 0, 1 << 13),
    "fanotify_init": (0, 0),
    "shmget": (0, 4096, 0o1600),
    "msgget": (0, 0o1600),
    "semget": (0, 1, 0o1600),
}


def _numbered(name: str) -> Callable[[Any], str]:
    def call(_: Any) -> str:
        number = NUMBERS[name][0 if platform.machine() == "x86_64" else 1]
        return f"result {_syscall(number, *_ARGUMENTS.get(name, ()))}"

    return call


def _syscall(number: int, *arguments: int | ctypes.c_char_p) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    wide += [ctypes.c_long(0)] * (6 - len(wide))
    result = int(libc.syscall(ctypes.c_long(number), *wide))
    if result == 0 and number in NUMBERS["clone"]:
        os._exit(0)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _watch(path: str) -> str:
    """Names of what others do in a folder."""
    x86 = platform.machine() == "x86_64"
    watching = _syscall(294 if x86 else 26, 0)
    return f"watches {_syscall(254 if x86 else 27, watching, ctypes.c_char_p(path.encode()), 0x100)}"


def _send_message(_: Any) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        return f"sent {datagrams.sendto(b'x', ('127.0.0.1', 53))}"


def _socket(kind: list[int]) -> str:
    with socket.socket(*kind):
        return "made"


def _make_node(kind: int) -> str:
    os.mknod("node", kind | 0o600, os.makedev(1, 1))
    return "made"


def _make_folder(path: str) -> str:
    Path(path).mkdir()
    return "made"


def _make_link(path: str) -> str:
    Path("a link").symlink_to(path)
    return "made"


def _raise_limit(kind: int) -> str:
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError as error:
        raise PermissionError(1, str(error)) from error
    return "raised"


def _be_urgent(_: Any) -> str:
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    return "urgent"


def _be_real_time(_: Any) -> str:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    return "real time"


def _join_root(_: Any) -> str:
    os.setgroups([0])
    return "in the group of root"


def _spare_me(_: Any) -> str:
    Path("/proc/self/oom_score_adj").write_text("-1000")
    return "spared"


def _fork_bomb(most: int) -> str:
    for _ in range(most):
        if os.fork() == 0:
            time.sleep(600)
    return f"{most} processes"


def _thread_bomb(most: int) -> str:
    threading.stack_size(64 << 10)
    for _ in range(most):
        try:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        except RuntimeError as error:
            raise OSError(11, str(error)) from error
    return f"{most} threads"


def _open_many(most: int) -> str:
    for _ in range(most):
        os.open("/dev/null", os.O_RDONLY)
    return f"{most} files"


CALLS: dict[str, Callable[[Any], Any]] = {
    **{name: _numbered(name) for name in NUMBERS},
    **{
        function.__name__.lstrip("_"): function
        for function in (
            *(_watch, _send_message, _socket, _make_node, _make_folder, _make_link, _raise_limit),
            *(_be_urgent, _be_real_time, _join_root, _spare_me, _fork_bomb, _thread_bomb, _open_many),
        )
    },
}
