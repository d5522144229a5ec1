"""The phases by name, and what a phase is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["PHASES", "Phase"]

PHASES = ("prepare", "widen", "simplify", "plugins", "precision", "layout", "fast_math", "legalize", "fuse", "weights")
"""Names of the phases, which a plugin's PASSES may use."""


@dataclass(frozen=True)
class Phase:
    """Passes that run one after the other; the module is checked, and dumped if asked, after the last."""

    name: str
    min_opt_level: int
    passes: list[Any]
