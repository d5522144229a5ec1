"""What does not use Ray never imports it; what would, and has it not, says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.drills.world import ROOT

_IMPORTS = (
    "import sys, relaxc.service.cli.main, relaxc.service.api.server, relaxc.service.jobs.working; "
    "import relaxc.service.jobs.ray.resources; sys.exit('ray' in sys.modules)"
)
_WITHOUT = "import sys; sys.modules['ray'] = None; from relaxc.__main__ import command; command()"


def test_commands_and_servers_do_not_import_it() -> None:
    assert subprocess.run([sys.executable, "-c", _IMPORTS], cwd=ROOT, check=False).returncode == 0


def test_a_worker_without_it_says_what_to_install(tmp_path: object) -> None:
    environment = {**os.environ, "RELAXC_RUNNER": "ray://127.0.0.1:1", "RELAXC_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, "worker"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "relaxc[ray]" in done.stderr


@pytest.mark.parametrize("runner", ["ray", "ray://", "ray://host", "ray://user@host:1", "process", "ray://a b:1"])
def test_a_runner_that_is_none_is_refused(runner: str) -> None:
    environment = {**os.environ, "RELAXC_RUNNER": runner}
    code = "from relaxc.service.config import settings; settings()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert "RELAXC_RUNNER" in done.stderr


def test_a_node_is_told_what_it_offers() -> None:
    done = _done(["-m", "relaxc", "worker", "--resources"], dict(os.environ))
    offered = json.loads(done.stdout)
    assert sum(name.startswith("relaxc_") for name in offered) == 1
    assert offered["candidates"] >= 1


def _done(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
