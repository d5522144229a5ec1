"""A server whose disk is short: every call that brings something gets 507, the others go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.conftest import RunningServer, make_onnx
from tests.api.jobs import ended, submit, uploaded
from tests.disks import small_disk
from tests.waiting import until

MIB = 1 << 20


@pytest.mark.slow
def test_a_disk_that_fills_stops_what_is_new_and_nothing_else(
    start: Callable[..., RunningServer], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 128 * MIB) as disk:
        server = start(disk_reserve_bytes=48 * MIB, blobs_url=str(disk / "blobs"))
        model = make_onnx(8)
        digest = uploaded(server, model)
        waits = submit(server, digest, "made", shapes={"sleep_s": 8}).json()["id"]
        until(lambda: server.client.get(f"/v1/jobs/{waits}").json()["state"] == "running")
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(80 * MIB))
        other = make_onnx(8, seed=1)
        form = {"model": ("m.onnx", other)}
        refused = [
            server.client.put(f"/v1/uploads/{hashlib.sha256(other).hexdigest()}", content=other),
            server.client.post("/v1/models", files=form),
            server.client.post("/v1/compile", files=form),
            submit(server, digest, "sleep"),
        ]
        assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(507, "store-unwritable")] * 4
        assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
        ready = server.client.get("/readyz")
        assert ready.status_code == 503
        assert "RELAXC_DISK_RESERVE_BYTES" in ready.json()["detail"]
        assert "relaxc_disk_reserve_bytes 5.0331648e+07" in server.client.get("/metrics").text
        assert ended(server, waits)["state"] == "succeeded"
        ballast.unlink()
        assert ended(server, submit(server, uploaded(server, other), "made").json()["id"])["state"] == "succeeded"


@pytest.mark.slow
def test_an_upload_stops_in_the_middle_where_the_reserve_begins(
    start: Callable[..., RunningServer], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        server = start(disk_reserve_bytes=16 * MIB, blobs_url=str(disk / "blobs"))
        content = bytes(60 * MIB)
        digest = hashlib.sha256(content).hexdigest()
        whole = server.client.put(f"/v1/uploads/{digest}", content=content)
        assert whole.status_code == 507  # at once
        first = server.client.put(
            f"/v1/uploads/{digest}",
            content=content[: 40 * MIB],
            headers={"Content-Range": f"bytes 0-{40 * MIB - 1}/{len(content)}"},
        )
        assert first.status_code == 202
        rest = server.client.put(
            f"/v1/uploads/{digest}",
            content=content[40 * MIB :],
            headers={"Content-Range": f"bytes {40 * MIB}-{len(content) - 1}/{len(content)}"},
        )
        assert (rest.status_code, rest.json()["code"]) == (507, "store-unwritable")
        assert server.client.head(f"/v1/uploads/{digest}").headers["upload-offset"] == str(40 * MIB)
