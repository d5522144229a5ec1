"""What a job may touch, and what is held of it: the words between who asks for a job and its sandbox."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Confinement", "Place", "Sandbox", "folders_of"]


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a job may touch besides its own folder, Python and the compiler's tools.

    `reads` and `writes` are files and folders with all that is in them. `network` leaves the network as it is, for a
    tracker that the user named; `ports` leave TCP to these, at any address, and nothing else of it. `own_user` runs the
    job under a user id that only it has, where we are root; without it a job of root stays root's, with the right to
    pass over file modes and no other. `gpu_in_children` is for a job whose processes start CUDA, which the job's own
    process may always. `published` are folders of ours whose files, of which there may be many, everybody may read: the
    job reads them too, and nothing has to be lent.
    """

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    network: bool = False
    own_user: bool = True
    gpu_in_children: bool = False
    published: tuple[Path, ...] = ()
    ports: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; `from_dict` is its inverse."""
        kinds = {"reads": self.reads, "writes": self.writes, "published": self.published}
        paths = {kind: [str(path) for path in found] for kind, found in kinds.items()}
        switches = {"network": self.network, "own_user": self.own_user, "gpu_in_children": self.gpu_in_children}
        return {**paths, **switches, "ports": list(self.ports)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Confinement:
        """Return what `to_dict` described."""
        reads, writes, published = (tuple(map(Path, data[kind])) for kind in ("reads", "writes", "published"))
        switches = {name: bool(data[name]) for name in ("network", "own_user", "gpu_in_children")}
        ports = tuple(map(int, data["ports"]))
        return Confinement(reads, writes, **switches, published=published, ports=ports)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job's first process is: `pid` by the ids outside, and why it shares its PID namespace, if it does."""

    pid: int
    shared: str = ""


def folders_of(*paths: Path) -> tuple[Path, ...]:
    """Return the folders that these files are in, of a link also the one that the file itself is in."""
    return tuple({folder: None for path in paths for folder in (path.absolute().parent, path.resolve().parent)})


@dataclass(slots=True)
class Sandbox:
    """What holds a job now, part by part; `missing` says why a part is weaker than it could be.

    `network`: `namespace` (there is none), `filter` (no socket can be made), `ports` (TCP to those that
    were asked for), `open` (asked for), `none`.
    `files`, their bytes and names: `landlock` (from version 3 on it covers truncation) or `none`.
    `modes`, owners and times of files: `mounts` (read-only for the job), `user` (others' are not its own), `filter` (no
    call may change any), `none`. `calls`: `seccomp` or `none`.
    `user`: `own` (an id that only the job has), `same` (ours, which is not root's), `root` (without its rights).
    `processes` of others: `namespace` (it sees none), `user` (they are not its own), `signals` (Landlock refuses them;
    priorities and CPUs can be changed), `none`.
    """

    network: str = "none"
    files: str = "none"
    calls: str = "none"
    modes: str = "none"
    user: str = "root"
    processes: str = "none"
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def gaps(self) -> list[str]:
        """What a hostile job could do that this does not stop, each as a phrase; RELAXC_SANDBOX=require takes none."""
        found = {
            "reach the network": self.network == "none",
            "read and write files of its user": self.files == "none",
            "change modes, owners and times of its user's files": self.modes == "none",
            "signal and slow its user's processes": self.processes == "none",
        }
        if self.files != "none" and "files" in self.missing and self.modes not in ("mounts", "user"):
            found["truncate its user's files"] = True
        return [phrase for phrase, open_to_it in found.items() if open_to_it]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, with its gaps."""
        return {**asdict(self), "gaps": self.gaps}

    def __str__(self) -> str:
        parts = {name: value for name, value in asdict(self).items() if name != "missing"}
        why = "".join(f"; {part}: {reason}" for part, reason in self.missing.items())
        return ", ".join(f"{name} {value}" for name, value in parts.items()) + why
