"""Records on disk: what was written is there whatever happens to a writer, and what is damaged is named."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relaxc.service.errors import InvalidRecords, StoreUnwritable
from relaxc.service.records import files
from relaxc.service.records.files import append, parse, read, remove, torn_copy
from relaxc.service.records.record import RecordSet, RecordTarget
from relaxc.service.records.sources import SHIPPED
from tests.records.samples import TARGET, record
from tests.test_layers import ROOT
from tests.waiting import PATIENCE_S

FILE = f"{TARGET.name}/cpu.matmul.jsonl"


def some(count: int, **fields: object) -> list:
    return [record(workload=f"{number:016x}", **fields) for number in range(count)]


def test_what_is_appended_is_read_wherever_it_goes(tmp_path: Path) -> None:
    gpu, rows = record(target=RecordTarget("cuda", arch="sm_90")), record(rule="cpu.rows")
    append(tmp_path, [*some(2), gpu, rows])
    assert read(tmp_path) == RecordSet([*some(2), gpu, rows])
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jsonl")) == [
        "cuda-sm_90/cpu.matmul.jsonl",
        FILE,
        f"{TARGET.name}/cpu.rows.jsonl",
    ]
    assert read(tmp_path / FILE) == RecordSet(some(2)) == parse((tmp_path / FILE).read_bytes(), "there")
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o644


def test_lines_are_sorted_so_that_git_merges_them(tmp_path: Path) -> None:
    for one in reversed(some(5)):
        append(tmp_path, [one])
    lines = (tmp_path / FILE).read_text().splitlines()
    assert lines == [one.to_json() for one in some(5)]


def test_of_two_with_one_key_the_faster_stays(tmp_path: Path) -> None:
    append(tmp_path, [record(seconds=2.0)])
    append(tmp_path, [record(seconds=1.0)])
    before = (tmp_path / FILE).stat().st_mtime_ns
    append(tmp_path, [record(seconds=3.0)])
    assert read(tmp_path) == RecordSet([record(seconds=1.0)])
    assert (tmp_path / FILE).stat().st_mtime_ns == before  # nothing new: nothing written


def test_removed_records_are_gone_and_no_others(tmp_path: Path) -> None:
    append(tmp_path, some(3))
    remove(tmp_path, [*some(2), record(workload="f" * 16)])
    assert read(tmp_path) == RecordSet(some(3)[2:])
    remove(tmp_path, some(3))
    assert not (tmp_path / FILE).exists() and len(read(tmp_path)) == 0


def test_a_record_that_became_faster_meanwhile_is_not_removed(tmp_path: Path) -> None:
    append(tmp_path, [record(seconds=1.0)])
    remove(tmp_path, [record(seconds=2.0)])
    assert len(read(tmp_path)) == 1


@pytest.mark.parametrize("cut", [1, 30, -2])
def test_a_torn_last_line_is_set_aside_and_the_rest_is_kept(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    append(tmp_path, some(2))
    file = tmp_path / FILE
    torn = some(3)[2].to_json()[:cut]
    file.write_text(file.read_text() + torn)
    with caplog.at_level(logging.WARNING, "relaxc.tuning"):
        assert read(tmp_path) == RecordSet(some(2))
    assert f"{file}:3 breaks off" in caplog.text
    assert file.read_text().endswith(torn)  # reading changes nothing
    append(tmp_path, [record(workload="f" * 16)])
    assert read(tmp_path) == RecordSet([*some(2), record(workload="f" * 16)])
    assert torn_copy(file).read_text() == f"{torn}\n"


def test_a_last_line_without_its_end_that_is_whole_counts(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(record().to_json())
    assert read(tmp_path) == RecordSet([record()])


DAMAGED = {
    "half a line in the middle": ("{first}\n{half}\n{second}\n", 2),
    "what git leaves of a conflict": ("{first}\n<<<<<<< HEAD\n{second}\n", 2),
    "a last line that is whole and no record": ("{first}\n{{}}\n", 2),
    "bytes": ("{first}\n\x00\xff\n{second}\n", 2),
    "nested too deep": ("[" * 100_000 + "\n{first}\n{second}\n", 1),
    "a number out of range": ('{{"seconds": NaN}}\n{first}\n', 1),
}


@pytest.mark.parametrize(("text", "line"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_named_and_never_dropped(tmp_path: Path, text: str, line: int) -> None:
    first, second = (one.to_json() for one in some(2))
    file = tmp_path / FILE
    file.parent.mkdir()
    file.write_text(text.format(first=first, second=second, half=first[:40]), encoding="latin-1")
    before = file.read_bytes()
    with pytest.raises(InvalidRecords, match=rf"cpu\.matmul\.jsonl:{line} is no record") as caught:
        read(tmp_path)
    assert caught.value.fields == {"path": str(file), "line": line}
    with pytest.raises(InvalidRecords):
        append(tmp_path, [record()])
    assert file.read_bytes() == before


def test_records_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecords, match=r"there are no records at .*nowhere"):
        read(tmp_path / "nowhere")
    assert len(read(tmp_path)) == 0


def test_what_others_keep_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    append(tmp_path, some(1))
    for name in (".journal/a.jsonl", "README.md", f"{TARGET.name}/.cpu.matmul.jsonl.x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("not a record\n")
    assert read(tmp_path) == RecordSet(some(1))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnwritable, match=r"cannot write records into .*file") as caught:
        append(tmp_path / "file", some(1))
    assert "no record was lost" in caught.value.remedy


# What happens in processes of their own

WRITER = """
import sys
from pathlib import Path
from relaxc.service.records.files import append
from tests.records.samples import record
root, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for number in range(first, last):
    append(root, [record(workload=f"{number:016x}")])
    print(number, flush=True)
"""


def writer(root: Path, first: int, last: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(root), str(first), str(last)]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_writers_on_one_folder_lose_nothing(tmp_path: Path) -> None:
    writers = [writer(tmp_path, 0, 25), writer(tmp_path, 25, 50)]
    for one in writers:
        _, errors = one.communicate(timeout=PATIENCE_S)
        assert one.returncode == 0, errors
    assert read(tmp_path) == RecordSet(some(50))


def test_a_writer_that_is_killed_has_written_all_that_it_said_and_blocks_nobody(tmp_path: Path) -> None:
    for trial in range(4):
        running = writer(tmp_path / str(trial), 0, 100_000)
        assert running.stdout is not None and running.stderr is not None
        said = [running.stdout.readline() for _ in range(5)]
        time.sleep(trial * 0.003)  # to end it somewhere else each time
        running.send_signal(signal.SIGKILL)
        said += running.stdout.readlines()
        running.wait(20)
        running.stdout.close(), running.stderr.close()
        reported = [int(line) for line in said if line.endswith("\n")]
        found = read(tmp_path / str(trial))
        assert {f"{number:016x}" for number in reported} <= {one.workload for one in found}
        append(tmp_path / str(trial), [record(workload="f" * 16)])
        assert len(read(tmp_path / str(trial))) == len(found) + 1
        assert {path.name for path in (tmp_path / str(trial) / TARGET.name).iterdir()} == {".lock", "cpu.matmul.jsonl"}


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files fails a write as a full disk does: in the middle."""
    append(tmp_path, some(3))
    before = (tmp_path / FILE).read_bytes()
    code = f"""
import resource
from pathlib import Path
from relaxc.service.errors import StoreUnwritable
from relaxc.service.records.files import append
from tests.records.samples import record
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 100},) * 2)
try:
    append(Path({str(tmp_path)!r}), [record(workload="f" * 16)])
except StoreUnwritable as error:
    print(error.message, "|", error.remedy)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "cannot write records into" in done.stdout and "no record was lost" in done.stdout
    assert (tmp_path / FILE).read_bytes() == before
    assert sorted(path.name for path in (tmp_path / TARGET.name).iterdir()) == [".lock", "cpu.matmul.jsonl"]
    append(tmp_path, [record(workload="f" * 16)])
    assert len(read(tmp_path)) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small tmpfs")
def test_a_full_file_system_loses_nothing(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"this container mounts nothing: {mounted.stderr.strip()}")
    try:
        kept = 0
        with pytest.raises(StoreUnwritable, match="No space left"):
            for kept in range(1000):
                append(tmp_path, [record(workload=f"{kept:016x}")])
        assert kept > 3 and read(tmp_path) == RecordSet(some(kept))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    append(tmp_path, some(1))
    assert len(read(tmp_path)) == 1
    append(tmp_path, some(2))
    assert len(read(tmp_path)) == 2
    (tmp_path / FILE).write_text(record(seconds=9.0).to_json() + "\n")
    assert read(tmp_path) == RecordSet([record(seconds=9.0)])


def test_small_files_are_parsed_once_a_version_and_large_ones_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    parse_file = files._parse
    monkeypatch.setattr(files, "_parse", lambda file: parsed.append(file.name) or parse_file(file))
    for name, count in (("a", 1), ("b", 1), ("large", 4)):
        (tmp_path / f"{name}.jsonl").write_text(RecordSet(some(count)).to_lines())
    size = (tmp_path / "a.jsonl").stat().st_size
    monkeypatch.setattr(files, "_parsed", files._Parsed(most_bytes=2 * size, most_a_file=2 * size))
    for name in ("a", "b", "a", "b", "large", "large", "a"):
        read(tmp_path / f"{name}.jsonl")
    assert parsed == ["a.jsonl", "b.jsonl", "large.jsonl", "large.jsonl"]
    (tmp_path / "c.jsonl").write_text(RecordSet(some(1)).to_lines())
    for name in ("c", "a", "c", "b"):  # b was read the longest ago
        read(tmp_path / f"{name}.jsonl")
    assert parsed[4:] == ["c.jsonl", "b.jsonl"]
    (tmp_path / "b.jsonl").write_text(RecordSet(some(2)).to_lines())
    assert read(tmp_path / "b.jsonl") == RecordSet(some(2))
    assert files._parsed.bytes <= 2 * size


def test_what_is_shipped_is_kept_parsed() -> None:
    found = sum(file.stat().st_size for file in SHIPPED.rglob("*.jsonl"))
    assert 0 < found <= files._MAX_KEPT_BYTES // 4
    assert all(file.stat().st_size <= files._MAX_KEPT_FILE for file in SHIPPED.rglob("*.jsonl"))
