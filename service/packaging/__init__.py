"""Packages: an artifact with all that runs it where there is neither Python nor a compiler."""

from __future__ import annotations
