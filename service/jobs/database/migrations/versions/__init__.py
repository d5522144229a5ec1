"""One file a change of the tables, never edited after a release."""

from __future__ import annotations
