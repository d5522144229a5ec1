"""The command line: one file a verb, argument parsing and nothing else; a verb imports what it needs when it runs."""

from __future__ import annotations
