"""What a job may touch, and what is held of it: the words between who asks for a job and its sandbox."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Confinement", "Sandbox", "folders_of"]


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a job may touch besides its own folder, Python and the compiler's tools.

    `reads` and `writes` are files and folders with all that is in them. `network` leaves the network as it is, for a
    tracker that the user named. `own_user` runs the job under a user id that only it has, where we are root; without
    it a job of root stays root's, with the right to pass over file modes and no other.
    """

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    network: bool = False
    own_user: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; `from_dict` is its inverse."""
        paths = {"reads": [str(path) for path in self.reads], "writes": [str(path) for path in self.writes]}
        return {**paths, "network": self.network, "own_user": self.own_user}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Confinement:
        """Return what `to_dict` described."""
        reads, writes = tuple(map(Path, data["reads"])), tuple(map(Path, data["writes"]))
        return Confinement(reads, writes, bool(data["network"]), bool(data["own_user"]))


def folders_of(*paths: Path) -> tuple[Path, ...]:
    """Return the folders that these files are in, of a link also the one that the file itself is in."""
    return tuple({folder: None for path in paths for folder in (path.absolute().parent, path.resolve().parent)})


@dataclass(slots=True)
class Sandbox:
    """What holds a job now, part by part; `missing` says why a part is weaker than it could be.

    `network`: `namespace` (there is none), `filter` (no socket can be made), `open` (asked for), `none`.
    `files`: `landlock` or `none`. `calls`: `seccomp` or `none`.
    `user`: `own` (an id that only the job has), `same` (ours, which is not root's), `root` (without its rights).
    `signals`: `landlock`, `user` (the id keeps it from others' processes) or `none`.
    """

    network: str = "none"
    files: str = "none"
    calls: str = "none"
    user: str = "root"
    signals: str = "none"
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether a job has neither a network nor files of others, which RELAXC_SANDBOX=require asks for."""
        return self.network in ("namespace", "filter", "open") and self.files == "landlock"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        parts = {name: value for name, value in asdict(self).items() if name != "missing"}
        why = "".join(f"; {part}: {reason}" for part, reason in self.missing.items())
        return ", ".join(f"{name} {value}" for name, value in parts.items()) + why
