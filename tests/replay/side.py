"""A commit out of git in a folder of its own, and the process that builds with it."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.replay import worker
from tests.replay.cases import Case, sources_digest

__all__ = ["ROOT", "WORKING", "Side"]

ROOT = Path(__file__).parents[2]

WORKING = "the working tree"
"""What names the files as they are, committed or not."""

_BUILDS = ("service", "schedules", "tuning_logs", "__init__.py")
"""What of a commit has a say in what it builds."""

_LIMIT_S = 900.0
_CASES = 40
"""How many cases a process builds: what TVM keeps of each is never freed."""


def _git(*arguments: str, **environment: str) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


def _tree_of(commit: str, folder: Path) -> str:
    """The name of a commit's tree; of the working tree's, which git then has, though no branch."""
    if commit != WORKING:
        return _git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()
    index = str(folder / "index")
    _git("read-tree", "HEAD", GIT_INDEX_FILE=index)
    _git("add", "--all", GIT_INDEX_FILE=index)
    return _git("write-tree", GIT_INDEX_FILE=index).decode().strip()


class Side:
    """One of the two commits. Its results stay in `folder`, by what builds them, and are not built twice."""

    def __init__(self, commit: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tree = _tree_of(commit, folder)
        parts = worker.digest(_git("ls-tree", tree, *_BUILDS))
        self.commit, self.tree = commit, tree
        self.digest = f"{parts}-{sources_digest([Path(worker.__file__)])}"
        self._folder = folder / self.digest
        self._folder.mkdir(exist_ok=True)
        self._process: subprocess.Popen[str] | None = None
        self._built = 0

    def build(self, case: Case, model: Path, texts: Path | None = None) -> dict[str, Any]:
        """Return what the worker says of the case, or said before; `died` where its process did."""
        known = self._folder / f"{case.id}-{sources_digest([model])}.json"
        if known.exists() and texts is None:
            return dict(json.loads(known.read_text()))
        asked = {"model": str(model), "target": case.target, "options": case.options, "texts": texts and str(texts)}
        found = self._ask(asked)
        unfinished = known.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(found))
        unfinished.rename(known)
        return found

    def close(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._built == _CASES:
            self.close()
        process = self._process = self._process or self._started()
        self._built += 1
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        ready = select.select([process.stdout], [], [], _LIMIT_S)[0]
        line = process.stdout.readline() if ready else ""
        if line:
            return dict(json.loads(line))
        self.close()
        why = f"with status {process.returncode}" if ready else f"after {_LIMIT_S:.0f} s"
        return {"died": why, "log": (self._folder / "log").read_text()[-2000:]}

    def _started(self) -> subprocess.Popen[str]:
        root = self._folder / "tree" / "relaxc"  # the packages' parent, where they have one
        if not root.exists():
            unfinished = self._folder / "tree" / "unfinished"
            with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", self.tree))) as archive:
                archive.extractall(unfinished, filter="data")
            unfinished.rename(root)
        self._built = 0
        with (self._folder / "log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, worker.__file__, str(root)],
                cwd=self._folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            )  # fmt: skip
