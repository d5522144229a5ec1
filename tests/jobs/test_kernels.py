"""The kernel cache on disk: what a builder noted is put away, checked, counted, and removed by age."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from relaxc.service.artifact.key import Key
from relaxc.service.jobs.kernels import Kernels, toolchain_of
from relaxc.service.lowering.kernel_cache import Record, kernel_key, packed, path_of, read_object
from relaxc.service.process.pool import Pool
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Task
from tests.lowering.object_files import elf

TOOLS = Key.of({"version.apache-tvm": "1", "source.lowering": "2", "model.digest": "3", "setting.x": "4"})
KEYS = [kernel_key("tools", b"target", str(i).encode()) for i in range(4)]


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    return Kernels.below(tmp_path / "store", 1 << 20)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def note(path: Path, noted: Iterable[Record]) -> None:
    """Do as a builder does."""
    with path.open("ab") as file:
        path.unlink()
        for record in noted:
            record.write(file)


def adopted(kernels: Kernels, workdir: Path, *noted: Record) -> int:
    with kernels.journal(workdir, TOOLS, 1) as journal:
        note(workdir / journal.payload["journal"], noted)
        return kernels.adopt(journal)


def test_what_was_made_is_found_and_anybody_may_read_it(kernels: Kernels, workdir: Path) -> None:
    umask = os.umask(0o077)
    try:
        assert adopted(kernels, workdir, *(Record(key, elf(key.encode())) for key in KEYS)) == 4
        assert adopted(kernels, workdir, Record(KEYS[0], elf(KEYS[0].encode()))) == 0
    finally:
        os.umask(umask)
    assert read_object(kernels.root, KEYS[2]) == elf(KEYS[2].encode())
    assert kernels.stats().count == 4
    for path in (kernels.root, path_of(kernels.root, KEYS[2]).parent, path_of(kernels.root, KEYS[2])):
        assert path.stat().st_mode & stat.S_IROTH
    assert list(workdir.iterdir()) == []


def test_a_journal_that_no_builder_took_is_not_believed(kernels: Kernels, workdir: Path) -> None:
    with kernels.journal(workdir, TOOLS, 1) as journal:
        with (workdir / journal.payload["journal"]).open("ab") as file:
            Record(KEYS[0], elf()).write(file)
        assert kernels.adopt(journal) == 0
    assert kernels.stats().count == 0


def test_a_damaged_object_is_replaced(kernels: Kernels, workdir: Path) -> None:
    adopted(kernels, workdir, Record(KEYS[0], elf()))
    path = path_of(kernels.root, KEYS[0])
    path.write_bytes(path.read_bytes()[:-3])
    assert adopted(kernels, workdir, Record(KEYS[0], elf())) == 1
    assert path.read_bytes() == packed(KEYS[0], elf())


def test_what_is_no_object_is_left_out(kernels: Kernels, workdir: Path) -> None:
    assert adopted(kernels, workdir, Record(KEYS[0], b"no ELF"), Record(KEYS[1], elf()[:-1])) == 0


def test_the_least_recently_used_go(kernels: Kernels, workdir: Path) -> None:
    adopted(kernels, workdir, *(Record(key, elf()) for key in KEYS))
    for age, key in enumerate(KEYS):
        os.utime(path_of(kernels.root, key), (1000 - age, 1000 - age))
    adopted(kernels, workdir, Record(KEYS[3], None))
    each = path_of(kernels.root, KEYS[0]).stat().st_size
    assert kernels.gc(2 * each) == 2 * each
    assert [read_object(kernels.root, key) is not None for key in KEYS] == [True, False, False, True]
    kernels.max_bytes = each
    adopted(kernels, workdir, Record(KEYS[1], elf()))
    assert kernels.stats().count == 1


def test_a_full_disk_leaves_the_object_out(kernels: Kernels, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("relaxc.service.jobs.kernels.write_file", full)
        assert adopted(kernels, workdir, Record(KEYS[0], elf())) == 0
    assert adopted(kernels, workdir, Record(KEYS[0], elf())) == 1


def test_no_cache_is_no_folder(tmp_path: Path, workdir: Path) -> None:
    kernels = Kernels.below(tmp_path / "none", 0)
    with kernels.journal(workdir, TOOLS, 3) as journal:
        assert "folder" not in journal.payload
        assert journal.payload["processes"] == 3
        assert kernels.adopt(journal) == 0
    assert not kernels.root.exists()


def test_a_file_in_its_place_is_no_cache(tmp_path: Path, workdir: Path) -> None:
    (tmp_path / "kernels").write_bytes(b"")
    with Kernels.below(tmp_path, 1 << 20).journal(workdir, TOOLS, 2) as journal:
        assert journal.number == -1 and "folder" not in journal.payload


def test_the_toolchain_is_what_code_depends_on() -> None:
    def changed(**entries: str) -> bool:
        return toolchain_of(Key.of({**dict(TOOLS.entries), **entries})) != toolchain_of(TOOLS)

    assert changed(**{"version.apache-tvm": "2"})
    assert changed(**{"source.lowering": "3"})
    assert changed(**{"setting.x": "5"})
    assert not changed(**{"model.digest": "4"})


@pytest.mark.slow
@pytest.mark.parametrize("own_user", [True, False])
def test_a_job_has_no_way_to_have_an_object_of_its_own_kept(own_user: bool, kernels: Kernels, workdir: Path) -> None:
    """It goes into the sandbox of its server, and starts its builder as each compile does."""
    with Pool() as pool, kernels.journal(workdir, TOOLS, 1) as journal:
        allowed = Confinement(own_user=own_user, published=(kernels.root,))
        task = Task("tests.jobs.liars:poison", {"kernels": journal.payload}, workdir, confinement=allowed)
        assert pool.run(task, lambda event: None)["went"] == []
        assert kernels.adopt(journal) == 0
    assert kernels.stats().count == 0
