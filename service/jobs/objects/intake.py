"""What came of a model: the server names it by the hashes of its bytes, and a child that looks at it may refuse it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from relaxc.service.frontend.model_file import only_format
from relaxc.service.jobs.database.rows import ModelFile
from relaxc.service.process.limits import Limits
from relaxc.service.process.runner import Runner
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Task
from relaxc.service.process.workspace import Workspace
from relaxc.service.request import ModelFormat, model_digest

__all__ = ["CHECK_ENTRY", "Sent", "check", "memory_to_check"]

CHECK_ENTRY = "relaxc.service.jobs.entries:check_model"
"""What a child runs, but in tests."""

_LIMIT_S = 120.0

_BASE_BYTES, _TIMES_MODEL = 256 << 20, 2
"""Of a child that looks at a model: the frontend, and the file as it is read and as it is parsed."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A model as it arrived: `path` is its own file, `sha256s` that of each file in the folder, by name, as it came.

    Everything that other senders of the same content will be told of it is computed here, from bytes.
    """

    path: Path
    sha256s: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The digest by `model_digest`: all that was sent beside the model belongs to it."""
        return model_digest(self.sha256s[self.path.name], {name: self.sha256s[name] for name in self._data})

    @property
    def format(self) -> ModelFormat:
        """The only format that it can have. Raise UnknownFormat."""
        return only_format(self.path)

    @property
    def files(self) -> dict[ModelFile, Path]:
        """What is kept of it, and where that is now; its own file comes first, under a name that its sender did not
        choose, for another who sends the same will have it so."""
        name = "model"
        while name in self._data:
            name += "_"
        kept = {name: self.path, **{name: self.path.parent / name for name in self._data}}
        return {ModelFile(name, at.stat().st_size, self.sha256s[at.name]): at for name, at in kept.items()}

    @property
    def _data(self) -> list[str]:
        return sorted(name for name in self.sha256s if name != self.path.name)


def memory_to_check(size_bytes: int) -> int:
    """Return the bytes that `check` may take for a model of this size; never over its hard limit."""
    return min(_BASE_BYTES + _TIMES_MODEL * size_bytes, Limits.of_settings().memory_bytes)


def check(pool: Runner, workspace: Workspace, path: Path) -> None:
    """Have a child read the model at `path`, with its external data beside it: somebody else wrote it.

    That it is refused is all that the child has to say, and only its sender hears it. Raise UnknownFormat,
    ModelMalformed, ModelUnsafe, ModelTooLarge, or CompilerTimeout after two minutes.
    """
    limits = Limits.of_settings()
    limits = replace(limits, timeout_s=min(limits.timeout_s, _LIMIT_S))
    workdir = workspace.folder("check")
    try:
        allowed = Confinement(reads=(path.parent,))
        task = Task(CHECK_ENTRY, {"path": str(path)}, workdir, limits=limits, confinement=allowed)
        pool.run(task, lambda event: None)
    finally:
        workspace.remove(workdir)
