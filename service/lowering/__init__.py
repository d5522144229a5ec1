"""Lowering: a target from text, a schedule for every PrimFunc, then machine code in a shared library."""

from __future__ import annotations
