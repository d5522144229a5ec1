"""A kernel that has less: `python -m tests.weaker_kernel MISSING -- COMMAND…` runs one to which it refuses calls.

`landlock` answers as Linux before 5.13 does; `user-namespaces` as one that lets programs make none by unshare(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

from relaxc.service.process.sandbox.kernel import prctl

__all__ = ["command", "weaken"]

_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_CREATE_RULESET = 444
_UNSHARE = {"x86_64": 272, "aarch64": 97}
_FIRST_ARGUMENT, _NEW_USER = 16, 0x10000000


def command(missing: str) -> list[str]:
    """What to put before a command."""
    return [sys.executable, "-m", "tests.weaker_kernel", missing, "--"]


def weaken(missing: str) -> None:
    """Refuse the calls to this process and all that it starts, for good."""
    load = (_LOAD, 0, 0, 0)
    programs = {
        "landlock": [load, (_EQUAL, 0, 1, _CREATE_RULESET), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)],
        "user-namespaces": [
            load,
            (_EQUAL, 0, 3, _UNSHARE[platform.machine()]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_ANY_BIT, 0, 1, _NEW_USER),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        ],
    }
    rows = [*programs[missing], (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows), 8 * len(rows))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code)), 16)
    prctl(_NO_NEW_PRIVS, 1)
    prctl(_SECCOMP, _FILTER, ctypes.addressof(header))


if __name__ == "__main__":
    weaken(sys.argv[1])
    os.execvp(sys.argv[3], sys.argv[3:])
