"""Another checkout of ours, such as the commit before a change: `RELAXC_BENCH_OTHER` names its folder.

Its compiler makes the artifact and its runtime runs it, each in a process that imports the package from that folder.
The libraries are those of this checkout's virtual environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers.cases import Case
from benchmarks.peers.files import code_digest, onnx_path
from benchmarks.peers.runtimes import Loaded, Prepared
from benchmarks.peers.runtimes.relaxc import load_from

COUNTS = True
"""It is the peer that `--peers relaxc-other` asks for."""

_NOTE = "relaxc-other.json"


def _folder() -> Path | None:
    named = os.environ.get("RELAXC_BENCH_OTHER")
    return Path(named).resolve() if named else None


def version() -> str:
    """See Runtime. The commit of the other checkout."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=_folder(), capture_output=True, text=True)
    return done.stdout.strip() or "no git"


def program(checkout: Path) -> str:
    """Return what `python -m` calls there: `relaxc`, or `service` up to 463a2ac."""
    return "relaxc" if (checkout / "relaxc").is_dir() else "service"


def supports(case: Case) -> bool:
    """See Runtime. Nothing, unless a checkout is named."""
    return _folder() is not None


def options(case: Case) -> list[str]:
    """Return what the other checkout compiles with: target and precision, as ours does."""
    return ["--target", case.target or "auto", *(["--precision", case.precision] if case.precision else [])]


def prepare(case: Case, folder: Path, threads: int) -> Prepared:
    """See Runtime. Raises CalledProcessError where the other checkout does not compile the model."""
    other = _folder()
    assert other is not None
    artifact, start = folder / "relaxc-other.so", time.perf_counter()
    command = [sys.executable, "-m", program(other), "compile", str(onnx_path(case, folder).resolve())]
    command += options(case)
    environment = {**os.environ, "PYTHONPATH": str(other)}
    subprocess.run([*command, "-o", str(artifact.resolve())], cwd=other, env=environment, check=True)
    (folder / _NOTE).write_text(json.dumps(str(artifact)))
    facts = {"code": code_digest(artifact), "checkout": version()}
    return Prepared(artifact.stat().st_size, round(time.perf_counter() - start, 2), facts)


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    other = _folder()
    assert other is not None
    sys.path.insert(0, str(other))
    package = {"relaxc": "relaxc.service"}.get(program(other), "service")
    return load_from(folder / _NOTE, folder, threads, package)
