"""Tasks on the nodes of a real cluster: what comes back, what is cancelled, and what a node's loss means."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.errors import Cancelled, CompilerCrashed, ServerUnreachable, UnsupportedModel
from relaxc.service.jobs.ray.cluster import Cluster
from relaxc.service.jobs.ray.resources import kind_of
from relaxc.service.jobs.ray.runner import RayRunner
from relaxc.service.process.pool import Cancellation
from relaxc.service.process.runner import RunnerLost
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Task
from tests.jobs.workers.kinds import ZEN
from tests.ray_nodes import RayNodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def runner(cluster: Cluster) -> RayRunner:
    """What runs tasks on the one node of another kind."""
    return RayRunner(cluster, cluster.kinds()[kind_of(ZEN)], 2)


def test_what_a_task_reads_goes_there_and_what_it_leaves_comes_back(runner: RayRunner, tmp_path: Path) -> None:
    model, workdir = tmp_path / "model", tmp_path / "job"
    for folder in (model, workdir):
        folder.mkdir()
    (model / "weights").write_bytes(b"12345" * 10_000_000)
    (model / "secret").write_text("not named, but beside it")
    (workdir / "known").write_text("known before")
    payload = {"path": str(model / "weights"), "key": str(tmp_path / "elsewhere")}
    events: list[dict[str, Any]] = []
    task = Task("tests.jobs.ray.far_entries:copy", payload, workdir, confinement=Confinement((model,)))
    found = runner.run(task, events.append)
    assert (workdir / "copied").read_bytes() == (model / "weights").read_bytes()
    assert (workdir / "empty").read_bytes() == b""
    assert not (workdir / "link").exists() and not (workdir / "folder").exists()
    assert (workdir / "known").read_text() == "known before"
    assert (workdir / "log.txt").read_text() == "copying\ncopied\n"
    assert [event["message"] for event in events] == ["half", "whole"]
    assert found == {"known": "known before", "path": "MODEL/weights", "network": "refused"}


def test_errors_are_those_of_the_task(runner: RayRunner, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        runner.run(Task("tests.jobs.entries:refuse", {}, tmp_path), lambda event: None)
    assert refused.value.fields["nodes"] == ["a", "b"]
    with pytest.raises(CompilerCrashed) as crashed:
        runner.run(Task("tests.jobs.entries:segfault", {}, tmp_path), lambda event: None)
    assert (crashed.value.fields["signal"], crashed.value.fields["stage"]) == ("SIGSEGV", "schedule")


def test_one_that_is_cancelled_leaves_its_node_free(runner: RayRunner, tmp_path: Path) -> None:
    for _ in range(3):
        cancellation, began = Cancellation(), threading.Event()
        threading.Thread(target=lambda c=cancellation, b=began: (b.wait(), c.cancel()), daemon=True).start()
        with pytest.raises(Cancelled):
            runner.run(
                Task("tests.jobs.entries:sleep", {}, tmp_path),
                lambda event, began=began: began.set(),  # type: ignore[misc]  # as called
                cancellation=cancellation,
            )
    assert runner.running == 0


def test_a_task_whose_node_is_lost_is_lost(nodes: RayNodes, cluster: Cluster, tmp_path: Path) -> None:
    runner = RayRunner(cluster, cluster.kinds()[kind_of(ZEN)], 1)
    began = threading.Event()
    killer = threading.Thread(target=lambda: (began.wait(), nodes.kill("other")), daemon=True)
    killer.start()
    with pytest.raises(RunnerLost):
        runner.run(Task("tests.jobs.entries:sleep", {}, tmp_path), lambda event: began.set())
    killer.join()
    nodes.start("other", ZEN)
    echoed = runner.run(Task("tests.jobs.entries:echo", {"n": 1}, tmp_path), lambda event: None)
    assert echoed == {"payload": {"n": 1}}


def test_an_address_where_there_is_no_cluster() -> None:
    pytest.importorskip("ray")
    with pytest.raises(ServerUnreachable):
        Cluster("ray://127.0.0.1:1")
