"""What calls of torch's own code need: the errors that it raises, and silence."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

__all__ = ["TORCH_ERRORS", "quiet"]

# What torch's deserializer and tracer raise for a program that contradicts itself.
TORCH_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's own log lines and warnings to itself."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
