"""The whole sandbox for every job of a process that takes models of others."""

from __future__ import annotations

import os

from relaxc.service.config import settings

__all__ = ["require_sandbox"]


def require_sandbox() -> None:
    """Have no job run without a whole sandbox, unless RELAXC_SANDBOX says what shall be: others may send models."""
    if "sandbox" not in settings().model_fields_set:
        os.environ["RELAXC_SANDBOX"] = "require"  # the workers read it too
        settings.cache_clear()
