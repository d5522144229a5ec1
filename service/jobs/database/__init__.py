"""What the service remembers: tables, their queries one file a table, and their migrations."""

from __future__ import annotations
