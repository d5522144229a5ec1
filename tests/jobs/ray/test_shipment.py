"""What goes along with a task: what its text names of what it may read, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service.jobs.ray.shipment import is_plain_name, moved, of_task
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Flavour, Task


def test_a_task_that_has_arrived_names_the_files_there(tmp_path: Path) -> None:
    model, records, peak = tmp_path / "model", tmp_path / "records", tmp_path / "peak"
    for folder in (model, records, peak):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    (model / "weights").mkdir()
    (model / "weights" / "data").write_text("w")
    payload = {
        "request": {"model": {"path": str(model / "file"), "digest": "d"}},
        "records": [str(records / "file")],
        "threads": 2,
        "other": "/somewhere/else",
    }
    reads = (model, records / "file", peak)
    task = Task("a:b", payload, tmp_path / "w", Flavour.PT2, confinement=Confinement(reads), repro="relaxc compile x")
    shipment = of_task(task)
    assert str(tmp_path) not in repr(shipment.task)
    assert [(number, rest) for number, rest, _ in shipment.files()] == [(0, "file"), (0, "weights/data"), (1, "")]

    there = {0: Path("/there/0"), 1: Path("/there/1/file")}
    arrived = moved(shipment.task, there, Path("/there/job"), (Path("/there/peak"),))
    assert arrived.payload == {
        "request": {"model": {"path": "/there/0/file", "digest": "d"}},
        "records": ["/there/1/file"],
        "threads": 2,
        "other": "/somewhere/else",
    }
    assert arrived.confinement.reads == (*there.values(), Path("/there/peak"))
    assert (arrived.flavour, arrived.limits, arrived.repro) == (task.flavour, task.limits, task.repro)
    assert not arrived.confinement.network and arrived.confinement.own_user


def test_no_network_goes_along(tmp_path: Path) -> None:
    task = Task("a:b", {}, tmp_path, confinement=Confinement(network=True, gpu_in_children=True))
    arrived = moved(of_task(task).task, {}, tmp_path)
    assert (arrived.confinement.network, arrived.confinement.gpu_in_children) == (False, True)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b", "x" * 256, None, 3])
def test_what_names_no_file_of_a_folder(name: object) -> None:
    assert not is_plain_name(name)
    assert is_plain_name("model.so")
