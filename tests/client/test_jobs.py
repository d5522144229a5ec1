"""Compiles on a server as if they were here: results, events, errors, cancelling, over wires that break."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.artifact.manifest import Manifest
from relaxc.service.client import AsyncClient, Client, Patience
from relaxc.service.errors import (
    ArtifactCorrupt,
    Cancelled,
    CompilerCrashed,
    CompilerTimeout,
    InvalidOption,
    InvalidTarget,
    JobEnded,
    JobNotFound,
    RelaxcError,
    ServerUnreachable,
    UnsupportedModel,
)
from relaxc.service.request import CompileOptions
from tests.api.conftest import RunningServer, make_onnx
from tests.client.conftest import Ask
from tests.client.wire import Cut, Wire
from tests.jobs.entries import seed_of
from tests.waiting import PATIENCE_S


def options(entry: str = "made", **shapes: int) -> CompileOptions:
    """What makes the server's child run this entry."""
    return CompileOptions.from_dict({"seed": seed_of(entry), "shapes": {name: [size] for name, size in shapes.items()}})


def test_a_compile_gives_what_a_local_one_gives(server: RunningServer, ask: Ask, model: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    output = tmp_path / "m.so"
    made = ask(server.url, "compile", model, output, options=options(), on_event=events.append)
    assert made.digest == hashlib.sha256(output.read_bytes()).hexdigest()
    assert (made.path, made.files, made.cached) == (output, (output,), False)
    assert made.manifest == Manifest.read(output)
    assert made.manifest.digests["model"] == hashlib.sha256(model.read_bytes()).hexdigest()
    assert made.build_record["stages"] == {"build": 0.1}
    assert output.stat().st_mode & 0o111
    assert [(event["event"], event.get("state")) for event in events if event["event"] == "stage"] == [
        ("stage", "start"),
        ("stage", "done"),
    ]
    again = ask(server.url, "compile", model, output, options=options())
    assert again.cached
    assert again.digest == made.digest
    assert again.build_record["stages"] == {"build": 0.1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.so", "model.onnx"]


def test_weights_beside_the_library_come_along(server: RunningServer, ask: Ask, model: Path, tmp_path: Path) -> None:
    made = ask(server.url, "compile", model, tmp_path / "big.so", options=options(beside=1, weights_mib=2))
    library, weights = made.files
    assert (library.name, weights.name) == ("big.so", "big.safetensors")
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == made.manifest.weights.sha256


@pytest.mark.parametrize(
    ("entry", "kind", "field"), [("refuse", UnsupportedModel, "nodes"), ("segfault", CompilerCrashed, "signal")]
)
def test_a_jobs_error_is_that_of_a_local_compile(
    server: RunningServer, ask: Ask, model: Path, tmp_path: Path, entry: str, kind: type[RelaxcError], field: str
) -> None:
    with pytest.raises(kind) as failed:
        ask(server.url, "compile", model, tmp_path / "m.so", options=options(entry))
    assert failed.value.fields[field]
    assert failed.value.remedy == kind.remedy
    assert not (tmp_path / "m.so").exists()


def test_refusals_are_the_same_errors(server: RunningServer, ask: Ask, model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidTarget):
        ask(server.url, "compile", model, tmp_path / "m.so", target="pdp11")
    with pytest.raises(JobNotFound):
        ask(server.url, "job", "j_" + "0" * 22)
    with pytest.raises(InvalidOption, match="cannot write"):
        ask(server.url, "compile", model, tmp_path / "missing" / "m.so", options=options())


@pytest.mark.sampled("sync")
def test_events_come_in_order_and_once_over_a_wire_that_breaks(
    server: RunningServer, wire: Wire, ask: Ask, model: Path
) -> None:
    with Client(server.url) as client:
        digest = client.upload(model).digest
        job = client.submit("compile", model=digest, options=options(sleep_s=1).to_dict())
    wire.cuts.extend([Cut(down=500), Cut(down=700), Cut(down=0), Cut(down=900)])
    events = ask(wire.url, "events", job.id)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [event.kind for event in events].count("done") == 1
    assert events[-1].data["state"] == "succeeded"
    assert wire.connections > 3
    after = ask(wire.url, "events", job.id, after=2)
    assert [event.number for event in after] == [event.number for event in events[2:]]
    assert ask(wire.url, "wait", job.id).state == "succeeded"


def test_a_download_goes_on_where_it_was_cut(
    server: RunningServer, wire: Wire, ask: Ask, model: Path, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        made = client.compile(model, tmp_path / "first.so", options=options(weights_mib=8))
    wire.cuts.extend([Cut(down=3 << 20), Cut(down=0), Cut(down=4 << 20)])
    ask(wire.url, "download", made.digest, tmp_path / "second.so")
    assert (tmp_path / "second.so").read_bytes() == made.path.read_bytes()
    assert wire.connections == 4


@pytest.mark.sampled("async")
def test_a_compile_survives_every_cut(server: RunningServer, wire: Wire, ask: Ask, model: Path, tmp_path: Path) -> None:
    wire.cuts.extend(Cut(up=size, down=size) for size in (0, 200, 400, 800, 1600, 3200, 1 << 20))
    made = ask(wire.url, "compile", model, tmp_path / "m.so", options=options(weights_mib=4, sleep_s=1))
    assert not made.cached
    assert made.digest == hashlib.sha256((tmp_path / "m.so").read_bytes()).hexdigest()
    with Client(server.url) as client:
        assert len(client.jobs(model=made.manifest.digests["model"]).jobs) == 1


def test_a_download_with_another_digest_is_refused(
    server: RunningServer, client: Client, model: Path, tmp_path: Path
) -> None:
    from relaxc.service.client.download import download

    made = client.compile(model, tmp_path / "m.so", options=options())
    before = (tmp_path / "m.so").read_bytes()
    with pytest.raises(ArtifactCorrupt):
        client._run(download(f"/v1/artifacts/{made.digest}/manifest", tmp_path / "m.so", made.digest))
    assert (tmp_path / "m.so").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.so", "model.onnx"]


class _EnoughError(Exception):
    pass


def _stop(event: dict[str, Any]) -> None:
    raise _EnoughError


def test_who_stops_listening_stops_the_job(server: RunningServer, ask: Ask, model: Path, tmp_path: Path) -> None:
    with pytest.raises(_EnoughError):
        ask(server.url, "compile", model, tmp_path / "m.so", options=options("sleep"), on_event=_stop)
    _is_cancelled(server, model)


def test_the_time_limit_stops_the_job(server: RunningServer, ask: Ask, model: Path, tmp_path: Path) -> None:
    with pytest.raises(CompilerTimeout, match="time was over"):
        ask(server.url, "compile", model, tmp_path / "m.so", options=options("sleep"), timeout_s=0.0)
    _is_cancelled(server, model)


def test_a_cancelled_task_cancels_the_job(server: RunningServer, model: Path, tmp_path: Path) -> None:
    async def impatient() -> None:
        begun = asyncio.Event()
        async with AsyncClient(server.url) as client:
            wishes = {"options": options("sleep"), "on_event": lambda event: begun.set()}
            task = asyncio.create_task(client.compile(model, tmp_path / "m.so", **wishes))
            await begun.wait()
            task.cancel()
            await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(impatient())
    _is_cancelled(server, model)


def _is_cancelled(server: RunningServer, model: Path) -> None:
    with Client(server.url) as client:
        (job,) = client.jobs(model=hashlib.sha256(model.read_bytes()).hexdigest()).jobs
        assert client.wait(job.id, timeout_s=PATIENCE_S).state == "cancelled"
        with pytest.raises(Cancelled):
            client.job(job.id).check()
        with pytest.raises(JobEnded):
            client.cancel(job.id)


def test_who_joined_a_job_leaves_it_to_the_others(
    server: RunningServer, client: Client, model: Path, tmp_path: Path
) -> None:
    digest = client.upload(model).digest
    job = client.submit("compile", model=digest, options=options("sleep").to_dict(), target="auto")
    with pytest.raises(CompilerTimeout):
        client.compile(model, tmp_path / "m.so", options=options("sleep"), timeout_s=0.0)
    assert client.job(job.id).state in ("queued", "running")
    client.cancel(job.id)
    assert client.wait(job.id, timeout_s=PATIENCE_S).state == "cancelled"


@pytest.mark.sampled("async")
def test_pages_logs_and_targets(server: RunningServer, ask: Ask, tmp_path: Path, model: Path) -> None:
    made = [ask(server.url, "compile", model, tmp_path / "m.so", options=options(weights_mib=n)) for n in (1, 2, 3)]
    digest = made[0].manifest.digests["model"]
    first = ask(server.url, "jobs", model=digest, limit="2")
    rest = ask(server.url, "jobs", model=digest, limit="2", cursor=first.next)
    assert [job.artifact for job in (*first.jobs, *rest.jobs)] == [each.digest for each in reversed(made)]
    assert rest.next is None
    assert isinstance(ask(server.url, "logs", first.jobs[0].id), str)
    assert ask(server.url, "manifest", made[0].digest) == made[0].manifest.to_dict()
    assert ask(server.url, "targets")[0]["target"] == "auto"


def test_nobody_there(ask: Ask, model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerUnreachable, match="cannot talk to"):
        ask(f"http://127.0.0.1:{port}", "upload", model, connection={"patience": Patience(unreachable_s=0.5)})


def test_somebody_else_there(ask: Ask) -> None:
    """A web server that is no relaxc."""
    import http.server
    import threading

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            with pytest.raises(ServerUnreachable, match="not as a relaxc server does"):
                ask(
                    f"http://127.0.0.1:{other.server_port}",
                    "targets",
                    connection={"patience": Patience(unreachable_s=0.2)},
                )
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "", "http://[::1", "http://a b/"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidOption, match="address"):
        Client(url)


def test_a_silent_server_is_given_up(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerUnreachable, match="in time"):
            ask(url, "targets", connection={"timeout_s": 0.2, "patience": Patience(unreachable_s=0.3)})


def test_models_may_be_named_as_people_name_them(server: RunningServer, ask: Ask, tmp_path: Path) -> None:
    for name in ("größe & 50%.onnx", "a b#c?.onnx", "x" * 240, "tab\t.onnx"):
        (tmp_path / name).write_bytes(make_onnx(4, seed=len(name)))
        assert ask(server.url, "upload", tmp_path / name).name
