"""Jobs: each in a process of its own under limits, equal ones once, results in the store."""

from __future__ import annotations
