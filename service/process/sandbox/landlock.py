"""Landlock: a process gives up every file and TCP port but those it names, and may touch no process outside.

https://docs.kernel.org/userspace-api/landlock.html; Linux 5.13 has files, 6.7 TCP, 6.12 signals and abstract sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from relaxc.service.process.sandbox.kernel import call

__all__ = ["EXECUTE", "LIST", "READ", "REWRITE", "TCP", "USE_DEVICE", "WRITE", "restrict", "version"]

# The numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_QUERY_VERSION = 1
_RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 2

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

EXECUTE = 1 << 0
LIST = _READ_DIR
READ = _READ_FILE | _READ_DIR
REWRITE = _WRITE_FILE | _TRUNCATE
WRITE = READ | REWRITE | (_MAKE_REG | _MAKE_DIR) | (_REMOVE_FILE | _REMOVE_DIR | _REFER)
"""Everything but devices, sockets, pipes and symbolic links: others would open them for the plain files they hide."""
USE_DEVICE = _READ_FILE | REWRITE | _IOCTL_DEV

_OF_FILES = EXECUTE | USE_DEVICE
_CONNECT = 0b10
_OF_TCP = 0b01 | _CONNECT  # bind, connect
_OF_SCOPE = 0b11  # abstract UNIX sockets, signals


TCP = 4
"""The version from which on it holds TCP."""


def version() -> int:
    """Return the kernel's version of Landlock's interface, 0 without it."""
    try:
        return call(_CREATE_RULESET, None, 0, _QUERY_VERSION)
    except OSError:
        return 0


def restrict(rules: Iterable[tuple[Path, int]], *, network: bool, ports: Iterable[int] = ()) -> int:
    """From now on this process and its children reach below each path only what is named beside it.

    Paths that do not exist are left out; TCP stays only with `network`, or to `ports`, from version 4 on. Returns the
    interface's version, which says what else is held: from 6 on no signal reaches a process outside. Raise OSError
    without Landlock or `no_new_privs`. Not to be undone.
    """
    abi = call(_CREATE_RULESET, None, 0, _QUERY_VERSION)
    handled = _files_of(abi)
    attributes = struct.pack("QQQ", handled, 0 if network else _OF_TCP, _OF_SCOPE)[: _size_of(abi)]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    ruleset = call(_CREATE_RULESET, ctypes.cast(buffer, ctypes.c_void_p), len(attributes), 0)
    try:
        for path, access in rules:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _allow(ruleset, path, access & handled)
        for port in ports if abi >= TCP else ():
            rule = ctypes.create_string_buffer(struct.pack("QQ", _CONNECT, port), 16)
            call(_ADD_RULE, ruleset, _RULE_NET_PORT, ctypes.cast(rule, ctypes.c_void_p), 0)
        call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return abi


def _files_of(abi: int) -> int:
    bits = 13 if abi < 2 else 14 if abi < 3 else 15 if abi < 5 else 16
    return (1 << bits) - 1


def _size_of(abi: int) -> int:
    return 8 if abi < 4 else 16 if abi < 6 else 24


def _allow(ruleset: int, path: Path, access: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access, fd), 12)
        call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.cast(rule, ctypes.c_void_p), 0)
    finally:
        os.close(fd)
