"""A copy of as many bytes as a kernel moves: the limit of what memory bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["copy_of"]


def copy_of(moved_bytes: float) -> Callable[[], Any]:
    """Return a copy within the device's memory that reads and writes `moved_bytes` together."""
    import torch

    source = torch.randint(0, 255, (int(moved_bytes) // 2,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
