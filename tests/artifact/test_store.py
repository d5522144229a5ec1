"""The store: hits, misses and why, removal, damage, and two or more processes at once."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from relaxc.service.artifact.entry import ENTRY_FILE, Entry, remember
from relaxc.service.artifact.identity import identity_of
from relaxc.service.artifact.key import Key
from relaxc.service.artifact.store import Store
from relaxc.service.errors import ArtifactCorrupt, ArtifactNotFound, Busy, StoreUnwritable
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
BUILD = {"stages": {"import": 0.5}, "host": "here", "date": "2026-01-01"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store of 1 MB."""
    return Store(tmp_path / "store", 1 << 20)


def key(**entries: str) -> Key:
    """A key with these entries and a model."""
    return Key.of({"model.digest": "m", "option.opt_level": "2", **entries})


def files(tmp_path: Path, content: str = "code", sidecar: str | None = None) -> list[Path]:
    """A file to put, and one beside it."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    names = {"model.so": content} | ({"model.safetensors": sidecar} if sidecar is not None else {})
    for name, text in names.items():
        (folder / name).write_text(text)
    return [folder / name for name in names]


def age(entry: Entry, seconds: float) -> None:
    """Pretend that the last use was some time ago."""
    then = time.time() - seconds
    os.utime(entry.folder / ENTRY_FILE, (then, then))


def test_what_was_put_is_found_by_its_key_and_by_its_digest(store: Store, tmp_path: Path) -> None:
    assert store.lookup(key()) is None
    put = store.put(key(), files(tmp_path, "code", "weights"), BUILD)
    found = store.lookup(key())
    assert found is not None
    assert (found.digest, found.build) == (put.digest, BUILD)
    assert [path.read_text() for path in found.paths] == ["code", "weights"]
    assert [path.name for path in found.paths] == ["model.so", "model.safetensors"]
    with store.open(put.digest) as opened:
        assert opened.path.read_text() == "code"
    assert store.verify(put.digest).size_bytes == len("codeweights")
    assert store.lookup(key(x="1")) is None


def test_two_keys_may_lead_to_one_artifact(store: Store, tmp_path: Path) -> None:
    one, two = (store.put(key(x=x), files(tmp_path), BUILD) for x in "12")
    assert one.digest == two.digest
    (listed,) = store.ls()
    assert {stored.key for stored in listed.keys} == {key(x="1"), key(x="2")}


@pytest.mark.parametrize("digest", ["", "x", "../../etc/passwd", "A" * 64, "0" * 64, "0" * 63 + "\n"])
def test_what_is_no_digest_of_ours_is_not_found(store: Store, digest: str) -> None:
    with pytest.raises(ArtifactNotFound):
        store.open(digest)


def test_a_miss_is_explained_by_the_nearest_key_of_the_same_model(store: Store, tmp_path: Path) -> None:
    assert store.explain(key()).nearest is None
    store.put(key(version="1", a="1"), files(tmp_path, "a"), BUILD)
    store.put(key(version="2", a="2"), files(tmp_path, "b"), BUILD)
    store.put(key(**{"model.digest": "other"}, version="2", a="1"), files(tmp_path, "c"), BUILD)
    found = store.explain(key(version="2", a="1", b="1"))
    assert not found.hit
    assert found.nearest is not None
    assert found.differences in (
        {"version": ("1", "2"), "b": (None, "1")},
        {"a": ("2", "1"), "b": (None, "1")},
    )
    assert store.explain(key(version="1", a="1")).hit


def test_the_least_recently_used_go_first(store: Store, tmp_path: Path) -> None:
    entries = {name: store.put(key(name=name), files(tmp_path, name * 100), BUILD) for name in "abc"}
    for name, seconds in (("a", 300), ("b", 200), ("c", 100)):
        age(entries[name], seconds)
    assert store.lookup(key(name="a")) is not None  # a use
    removed = store.gc(250)
    assert [entry.digest for entry in removed] == [entries["b"].digest]
    assert store.lookup(key(name="b")) is None
    assert {e.digest for e in store.ls()} == {entries["a"].digest, entries["c"].digest}
    assert not list((store.root / "staging").iterdir())


def test_what_is_open_or_just_put_is_not_removed(store: Store, tmp_path: Path) -> None:
    entry = store.put(key(), files(tmp_path), BUILD)
    assert store.gc(0) == []  # used in the last 30 s
    with store.open(entry.digest):
        assert store.gc(0, grace_s=-1) == []
    assert [removed.digest for removed in store.gc(0, grace_s=-1)] == [entry.digest]
    assert store.ls() == []


def test_a_put_keeps_the_store_under_its_limit(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", 250)
    for name in "abcd":
        entry = store.put(key(name=name), files(tmp_path, name * 100), BUILD)
        age(entry, 100)
    assert len(store.ls()) == 2
    huge = store.put(key(name="huge"), files(tmp_path, "x" * 1000), BUILD)
    assert [entry.digest for entry in store.ls()] == [huge.digest]


def test_a_put_reads_other_artifacts_only_where_the_store_may_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, looks = Store(tmp_path / "store", 1000), []
    entries = Store._entries
    monkeypatch.setattr(Store, "_entries", lambda self: looks.append(1) or entries(self))
    for name in "abcdefghi":
        age(store.put(key(name=name), files(tmp_path, name * 100), BUILD), 100)
    assert len(looks) == 1  # the first, which did not know
    for name in "jklm":
        age(store.put(key(name=name), files(tmp_path, name * 100), BUILD), 100)
    assert sum(entry.size_bytes for entry in store.ls()) <= 1000
    assert len(looks) - 1 <= 4
    (store.root / "size").write_text("rotten")
    store.put(key(name="n"), files(tmp_path, "n" * 100), BUILD)
    assert sum(entry.size_bytes for entry in store.ls()) <= 1000


def test_damage_is_a_miss_and_the_next_put_heals_it(store: Store, tmp_path: Path) -> None:
    def damage_size(entry: Entry) -> None:
        entry.path.write_text("longer than before")

    def damage_entry(entry: Entry) -> None:
        (entry.folder / ENTRY_FILE).write_text('{"files": [["../x", 1, 2]]}')

    def damage_key(entry: Entry) -> None:
        next(store.root.glob("keys/*/*.json")).write_bytes(b"\xff{")

    def damage_folder(entry: Entry) -> None:
        (entry.folder / ENTRY_FILE).unlink()

    def damage_all(entry: Entry) -> None:
        next(store.root.glob("keys/*/*.json")).write_text('{"artifact": "../..", "entries": {}, "build": {}}')

    for damage in (damage_size, damage_entry, damage_key, damage_folder, damage_all):
        damage(store.put(key(), files(tmp_path), BUILD))
        store.ls()
        store.gc(0)
        store.explain(key())
        assert store.lookup(key()) is None, damage.__name__
        assert store.put(key(), files(tmp_path), BUILD).path.read_text() == "code"
        assert store.lookup(key()) is not None


def test_a_wrong_byte_is_found_by_verify_and_the_artifact_removed(store: Store, tmp_path: Path) -> None:
    entry = store.put(key(), files(tmp_path), BUILD)
    entry.path.write_text("cod3")
    with pytest.raises(ArtifactCorrupt, match=r"model\.so"):
        store.verify(entry.digest)
    assert store.lookup(key()) is None


def test_what_is_put_takes_the_place_of_a_damaged_equal(store: Store, tmp_path: Path) -> None:
    store.put(key(), files(tmp_path, "code", "weights"), BUILD).paths[1].write_text("weighty")
    assert store.put(key(), files(tmp_path, "code", "weights"), BUILD).paths[1].read_text() == "weights"


def test_a_damaged_artifact_that_is_open_is_replaced(store: Store, tmp_path: Path) -> None:
    damaged = store.put(key(), files(tmp_path, "code", "weights"), BUILD)
    with store.open(damaged.digest), damaged.paths[1].open() as read:
        damaged.paths[1].write_text("weighty")
        assert store.put(key(), files(tmp_path, "code", "weights"), BUILD).paths[1].read_text() == "weights"
        assert read.read() == "weighty"


def test_several_that_replace_one_damaged_artifact_all_have_the_right_one(tmp_path: Path) -> None:
    store, right = Store(tmp_path / "store", 1 << 30), "right" * (1 << 20)
    damaged = store.put(key(), files(tmp_path, "code", right), BUILD).paths[1]
    for _ in range(3):
        damaged.write_text("wrong" * (1 << 20))
        given = [files(tmp_path, "code", right) for _ in range(6)]
        with ThreadPoolExecutor(6) as threads:
            puts = [threads.submit(store.put, key(x=str(index)), each, BUILD) for index, each in enumerate(given)]
            verified = [threads.submit(lambda put=put: store.verify(put.result().digest)) for put in puts]
        assert {each.result().paths[1].read_text() == right for each in verified} == {True}
        assert not list((tmp_path / "store" / "staging").iterdir())


def test_what_is_found_is_whole(store: Store, tmp_path: Path) -> None:
    def by_key(digest: str) -> bool:
        return store.lookup(key()) is None

    def by_digest(digest: str) -> bool:
        with pytest.raises(ArtifactCorrupt, match=r"model\.safetensors"):
            store.open(digest)
        return True

    for is_missed in (by_key, by_digest):
        entry = store.put(key(), files(tmp_path, "code", "weights"), BUILD)
        assert store.lookup(key()) is not None
        entry.paths[1].write_text("weighty"[: entry.files[1].size_bytes])
        assert is_missed(entry.digest)
        assert not entry.folder.exists()


def test_a_scrub_reads_what_was_read_before_and_removes_what_rotted(store: Store, tmp_path: Path) -> None:
    whole = store.put(key(name="whole"), files(tmp_path, "whole"), BUILD)
    rotten = store.put(key(name="rotten"), files(tmp_path, "rotten"), BUILD)
    times = rotten.path.stat()
    rotten.path.write_text("rotted")
    os.utime(rotten.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    remember(identity_of(rotten.path), rotten.digest)  # as if no time had changed
    store.open(rotten.digest).close()
    found = {entry.digest: error for entry, error in store.scrub()}
    assert found.keys() == {whole.digest, rotten.digest}
    assert found[whole.digest] is None
    assert isinstance(found[rotten.digest], ArtifactCorrupt)
    assert [entry.digest for entry in store.ls()] == [whole.digest]


def test_a_wrong_size_is_found_by_open(store: Store, tmp_path: Path) -> None:
    entry = store.put(key(), files(tmp_path), BUILD)
    entry.path.write_text("c")
    with pytest.raises(ArtifactCorrupt):
        store.open(entry.digest)
    with pytest.raises(ArtifactNotFound):
        store.open(entry.digest)


def test_files_that_are_not_there_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFound):
        store.put(key(), [tmp_path / "none.so"], BUILD)
    with pytest.raises(ArtifactNotFound):
        store.put(key(), [], BUILD)


def child(code: str) -> subprocess.Popen[str]:
    """A process that runs this code with the test's names."""
    prelude = "from pathlib import Path\nfrom tests.artifact.test_store import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_a_full_disk_is_a_clear_error_and_keeps_nothing(store: Store, tmp_path: Path) -> None:
    limited = child(
        f"""
        import resource
        store, work = Store(Path({str(store.root)!r}), 1 << 20), files(Path({str(tmp_path)!r}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
        try:
            store.put(key(), work, BUILD)
        except StoreUnwritable as error:
            print(error)
        """
    )
    said, _ = limited.communicate(timeout=PATIENCE_S)
    assert "cannot be written: File too large" in said
    assert store.lookup(key()) is None
    assert store.ls() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_is_not_ours_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StoreUnwritable):
        Store(tmp_path / "closed", 1).put(key(), files(tmp_path), BUILD)


def put_killed_at(step: int, store: Store, work: list[Path]) -> int:
    """The exit code of a forked child that puts `work`, and kills itself before its file operation number `step`."""
    pid = os.fork()
    if pid == 0:
        steps = 0

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal steps
            if event in ("os.rename", "os.mkdir", "open", "shutil.move") and str(store.root) in str(arguments[0]):
                steps += 1
                if steps == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            store.put(key(), work, BUILD)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_kill_in_the_middle_of_a_put_leaves_no_half_artifact(store: Store, tmp_path: Path) -> None:
    """Killed at every file operation in turn, until one put gets through."""
    step, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        step += 1
        code = put_killed_at(step, store, files(tmp_path, "code", "w" * 99))
        for entry in store.ls():
            store.verify(entry.digest)
        found = store.lookup(key())
        assert found is None or found.path.read_text() == "code"
    assert code == 0
    assert step > 8
    assert store.lookup(key()) is not None
    for left in (store.root / "staging").iterdir():
        os.utime(left, (0, 0))
    store.gc()
    assert not list((store.root / "staging").iterdir())


def test_processes_that_want_the_same_key_compile_it_once(store: Store, tmp_path: Path) -> None:
    code = f"""
    import time
    store = Store(Path({str(store.root)!r}), 1 << 20)
    with store.lock(key()):
        if store.lookup(key()) is None:
            time.sleep(0.2)
            store.put(key(), files(Path({str(tmp_path)!r})), BUILD)
            print("compiled")
        else:
            print("found")
    """
    said = sorted(done.communicate(timeout=PATIENCE_S)[0].strip() for done in [child(code) for _ in range(3)])
    assert said == ["compiled", "found", "found"]


def test_waiting_for_the_lock_ends(store: Store) -> None:
    with store.lock(key()), pytest.raises(Busy), store.lock(key(), timeout_s=0.05):
        pass
    with store.lock(key(), timeout_s=0):
        pass


def test_a_lock_that_nobody_has_needed_for_an_hour_goes(store: Store) -> None:
    with store.lock(key()):
        (path,) = (store.root / "locks").iterdir()
        os.utime(path, (0, 0))
        store.sweep()
        assert path.exists()  # held
    os.utime(path)
    store.sweep()
    assert path.exists()  # young
    os.utime(path, (0, 0))
    store.sweep()
    assert not path.exists()


@pytest.mark.slow
def test_processes_that_put_read_and_remove_at_once_never_see_a_half_artifact(store: Store, tmp_path: Path) -> None:
    code = f"""
    import random, time
    store, work = Store(Path({str(store.root)!r}), 1 << 20), Path({str(tmp_path)!r})
    end, seen = time.monotonic() + 2, 0
    while time.monotonic() < end or not seen:
        name = random.choice("abc")
        try:
            store.put(key(name=name), files(work, name * 5000, name * 7000), BUILD)
            found = store.lookup(key(name=random.choice("abc")))
            if found is not None:
                with store.open(found.digest) as opened:
                    texts = [path.read_text() for path in opened.entry.paths]
                assert [len(set(text)) for text in texts] == [1, 1]
                assert [len(text) for text in texts] == [5000, 7000]
                seen += 1
        except ArtifactNotFound:
            pass  # another process removed it between two steps, as no grace was given
        store.gc(15000, grace_s=-1)
    print("ok")
    """
    children = [child(code) for _ in range(3)]
    assert [done.communicate(timeout=PATIENCE_S)[0].strip() for done in children] == ["ok"] * 3
    assert all(done.returncode == 0 for done in children)


def test_opening_reads_no_more_of_a_large_artifact(store: Store, tmp_path: Path) -> None:
    (path,) = files(tmp_path)
    with path.open("r+b") as file:
        file.truncate(512 << 20)
    entry = Store(store.root, 1 << 40).put(key(), [path], BUILD)
    read, mapped = psutil.Process().io_counters, resource.getrusage
    before, faults = read().read_chars, mapped(resource.RUSAGE_SELF).ru_minflt
    with store.open(entry.digest):
        assert read().read_chars - before < 1 << 20
        assert mapped(resource.RUSAGE_SELF).ru_minflt - faults < (64 << 20) // resource.getpagesize()


_ = resource  # used by the children's code through `import *`
