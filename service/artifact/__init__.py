"""Artifacts: files that know what they are, what names them, and where they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxc.service.artifact.manifest import Manifest
    from relaxc.service.artifact.packing import pack

__all__ = ["Manifest", "pack"]


def __getattr__(name: str) -> Any:
    """Names are looked up when they are used: reading a manifest takes nothing of what packs one."""
    if name not in __all__:
        raise AttributeError(f"module 'relaxc.service.artifact' has no attribute {name!r}")
    from relaxc.service.artifact import manifest, packing

    return getattr(manifest if name == "Manifest" else packing, name)
