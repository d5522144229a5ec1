"""Running artifacts: load, call, compare, time and profile. Public names are looked up on use: tvm loads slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.runtime.session import Session, load

__all__ = ["Session", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'service.runtime' has no attribute {name!r}")
    from service.runtime import session

    return getattr(session, name)
