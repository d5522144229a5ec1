"""Running artifacts: load, call, compare, time and profile. Public names are looked up on use: tvm loads slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxc.service.runtime.loading import load
    from relaxc.service.runtime.session import Session

__all__ = ["Session", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'relaxc.service.runtime' has no attribute {name!r}")
    from relaxc.service.runtime import loading, session

    return getattr(loading if name == "load" else session, name)
