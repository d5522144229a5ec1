"""The kernel's calls for which Python has no function, with errors as OSError."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "call",
    "drop_capabilities",
    "make_read_only",
    "make_writable",
    "mount",
    "prctl",
    "unshare",
]

# <linux/sched.h>
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_MOUNT_SETATTR = 442  # on every architecture
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1

_CAPABILITY_VERSION_3 = 0x20080522  # <linux/capability.h>


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def call(number: int, *arguments: int | ctypes.c_void_p | None) -> int:
    """Make the system call of that number; integers are passed as 64 bits wide."""
    wide = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_libc().syscall(ctypes.c_long(number), *wide), f"system call {number}")


def prctl(option: int, *arguments: int) -> None:
    """Call prctl(2); arguments that are not given are 0, as most options demand."""
    wide = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(_libc().prctl(option, *wide), f"prctl({option})")


def unshare(flags: int) -> None:
    """Give this process namespaces of its own, of the kinds in `flags` (CLONE_NEW…)."""
    _checked(_libc().unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Call mount(2)."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _checked(_libc().mount(*arguments), f"mount on {target}")


def make_read_only(path: Path) -> None:
    """Have the mount at `path`, and each below it, read-only (mount_setattr(2), Linux 5.12)."""
    _set_mount(path, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, 0)


def make_writable(path: Path) -> None:
    """Undo `make_read_only` for the one mount at `path`."""
    _set_mount(path, 0, 0, _MOUNT_ATTR_RDONLY)


def _set_mount(path: Path, flags: int, on: int, off: int) -> None:
    attributes = struct.pack("QQQQ", on, off, 0, 0)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    name = ctypes.create_string_buffer(os.fsencode(path))
    where, what = (ctypes.cast(each, ctypes.c_void_p) for each in (name, buffer))
    call(_MOUNT_SETATTR, _AT_FDCWD, where, flags, what, len(attributes))


def drop_capabilities(keep: Sequence[int] = ()) -> None:
    """Give up every capability of this process but those in `keep` that it has; exec does not bring them back
    where `no_new_privs` is set."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, for the lower and the upper 32
    _checked(_libc().capget(header, held), "capget")
    wanted = sum(1 << number for number in keep)
    for half in range(2):
        kept = held[3 * half + 1] & (wanted >> (32 * half) & 0xFFFFFFFF)
        held[3 * half], held[3 * half + 1], held[3 * half + 2] = kept, kept, 0
    _checked(_libc().capset(header, held), "capset")
