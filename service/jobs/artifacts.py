"""Finished artifacts, for those who had them made."""

from __future__ import annotations

from service.artifact.entry import Opened
from service.jobs.database.rows import Owner

__all__ = ["Artifacts"]


class Artifacts:
    """The artifact store, seen by owner."""

    def open(self, owner: Owner, digest: str) -> Opened:
        """Safe from removal until it is closed; fetched back where only the mirror has it.

        Raises ArtifactNotFound, also for what this owner has not had made, and ArtifactCorrupt.
        """
        raise NotImplementedError
