"""What a job tries whose model runs an attacker's code: each try must be refused, whoever started the server."""

from __future__ import annotations

import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.jobs.hostile_calls import NUMBERS

__all__ = ["BESIDE_SIGNALS", "Try", "tries"]

Try = tuple[str, str, Any]
"""Its name, that of the function in `tests.jobs.hostile`, and what that is given."""

BESIDE_SIGNALS = frozenset({"priority", "pin", "command_line"})
"""What the same user may do to a process that shows, and that Landlock, which knows of signals, does not stop."""

_ROOT = Path(__file__).parents[3]
_OF_FILES = (
    *("chmod", "chmod_by_descriptor", "chown", "utime", "truncate", "open_and_truncate", "attribute"),
    *("read", "write", "link_and_read", "rename", "unlink", "hard_link", "make_link"),
)
_OF_PROCESSES = ("kill", "attach", "limit", "priority", "pin", "pidfd", "score", "command_line")
_OF_PROC = ("mem", "comm", "clear_refs", "setgroups", "coredump_filter")
_READ_OF_PROC = ("environ", "maps", "auxv", "stack")
_KERNEL = (
    *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory"),
    *("/proc/sysrq-trigger", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state"),
    *("/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/kvm", "/dev/vda", "/dev/loop-control", "/dev/ptmx", "/dev/net/tun"),
)
_KINDS = {
    "TCP": (socket.AF_INET, socket.SOCK_STREAM),
    "UDP": (socket.AF_INET, socket.SOCK_DGRAM),
    "TCP over IPv6": (socket.AF_INET6, socket.SOCK_STREAM),
    "ICMP": (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
    "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
    "packet": (socket.AF_PACKET, socket.SOCK_RAW),
    "netlink": (socket.AF_NETLINK, socket.SOCK_RAW),
    "crypto": (socket.AF_ALG, socket.SOCK_SEQPACKET),
    "vsock": (socket.AF_VSOCK, socket.SOCK_STREAM),
    "UNIX datagrams": (socket.AF_UNIX, socket.SOCK_DGRAM),
}
_LIMITS = ("DATA", "FSIZE", "NOFILE", "NPROC", "CORE")


def tries(cache: Path, pid: int, port: int) -> Iterator[Try]:
    """Every try, against the server's cache folder, its process, and a port on loopback that listens."""
    yield from _files(cache)
    yield from _processes(pid)
    yield from _kernel()
    yield from _sockets(port)
    yield from _rights()


def _files(cache: Path) -> Iterator[Try]:
    database = str(cache / "service.sqlite3")
    yield from ((f"{name} of the key database", name, database) for name in _OF_FILES)
    for name in ("chmod", "chmod_by_descriptor", "chown", "utime", "attribute", "list", "rename", "watch"):
        yield f"{name} of the cache folder", name, str(cache)
    for folder in ("", "jobs", "blobs", "keys", "artifacts", "peak", "staging", "blobs/uploads"):
        if (cache / folder).is_dir():
            yield f"a file in the cache's {folder or 'top'}", "write", str(cache / folder / "mine")
            yield f"a folder in the cache's {folder or 'top'}", "make_folder", str(cache / folder / "my folder")
    for path in (_ROOT / "service" / "mine.py", Path("/tmp/mine"), Path("/dev/shm/mine"), Path("/usr/lib/mine")):
        yield f"a file {path.parent}", "write", str(path)
    for name in ("chmod", "utime", "truncate", "write", "rename", "unlink"):
        yield f"{name} of the server's code", name, str(_ROOT / "pyproject.toml")
    for path in ("/etc/shadow", "/etc/sudoers", "/etc/hostname"):
        if Path(path).exists():
            yield f"read {path}", "read", path
    for path in ("/root", "/tmp", "/home", "/dev/shm", "/var"):
        yield f"list {path}", "list", path


def _processes(pid: int) -> Iterator[Try]:
    yield from ((f"{name} of the server", name, pid) for name in _OF_PROCESSES)
    yield from ((f"write to the server's {name}", "open_for_writing", f"/proc/{pid}/{name}") for name in _OF_PROC)
    yield from ((f"read the server's {name}", "read", f"/proc/{pid}/{name}") for name in _READ_OF_PROC)
    yield from ((f"list the server's {name}", "list", f"/proc/{pid}/{name}") for name in ("fd", "root", "cwd"))


def _kernel() -> Iterator[Try]:
    yield from ((f"open {path} for writing", "open_for_writing", path) for path in _KERNEL if Path(path).exists())
    for path in sorted(Path("/sys/fs/cgroup").glob("**/cgroup.procs"))[:3]:
        yield f"leave by {path}", "open_for_writing", str(path)
    yield from ((f"call {name}", name, None) for name in NUMBERS)
    yield "a namespace", "namespace", None


def _sockets(port: int) -> Iterator[Try]:
    yield "connect to loopback", "tcp", port
    yield "a datagram to loopback", "send_message", None
    yield from ((f"a {name} socket", "socket", list(map(int, kind))) for name, kind in _KINDS.items())
    yield "a named socket", "named_socket", "here"


def _rights() -> Iterator[Try]:
    yield "become root", "become_root", None
    yield "the group of root", "join_root", None
    yield "be urgent", "be_urgent", None
    yield "be real time", "be_real_time", None
    yield "not be the first to go", "spare_me", None
    yield from ((f"raise RLIMIT_{name}", "raise_limit", getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS)
    for name, kind in {"pipe": stat.S_IFIFO, "device": stat.S_IFCHR, "disk": stat.S_IFBLK}.items():
        yield f"make a {name}", "make_node", kind
    yield "open files without end", "open_many", 100_000
    yield "a thread bomb", "thread_bomb", 5_000
    yield "a fork bomb", "fork_bomb", 5_000
