"""The builder of kernels: what it makes, finds and notes, and who may not look into it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from relaxc.service.artifact.key import Key
from relaxc.service.errors import CompileFailed, CompilerCrashed
from relaxc.service.jobs.kernels import Journal, Kernels
from relaxc.service.lowering import objects
from relaxc.service.lowering.kernel_builder import start_builder
from relaxc.service.lowering.kernel_cache import path_of, records
from relaxc.service.process.timings import Timings
from tests.lowering.test_objects import texts_of

TOOLS = Key.of({"version.apache-tvm": "1"})


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    return Kernels.below(tmp_path, 1 << 30)


def built(kernels: Kernels, tmp_path: Path, target: str = "x86-64-v3", processes: int = 2):
    """The objects of a model, what the builder noted, and how many it found and made."""
    workdir = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
    workdir.mkdir()
    texts, spec = texts_of(target)
    with kernels.journal(workdir, TOOLS, processes) as journal:
        timings = Timings()
        made = start_builder(journal.payload, workdir)(texts, spec, timings)
        noted = list(records(journal.number)) if journal.number >= 0 else []
        kernels.adopt(journal)
    assert list(workdir.iterdir()) == []
    return made, noted, timings.seconds.keys()


def test_what_is_made_once_is_found_the_next_time(kernels: Kernels, tmp_path: Path) -> None:
    made, noted, steps = built(kernels, tmp_path)
    assert {record.content for record in noted} == set(made.values())
    assert {"kernels.made", "llvm", "tir.UnrollLoop"} <= steps
    found, noted, steps = built(kernels, tmp_path, processes=1)
    assert found == made
    assert [record.content for record in noted] == [None] * len(made)
    assert "kernels.made" not in steps
    assert "llvm" not in steps


def test_as_one_process_makes_them(kernels: Kernels, tmp_path: Path) -> None:
    texts, spec = texts_of("x86-64-v3")
    here = {name: objects.object_of(objects.kernel_of(text), spec, Timings()) for name, text in texts.items()}
    assert built(kernels, tmp_path)[0] == here
    assert built(Kernels.below(tmp_path, 0), tmp_path)[0] == here


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"x", lambda data: b""])
def test_damaged_objects_are_built_again(damage, kernels: Kernels, tmp_path: Path) -> None:
    made, noted, _ = built(kernels, tmp_path)
    for record in noted:
        path = path_of(kernels.root, record.key)
        path.write_bytes(damage(path.read_bytes()))
    again, noted, steps = built(kernels, tmp_path)
    assert again == made
    assert "kernels.found" not in steps
    assert all(record.content for record in noted)
    assert "kernels.found" in built(kernels, tmp_path)[2]


def test_another_target_is_another_object(kernels: Kernels, tmp_path: Path) -> None:
    built(kernels, tmp_path)
    assert "kernels.found" not in built(kernels, tmp_path, "x86-64-v4")[2]


def test_a_kernel_whose_process_dies_once_is_built_again(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, _ = built(kernels, tmp_path)
    real, first = objects.object_of, tmp_path / "first"

    def dies_once(kernel, spec, timings):
        try:
            first.touch(exist_ok=False)
        except FileExistsError:
            return real(kernel, spec, timings)
        return os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr(objects, "object_of", dies_once)
    kernels.gc(0)
    again, noted, _ = built(kernels, tmp_path)
    assert again == made
    assert len(noted) == len(made)


def test_one_that_always_dies_is_an_error_and_is_not_noted(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "object_of", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(CompilerCrashed, match=r"compiled kernel \w+ died of SIGKILL"):
        built(kernels, tmp_path)
    assert kernels.stats().count == 0


def test_what_the_compiler_raises_is_the_kernels_error(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_):
        raise ValueError("bad_alloc\nand more")

    monkeypatch.setattr(objects, "object_of", refuse)
    with pytest.raises(CompileFailed, match=r"kernel \w+: ValueError: bad_alloc$"):
        built(kernels, tmp_path)


@pytest.mark.parametrize("answer", [b"", b"no object", b"\x7fELF\x02\x01 and not much more"])
def test_what_is_no_object_is_not_noted(
    answer: bytes, kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "object_of", lambda *_: answer)
    with pytest.raises(CompilerCrashed, match="ended without an answer"):
        built(kernels, tmp_path)
    assert kernels.stats().count == 0


def test_a_builder_that_is_killed_is_an_error(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    builder = start_builder({"toolchain": "", "processes": 1}, tmp_path)
    (process,) = set(psutil.Process().children()) - before
    process.kill()
    texts, spec = texts_of("x86-64-v3")
    with pytest.raises(CompilerCrashed, match="the builder of kernels was ended"):
        builder(texts, spec, Timings())
    process.wait()


def test_its_journal_has_no_name_once_it_is_ready(kernels: Kernels, tmp_path: Path) -> None:
    with kernels.journal(tmp_path, TOOLS, 1) as journal:
        path = tmp_path / journal.payload["journal"]
        assert path.exists()
        start_builder(journal.payload, tmp_path)
        assert not path.exists()
        assert isinstance(journal, Journal)


def test_where_there_is_no_journal_and_no_cache_it_builds_all_the_same(tmp_path: Path) -> None:
    """As on a machine that runs jobs for another one."""
    texts, spec = texts_of("x86-64-v3")
    payload = {"toolchain": "", "processes": 0, "folder": str(tmp_path / "none"), "journal": "none"}
    assert start_builder(payload, tmp_path)(texts, spec, Timings()).keys() == texts.keys()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user id is needed, which root alone can take")
def test_a_process_of_the_same_user_cannot_open_what_it_has_open(kernels: Kernels, tmp_path: Path) -> None:
    """As in a job: both have the job's own user id, and neither has capabilities."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    tmp_path.chmod(0o777)
    with kernels.journal(tmp_path, TOOLS, 1) as journal:
        (tmp_path / journal.payload["journal"]).chmod(0o666)
        pid = os.fork()
        if pid == 0:
            os._exit(_opens_what_the_builder_has(journal, tmp_path))
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _opens_what_the_builder_has(journal: Journal, workdir: Path) -> int:
    """In a child: the number of ways by which the builder's memory and files can be reached."""
    try:
        os.setresuid(1_900_000_001, 1_900_000_001, 1_900_000_001)
        start_builder(journal.payload, workdir)
        (builder,) = psutil.Process().children()
        opened = 0
        for path, way in (("fd", os.listdir), ("mem", lambda path: os.open(path, os.O_RDWR)), ("fd/3", os.readlink)):
            with suppress(PermissionError):
                way(f"/proc/{builder.pid}/{path}")
                opened += 1
    except BaseException:  # noqa: BLE001  # a fork of the tests, which is not to go on
        return 99
    return opened
