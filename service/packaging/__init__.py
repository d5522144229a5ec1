"""Packages: an artifact with all that runs it without Python and a compiler; `native/` is what does, in C++."""

from __future__ import annotations
