"""The backup of docs/deploying.md: its commands, on a real server that goes on, restored for another one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.api.conftest import BY_SEED, ROOT, RunningServer, make_onnx
from tests.api.jobs import ended, submit, uploaded

PAGE = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.skipif(not shutil.which("sqlite3"), reason="the backup is made by the program sqlite3")


@pytest.mark.slow
def test_a_backup_restores_keys_models_jobs_and_artifacts(tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    backup.mkdir()
    restored.mkdir()
    copy, restore = re.findall(r"^```sh\n(.*?)^```", PAGE.split("## Backup")[1].split("\n## ")[0], re.M | re.S)
    running = RunningServer(tmp_path / "cache", BY_SEED)
    try:
        model = uploaded(running, make_onnx(4))
        job = ended(running, submit(running, model).json()["id"])
        library = running.client.get(f"/v1/artifacts/{job['artifact']}")
        assert library.status_code == 200
        key = running.client.post("/v1/keys", json={"name": "operator", "scopes": ["admin"]}).json()
        run(copy, running.cache, backup)
        secret = {"Authorization": f"Bearer {key['secret']}"}
        assert running.client.get("/v1/jobs", headers=secret).status_code == 200  # it goes on
    finally:
        running.stop()

    run(restore, restored, backup)
    again = RunningServer(restored, BY_SEED)
    try:
        assert again.client.get("/v1/jobs").status_code == 401
        again.client.headers.update(secret)
        found = again.client.get(f"/v1/jobs/{job['id']}").json()
        assert {**found, "links": None} == {**job, "links": None}
        assert again.client.get(f"/v1/models/{model}").json()["digest"] == model
        assert again.client.get(f"/v1/artifacts/{job['artifact']}").content == library.content
        assert again.client.get(f"/v1/jobs/{job['id']}/logs").status_code == 200
        other = ended(again, submit(again, model, shapes={"x": 7}).json()["id"])
        assert other["state"] == "succeeded"
    finally:
        again.stop()


def run(commands: str, cache: Path, backup: Path) -> None:
    """The page's commands, on these folders."""
    script = commands.replace("/var/lib/relaxc", str(cache)).replace("/srv/backup", str(backup))
    done = subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
