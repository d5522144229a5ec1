"""What the service remembers: SQLAlchemy tables, their queries one file a table, and the migrations that make them."""

from __future__ import annotations
