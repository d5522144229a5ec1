"""The backup of docs/deploying.md: its commands, on a real server that goes on, restored for another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.conftest import BY_SEED, make_onnx
from tests.api.jobs import ended, submit, uploaded
from tests.api.kept import LAYOUTS, Places, programs
from tests.waiting import until


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backup_restores_keys_models_jobs_and_artifacts(tmp_path: Path, layout: str) -> None:
    programs(layout)
    with Places.opened(layout, tmp_path) as places:
        first, backup = places.place(), tmp_path / "backup"
        running = first.serve(BY_SEED)
        try:
            model = uploaded(running, make_onnx(4))
            job = ended(running, submit(running, model).json()["id"])
            library = running.client.get(f"/v1/artifacts/{job['artifact']}")
            assert library.status_code == 200
            late = submit(running, model, "sleep", shapes={"x": 3}).json()["id"]
            until(lambda: running.client.get(f"/v1/jobs/{late}").json()["state"] == "running")
            waits = submit(running, model, shapes={"x": 5}).json()["id"]
            key = running.client.post("/v1/keys", json={"name": "operator", "scopes": ["admin"]}).json()
            secret = {"Authorization": f"Bearer {key['secret']}"}
            first.back_up(backup)
            assert running.client.delete(f"/v1/jobs/{late}", headers=secret).status_code == 202  # it goes on
        finally:
            running.stop()

        restored = places.place()
        restored.restore(backup)
        again = restored.serve(BY_SEED)
        try:
            assert again.client.get("/v1/jobs").status_code == 401
            again.client.headers.update(secret)
            found = again.client.get(f"/v1/jobs/{job['id']}").json()
            assert {**found, "links": None} == {**job, "links": None}
            assert again.client.get(f"/v1/models/{model}").json()["digest"] == model
            assert again.client.get(f"/v1/artifacts/{job['artifact']}").content == library.content
            assert again.client.get(f"/v1/jobs/{job['id']}/logs").status_code == 200
            until(lambda: again.client.get(f"/v1/jobs/{late}").json()["attempts"] == 2)  # begun once more
            assert again.client.delete(f"/v1/jobs/{late}").status_code == 202
            assert ended(again, waits)["state"] == "succeeded"
            other = ended(again, submit(again, model, shapes={"x": 7}).json()["id"])
            assert other["state"] == "succeeded"
        finally:
            again.stop()


@pytest.mark.slow
def test_what_is_deleted_between_the_database_and_the_files_is_not_found(tmp_path: Path) -> None:
    """Rows whose bytes are not in the copy: each call says so by name, and the same bytes sent again mend it."""
    programs(LAYOUTS[0])
    with Places.opened(LAYOUTS[0], tmp_path) as places:
        first, backup = places.place(), tmp_path / "backup"
        running = first.serve(BY_SEED)
        model = uploaded(running, make_onnx(4))
        job = ended(running, submit(running, model).json()["id"])
        running.stop()
        first.back_up(backup)
        restored = places.place()
        restored.restore(backup)
        for folder in ("blobs/models", "artifacts", "blobs/jobs"):
            _empty(restored.cache / folder)
        again = restored.serve(BY_SEED)
        try:
            assert again.client.get(f"/v1/artifacts/{job['artifact']}").status_code == 404
            assert again.client.get(f"/v1/jobs/{job['id']}").status_code == 200
            assert again.client.get(f"/v1/jobs/{job['id']}/logs").status_code < 500
            answer = submit(again, model, shapes={"x": 7})
            if answer.is_success:
                failed = ended(again, answer.json()["id"])
                assert failed["error"]["code"] == "model-not-found"
            else:
                assert answer.json()["code"] == "model-not-found"
            assert uploaded(again, make_onnx(4)) == model
            assert ended(again, submit(again, model, shapes={"x": 7}).json()["id"])["state"] == "succeeded"
        finally:
            again.stop()


def _empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
