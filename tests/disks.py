"""Small disks: what a disk that fills does is seen on a file system of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["CannotMount", "mounted", "small_disk"]


class CannotMount(Exception):
    """Nothing can be mounted here, and why."""


@contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of this size in `folder`, which is made."""
    folder.mkdir()
    if os.geteuid() != 0:
        raise CannotMount("mounts a file system, which needs root")
    options = f"size={size_bytes},mode=755"
    command = ["mount", "-t", "tmpfs", "-o", options, "relaxc-test", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotMount(f"mounts a file system: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """The same; a test that may mount nothing is skipped."""
    try:
        with mounted(folder, size_bytes) as disk:
            yield disk
    except CannotMount as error:
        pytest.skip(str(error))
