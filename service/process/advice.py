"""What would make a job's sandbox better on this machine: each gap with the setting, kernel or start that closes it."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relaxc.service.config import settings
from relaxc.service.process.sandbox import landlock

__all__ = ["advice", "advice_on_groups"]

_KERNEL = Path("/proc/sys")
_BUBBLEWRAP = "Bubblewrap (bwrap), installed, makes them for a server that is not root's where it may."


def advice(sandbox: dict[str, Any], read: Callable[[str], str | None] | None = None) -> list[str]:
    """Return sentences for whoever runs this machine, for a sandbox as `probe.probe` returned it; none if it is whole.

    `read` gives the kernel's setting of a name below /proc/sys, empty where there is none.
    """
    read = read or _setting
    if "error" not in sandbox and not sandbox["gaps"]:
        return []
    if "all" in sandbox.get("missing", {}):
        return [f"Jobs are not held at all: {sandbox['missing']['all']}."]
    return [*_landlock(landlock.version()), *_namespaces(sandbox.get("missing", {}), read), *_user(sandbox)]


def advice_on_groups(missing: str) -> list[str]:
    """Return what would give jobs control groups where they have none, and why: none where they have."""
    if not missing:
        return []
    return [
        f"Control groups bound the memory of all processes of a job together, and there are none ({missing}). With "
        "systemd, Delegate=yes in the unit gives them; in a container, a writable cgroup file system of version 2."
    ]


def _landlock(version: int) -> list[str]:
    here = f"this is Linux {platform.release()}"
    if version == 0:
        return [f"Landlock keeps jobs from files: Linux 5.13 or later with lsm=landlock on its command line; {here}."]
    if version < 3:
        return [f"Landlock 3 keeps jobs from truncating files, 6 from signalling: Linux 6.2, 6.12; {here}."]
    if version < 6:
        return [f"Landlock 6 keeps jobs from signalling the server's processes: Linux 6.12; {here}."]
    return []


def _namespaces(missing: dict[str, str], read: Callable[[str], str | None]) -> list[str]:
    if not missing.keys() & {"network", "processes", "modes"}:
        return []
    refused = "; ".join(f"{part}: {why}" for part, why in missing.items() if part in ("network", "processes", "modes"))
    for name, value, why in (
        ("kernel.unprivileged_userns_clone", "0", "users may make none"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts them to programs with a profile"),
        ("user.max_user_namespaces", "0", "there may be none"),
    ):
        if read(name) == value:
            without = f"User namespaces hide processes and files from jobs, and {why}: sysctl {name} is {value}."
            return [without if shutil.which(settings().bubblewrap) else f"{without} {_BUBBLEWRAP}"]
    return [
        f"Namespaces hide processes and files from jobs, and they were refused ({refused}). In a container its seccomp "
        "and AppArmor profiles decide on it: docs/docker.md."
    ]


def _user(sandbox: dict[str, Any]) -> list[str]:
    if sandbox.get("user") == "same":
        return ["A server that root starts gives each job a user id of its own."]
    return []


def _setting(name: str) -> str:
    try:
        return _KERNEL.joinpath(*name.split(".")).read_text().strip()
    except OSError:
        return ""
