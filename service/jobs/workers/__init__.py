"""What runs jobs: what each machine is, what a job needs of one, and who of those that live can take it."""

from __future__ import annotations
