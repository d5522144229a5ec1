"""The calls of the API, a resource a file."""

from __future__ import annotations
