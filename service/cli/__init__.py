"""The command line: one file a verb, which parses and prints, and imports what it needs when it runs."""

from __future__ import annotations
