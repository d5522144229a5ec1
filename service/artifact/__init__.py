"""Artifacts: files that know what they are, what names them, and where they are kept."""

from __future__ import annotations

from service.artifact.manifest import Manifest
from service.artifact.packing import pack

__all__ = ["Manifest", "pack"]
