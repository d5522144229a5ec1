"""A filter of system calls: no way out by a socket, no looking into other processes, no namespaces or mounts.

A deny list, as in systemd's and Docker's defaults: what a compiler, LLVM, torch and CUDA call is too much to name.
It stands behind the namespaces, Landlock and the user, so that none of them is all that holds.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator

from relaxc.service.process.sandbox.kernel import prctl

__all__ = ["available", "filter_calls"]

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
# <linux/seccomp.h>, <linux/audit.h>, <linux/bpf_common.h>
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
_AF_INET, _AF_INET6, _IPPROTO_TCP, _MSG_FASTOPEN = 2, 10, 6, 0x20000000
_SENDS = (((44, 206), 3), ((46, 211), 2), ((307, 269), 3))
"""sendto, sendmsg, sendmmsg, and which argument their flags are."""

_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _TYPE_MASK = 1, 1, 5, 0xF
_NAMESPACES = 0x7E020000  # every CLONE_NEW… that clone(2) takes

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Name → number on x86_64, on aarch64.
_DENIED = {
    # Memory, files and timing of other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "perf_event_open": (298, 241),
    # Ways round the other parts
    "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # What outlives a job, or is another's of the same user: System V's and POSIX's memory, queues and semaphores
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # The names of what others do in a folder, which Landlock does not hide
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # What attacks on the kernel begin with
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
}
_CHANGES_MODES = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
"""What Landlock does not know of: modes, owners, times and attributes of files."""
_PRLIMIT = (302, 261)
_CONNECT = (42, 203)
_SOCKET, _SOCKETPAIR, _CLONE, _CLONE3 = (41, 198), (53, 199), (56, 220), (435, 435)

Instruction = tuple[int, int, int, int]
"""Code, how many to skip if so, how many if not, operand."""


def available() -> bool:
    """Return whether the filter is written for this machine's architecture."""
    return platform.machine() in _ARCHES


def filter_calls(*, network: bool, modes: bool, tcp: bool = False) -> None:
    """From now on this process and its children get EPERM for the calls above; a network stays only with `network`.

    Without one there are UNIX sockets that wait or are made in pairs, and none that reaches a name: the standard
    library makes such pairs, and the CUDA driver does not start where it may not listen on one.
    With `tcp` there is that as well, and nothing else that Landlock has no ports for.
    `modes` allows the calls that change those of files, and their owners and times.

    Raise OSError where the kernel has no seccomp or `no_new_privs` is not set, NotImplementedError on other
    architectures. Not to be undone.
    """
    if not available():
        raise NotImplementedError(f"no filter of system calls for {platform.machine()}")
    machine = platform.machine()
    code = b"".join(struct.pack("HBBI", *row) for row in _program(machine, network=network, modes=modes, tcp=tcp))
    rows = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(rows))
    program = ctypes.create_string_buffer(header, len(header))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))


def _program(machine: str, *, network: bool, modes: bool, tcp: bool = False) -> Iterator[Instruction]:
    column = list(_ARCHES).index(machine)
    yield _LOAD, 0, 0, _ARCH
    yield _EQUAL, 1, 0, _ARCHES[machine]
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NR
    yield from _refuse((_AT_LEAST, 0, 1, _X32), errno.ENOSYS)  # numbers of another table
    denied = [*_DENIED.values(), *([] if network or tcp else [_CONNECT]), *([] if modes else _CHANGES_MODES.values())]
    for number in (numbers[column] for numbers in denied):
        if number is not None:
            yield from _refuse((_EQUAL, 0, 1, number), errno.EPERM)
    # Its flags are behind a pointer, which a filter cannot follow; glibc then takes clone.
    yield from _refuse((_EQUAL, 0, 1, _CLONE3[column]), errno.ENOSYS)
    yield from _only_of_itself(_PRLIMIT[column])
    yield _EQUAL, 0, 4, _CLONE[column]
    yield _LOAD, 0, 0, _ARGUMENTS
    yield from _refuse((_ANY_BIT, 0, 1, _NAMESPACES), errno.EPERM)
    yield _RETURN, 0, 0, _ALLOW
    if tcp:
        yield from _only_tcp(_SOCKET[column])
        for numbers, argument in _SENDS:
            yield from _no_fast_open(numbers[column], argument)
    elif not network:
        yield from _only_unix_streams(_SOCKET[column])
        yield from _only_unix_streams(_SOCKETPAIR[column])
    yield _RETURN, 0, 0, _ALLOW


def _only_tcp(number: int) -> Iterator[Instruction]:
    """Sockets of UNIX streams, and of TCP itself: Landlock, which knows ports, takes neither MPTCP nor SCTP for it."""
    refused, allowed = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    yield _EQUAL, 0, 19, number
    yield _LOAD, 0, 0, _ARGUMENTS
    yield _EQUAL, 3, 0, _AF_UNIX
    yield _EQUAL, 7, 0, _AF_INET
    yield _EQUAL, 6, 0, _AF_INET6
    yield refused
    yield _LOAD, 0, 0, _ARGUMENTS + 8
    yield _AND, 0, 0, _TYPE_MASK
    yield _EQUAL, 10, 0, _SOCK_STREAM
    yield _EQUAL, 9, 0, _SOCK_SEQPACKET
    yield refused
    yield _LOAD, 0, 0, _ARGUMENTS + 8
    yield _AND, 0, 0, _TYPE_MASK
    yield _EQUAL, 1, 0, _SOCK_STREAM
    yield refused
    yield _LOAD, 0, 0, _ARGUMENTS + 16
    yield _EQUAL, 2, 0, 0
    yield _EQUAL, 1, 0, _IPPROTO_TCP
    yield refused
    yield allowed


def _no_fast_open(number: int, argument: int) -> Iterator[Instruction]:
    """A call that may connect while it sends, which Landlock does not see."""
    yield _EQUAL, 0, 4, number
    yield _LOAD, 0, 0, _ARGUMENTS + 8 * argument
    yield from _refuse((_ANY_BIT, 0, 1, _MSG_FASTOPEN), errno.EPERM)
    yield _RETURN, 0, 0, _ALLOW


def _only_of_itself(number: int) -> Iterator[Instruction]:
    """A call whose first argument is a process, 0 for who calls."""
    yield _EQUAL, 0, 4, number
    yield _LOAD, 0, 0, _ARGUMENTS
    yield _EQUAL, 1, 0, 0
    yield _RETURN, 0, 0, _ERRNO | errno.EPERM
    yield _RETURN, 0, 0, _ALLOW


def _only_unix_streams(number: int) -> Iterator[Instruction]:
    """A datagram socket, which SOCK_RAW is another name of, can send to any name without being connected."""
    yield _EQUAL, 0, 9, number
    yield _LOAD, 0, 0, _ARGUMENTS
    yield _EQUAL, 1, 0, _AF_UNIX
    yield _RETURN, 0, 0, _ERRNO | errno.EPERM
    yield _LOAD, 0, 0, _ARGUMENTS + 8
    yield _AND, 0, 0, _TYPE_MASK
    yield _EQUAL, 2, 0, _SOCK_STREAM
    yield _EQUAL, 1, 0, _SOCK_SEQPACKET
    yield _RETURN, 0, 0, _ERRNO | errno.EPERM
    yield _RETURN, 0, 0, _ALLOW


def _refuse(condition: Instruction, number: int) -> Iterator[Instruction]:
    yield condition
    yield _RETURN, 0, 0, _ERRNO | number
