"""`--dump DIR`: what each stage saw, as numbered text files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

__all__ = ["Dump", "DumpFolder", "no_dump"]


class Dump(Protocol):
    """Takes `text`, called only when a dump is wanted, under a name such as `relax_after_fusion`."""

    def __call__(self, name: str, text: Callable[[], str], suffix: str = "py") -> None: ...


def no_dump(name: str, text: Callable[[], str], suffix: str = "py") -> None:
    """Return the Dump that keeps nothing; `text` is not called."""


class DumpFolder:
    """Writes each text to `root/NN_name.suffix`, numbered in the order of the calls."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.count = 0

    def __call__(self, name: str, text: Callable[[], str], suffix: str = "py") -> None:
        (self.root / f"{self.count:02d}_{name}.{suffix}").write_text(text())
        self.count += 1
