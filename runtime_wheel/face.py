"""Runs artifacts that relaxc compiled."""

from __future__ import annotations

from relaxc_runtime import errors
from relaxc_runtime.runtime.inputs import random_inputs
from relaxc_runtime.runtime.loading import load
from relaxc_runtime.runtime.session import Session

__all__ = ["Session", "errors", "load", "random_inputs"]
