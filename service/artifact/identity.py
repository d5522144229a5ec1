"""What tells a file from another one that has its name."""

from __future__ import annotations

from pathlib import Path

__all__ = ["identity_of"]


def identity_of(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced or written to; what rots on the disk changes without it."""
    seen = path.stat()
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
