"""How many workers one database bears: measured here with a few, and by a queueing model with many."""

from __future__ import annotations
