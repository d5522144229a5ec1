"""Operator name → converter. A family registers with `@op("Name", …)`; the last registration must be the only one."""

from __future__ import annotations

from collections.abc import Callable

from relaxc.service.frontend.onnx.node import Converter

__all__ = ["CONVERTERS", "op"]

CONVERTERS: dict[str, Converter] = {}


def op(*names: str) -> Callable[[Converter], Converter]:
    """Register a converter under operator names; another domain is part of the name (`com.microsoft::FastGelu`)."""

    def register(converter: Converter) -> Converter:
        for name in names:
            assert name not in CONVERTERS, f"{name} has two converters"
            CONVERTERS[name] = converter
        return converter

    return register
