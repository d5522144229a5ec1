"""The table of converters, and how a family adds to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["CONVERTERS", "KEPT", "Converter", "converts"]

Converter = Callable[..., Any]

CONVERTERS: dict[str, Converter] = {}
"""Operator with overload → converter."""

KEPT: set[str] = set()
"""Operators that torch would decompose and we take whole, because the whole says more or is cheaper."""


def converts(*names: str, keep: bool = False) -> Callable[[Converter], Converter]:
    """Register a converter for operators such as `aten.add.Tensor`; `keep` holds torch back from decomposing them."""

    def register(converter: Converter) -> Converter:
        for name in names:
            assert name not in CONVERTERS, f"{name} has two converters"
            CONVERTERS[name] = converter
            if keep:
                KEPT.add(name)
        return converter

    return register
