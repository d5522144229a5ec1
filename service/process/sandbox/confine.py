"""The sandbox of a job's process, set up before it reads a byte of a model: docs/deploying.md has what each part stops.

Each part holds by itself: what the kernel, a container or our own rights do not allow is left out, said in `Sandbox`,
and the job is refused without it where RELAXC_SANDBOX is `require`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from relaxc.service.config import settings
from relaxc.service.errors import ServiceError
from relaxc.service.process.limits import most_processes
from relaxc.service.process.sandbox import landlock
from relaxc.service.process.sandbox.confinement import Confinement, Place, Sandbox
from relaxc.service.process.sandbox.kernel import drop_capabilities, prctl
from relaxc.service.process.sandbox.namespaces import keep_files, leave_network, make_reachable
from relaxc.service.process.sandbox.seccomp import filter_calls
from relaxc.service.process.tree import remove_tree, walk

__all__ = ["confine", "take_back"]

_PR_SET_NO_NEW_PRIVS = 38
_CAP_DAC_OVERRIDE = 1
_TRUNCATION, _SIGNALS_SCOPED = 3, 6
"""Versions of Landlock."""

FIRST_USER = 0x70000000
"""User ids from here on are nobody's (https://systemd.io/UIDS-GIDS/); a job adds its process id, which is at most
2²². The same number is the group of all jobs, to which files are lent that others may not read."""

_TOOLS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store")
_FACTS = (
    *("/proc", "/sys", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/OpenCL", "/run/nvidia-persistenced"),
)
_OWN_THREADS = Path("/proc/self/task")
"""The CUDA driver names its threads here, and does not start where it cannot."""
_PROCESSES_FOLDER = Path("/proc")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_FILES = 4096


def confine(workdir: Path, allowed: Confinement, place: Place) -> Sandbox:
    """Put this process into every part of a sandbox that can be had, for good; its parent's death signal has to be set
    anew.

    `workdir` is the current folder before and after, and the job's to write. Raise ServiceError where the settings
    require parts that are not to be had.
    """
    sandbox = Sandbox(processes="none" if place.shared else "namespace")
    if place.shared:
        sandbox.missing["processes"] = place.shared
    if settings().sandbox == "off":
        sandbox.missing["all"] = "RELAXC_SANDBOX=off"
        sandbox.user = "root" if os.geteuid() == 0 else "same"
        return sandbox
    rules = list(_rules(workdir, allowed))
    _limit_counts()
    if allowed.network:
        sandbox.network = "open"
    elif allowed.ports:
        sandbox.network = _ports(allowed)
    elif _set_up(sandbox, "network", leave_network):
        sandbox.network = "namespace"
    own = os.geteuid() == 0 and allowed.own_user
    own = own and _set_up(sandbox, "user", lambda: _hand_over(place, workdir, allowed, rules))
    if _set_up(sandbox, "modes", lambda: keep_files((workdir, *allowed.writes))):
        sandbox.modes = "mounts"
    os.chdir(workdir)  # the way to it may be another now
    sandbox.user = _change_user(place, own=own)
    if own:
        sandbox.modes = "user" if sandbox.modes == "none" else sandbox.modes
        sandbox.processes = "user" if sandbox.processes == "none" else sandbox.processes
    if allowed.gpu_in_children and (own or (sandbox.user == "same" and sandbox.processes == "namespace")):
        # Each of them has another folder for its threads, beside those of processes that are the job's own too. What
        # root may write below /proc is the kernel's settings.
        rules.append((_PROCESSES_FOLDER, landlock.READ | landlock.REWRITE))
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _set_up(sandbox, "files", lambda: _restrict_files(sandbox, rules, allowed))
    changes_modes = sandbox.modes != "none"
    calls = {"network": allowed.network, "modes": changes_modes, "tcp": bool(allowed.ports)}
    if _set_up(sandbox, "calls", lambda: filter_calls(**calls)):
        sandbox.calls = "seccomp"
        sandbox.modes = "filter" if sandbox.modes == "none" else sandbox.modes
        sandbox.network = "filter" if sandbox.network == "none" else sandbox.network
    if sandbox.network == "ports" and "none" in (sandbox.files, sandbox.calls):
        raise ServiceError(f"a job that may reach some ports can be held to them by no sandbox here: {sandbox}")
    if settings().sandbox == "require" and sandbox.gaps:
        could = "; ".join(sandbox.gaps)
        raise ServiceError(
            f"no job runs without a whole sandbox (RELAXC_SANDBOX=require); here one could {could}. It has: {sandbox}",
            remedy="`relaxc doctor` says what this machine lacks.",
        )
    return sandbox


def _set_up(sandbox: Sandbox, part: str, build: Callable[[], None]) -> bool:
    try:
        build()
    except (OSError, NotImplementedError) as error:
        sandbox.missing[part] = str(error)
        return False
    return True


def _ports(allowed: Confinement) -> str:
    if landlock.version() < landlock.TCP:
        raise ServiceError("a job that may reach some ports needs Landlock 4 (Linux 6.7)")
    return "ports"


def _restrict_files(sandbox: Sandbox, rules: list[tuple[Path, int]], allowed: Confinement) -> None:
    # Never closed: a rule holds for a folder of /proc as long as the kernel remembers it.
    os.open(_OWN_THREADS, os.O_PATH | os.O_CLOEXEC)
    version = landlock.restrict(rules, network=allowed.network, ports=allowed.ports)
    sandbox.files = "landlock"
    if version < _TRUNCATION:
        sandbox.missing["files"] = f"Landlock {version} does not cover truncation; {_TRUNCATION} (Linux 6.2) does"
    if version >= _SIGNALS_SCOPED and sandbox.processes == "none":
        sandbox.processes = "signals"


def _limit_counts() -> None:
    """Bounds processes, where the user or a user namespace has a count of its own, and open files."""
    for kind, limit in ((resource.RLIMIT_NPROC, most_processes()), (resource.RLIMIT_NOFILE, _FILES)):
        _, hard = resource.getrlimit(kind)
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (bound, bound))


def _change_user(place: Place, *, own: bool) -> str:
    if own:
        user = FIRST_USER + place.pid
        os.setgroups([])
        os.setresgid(FIRST_USER, FIRST_USER, FIRST_USER)
        os.setresuid(user, user, user)
        return "own"
    if os.geteuid() != 0:
        drop_capabilities()  # those of a user namespace
        return "same"
    drop_capabilities([_CAP_DAC_OVERRIDE])
    return "root"


def _hand_over(place: Place, workdir: Path, allowed: Confinement, rules: list[tuple[Path, int]]) -> None:
    """Gives the job's files to its own user, and opens the way to all that it may reach."""
    user = FIRST_USER + place.pid
    if not _is_mapped(user):
        raise OSError("this container's user namespace has no user ids to spare")
    make_reachable([path for path, _ in rules])
    for path in _tree(workdir):
        os.chown(path, user, FIRST_USER, follow_symlinks=False)
    for root in allowed.reads:
        for path in _tree(root):
            _lend(path, stat.S_IROTH)
    for root in allowed.writes:
        for path in _tree(root):
            _lend(path, stat.S_IROTH | stat.S_IWOTH)


def _is_mapped(user: int) -> bool:
    rows = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(first <= user < first + count for first, _, count in rows)


def _tree(root: Path) -> Iterator[Path]:
    yield root
    if root.is_dir() and not root.is_symlink():
        for folder, folders, files in os.walk(root):
            yield from (Path(folder, name) for name in (*folders, *files))


def _lend(path: Path, needed: int) -> None:
    """Lets the group of all jobs do with `path` what `needed` would let everybody do, where not everybody may."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:  # another job's, and gone meanwhile
        return
    needed |= stat.S_IXOTH if stat.S_ISDIR(mode) else 0
    if not stat.S_ISLNK(mode) and mode & needed != needed:
        os.chown(path, -1, FIRST_USER)
        path.chmod(stat.S_IMODE(mode) | needed << 3)


def take_back(workdir: Path) -> None:
    """Make what a job left ours again, once no process of it runs: a later job may get its user id.

    What is too deep to be walked is removed: such a job has failed.
    """
    if os.geteuid() != 0:
        return
    os.chown(workdir, 0, 0, follow_symlinks=False)
    try:
        for item in walk(workdir):
            os.chown(item.name, 0, 0, dir_fd=item.parent, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        for child in workdir.iterdir():
            if child.is_dir() and not child.is_symlink():
                remove_tree(child)


def _rules(workdir: Path, allowed: Confinement) -> Iterator[tuple[Path, int]]:
    """Each path that the job may reach, and for what."""
    ours = [settings().cache_dir]
    for name in (*_TOOLS, *sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix, *_tool_folders()):
        if name:
            yield from ((path, landlock.READ | landlock.EXECUTE) for path in _without(Path(name), ours))
            yield Path(name), landlock.LIST
    for name in _FACTS:
        yield Path(name), landlock.READ
    for path in (*map(Path, _DEVICES), *Path("/dev").glob("nvidia*")):
        yield path, landlock.USE_DEVICE | landlock.READ
    for path in (*allowed.reads, *allowed.published, *filter(None, [settings().records])):
        yield path, landlock.READ
    for path in (workdir, *allowed.writes):
        yield path, landlock.WRITE
    yield _OWN_THREADS, landlock.READ | landlock.REWRITE


def _tool_folders() -> Iterator[str]:
    """Where the settings' compilers are installed: the folder above their `bin`, unless that is somebody's home."""
    for tool in (settings().cxx, settings().nvcc):
        found = shutil.which(tool)
        if found:
            folder = Path(found).resolve().parent
            yield str(folder if folder.parent in (Path("/"), Path.home()) else folder.parent)


def _without(path: Path, left_out: list[Path]) -> Iterator[Path]:
    """`path`, or where one of `left_out` is below it, everything in it but that."""
    if any(path.is_relative_to(other) for other in left_out):
        return
    if not any(other.is_relative_to(path) for other in left_out):
        yield path
        return
    with contextlib.suppress(PermissionError):  # what we may not list, a job of ours may not either
        for child in path.iterdir():
            if not child.is_symlink():
                yield from _without(child, left_out)
