"""What Linux tells of the control groups that this process is in: where they are, the cores and memory they leave it.

https://docs.kernel.org/admin-guide/cgroup-v2.html, and of version 1 what containers set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["Place", "cores_left", "memory_left", "unified"]

_MOUNTS, _OWN = "proc/self/mountinfo", "proc/self/cgroup"
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Place:
    """The group `folder` that this process is in, below the mount `top`, which may be a container's own group."""

    folder: Path
    top: Path

    def upward(self) -> Iterator[Path]:
        """Yield the group and those above it that can be seen."""
        yield self.folder
        if self.folder != self.top:
            yield from Place(self.folder.parent, self.top).upward()


def unified(root: Path = _ROOT) -> Place | None:
    """Return this process's group of version 2, as the /proc below `root` tells; None where none is mounted."""
    return next(_places(root, "cgroup2", ""), None)


def cores_left(root: Path = _ROOT) -> int | None:
    """Return how many processors the groups give time for, rounded up; None where they give for all."""
    quotas = [quota for place in _places(root, "cgroup2", "") for quota in _each(place, _quota)]
    quotas += [quota for place in _places(root, "cgroup", "cpu") for quota in _each(place, _quota_of_1)]
    return max(1, math.ceil(min(quotas))) if quotas else None


def memory_left(root: Path = _ROOT) -> int | None:
    """Return the bytes that the processes of the groups may have together; None where the groups do not say.

    A limit of version 1 that is larger than any machine is none.
    """
    found = [size for place in _places(root, "cgroup2", "") for size in _each(place, _number_in("memory.max"))]
    of_1 = _number_in("memory.limit_in_bytes")
    found += [size for place in _places(root, "cgroup", "memory") for size in _each(place, of_1)]
    return min((int(size) for size in found if 0 < size < 1 << 60), default=None)


def _places(root: Path, kind: str, controller: str) -> Iterator[Place]:
    """The groups of this process in each hierarchy of this kind that has the controller, as `root` has them mounted."""
    own = _own_paths(root)
    for line in _lines(root / _MOUNTS):
        before, _, after = line.partition(" - ")
        fields, of_kind = before.split(), after.split()
        if len(fields) < 5 or len(of_kind) < 3 or of_kind[0] != kind:
            continue
        if controller and controller not in of_kind[2].split(","):
            continue
        top = root / fields[4].lstrip("/")
        yield Place(top / _below(own.get(controller, "/"), fields[3]), top)


def _own_paths(root: Path) -> dict[str, str]:
    """The path of this process's group, by controller; that of version 2 under the empty name."""
    found: dict[str, str] = {}
    for line in _lines(root / _OWN):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _below(path: str, mounted: str) -> PurePosixPath:
    """The way from the group that is mounted to `path`; none where it is not below, as seen from another namespace."""
    own = PurePosixPath(path)
    return own.relative_to(mounted) if own.is_relative_to(mounted) else PurePosixPath()


def _each(place: Place, read: Callable[[Path], float | None]) -> list[float]:
    return [found for folder in place.upward() if (found := read(folder)) is not None]


def _quota(folder: Path) -> float | None:
    return _ratio((_lines(folder / "cpu.max") or [""])[0].split())


def _quota_of_1(folder: Path) -> float | None:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return _ratio([line for name in names for line in _lines(folder / name)])


def _ratio(words: list[str]) -> float | None:
    """Of `200000 100000` 2; of `max 100000` and of `-1 100000` nothing."""
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _number_in(name: str) -> Callable[[Path], float | None]:
    def read(folder: Path) -> float | None:
        words = _lines(folder / name)
        return int(words[0]) if words and words[0].isdecimal() else None

    return read


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
