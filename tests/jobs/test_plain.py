"""What a job puts in the place of its own files is not followed, and nobody waits for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from relaxc.service.errors import CompileFailed
from relaxc.service.jobs.job import Origin
from relaxc.service.process.failures import log_tail
from relaxc.service.process.plain import open_left, open_plain, plain_file
from tests.jobs.queue.test_desk import ANN, OpenBackend, asks, end_of, log_of


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


MAKES: dict[str, Callable[[Path], None]] = {
    "a link": lambda path: path.symlink_to("/proc/self/environ"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a second name": lambda path: path.hardlink_to(path.parent / "secret"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": _socket,
    "nothing": lambda path: None,
}


@pytest.fixture(params=MAKES)
def workdir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder whose log.txt is no plain file."""
    (tmp_path / "secret").write_text("keys")
    MAKES[request.param](tmp_path / "log.txt")
    return tmp_path


def test_what_is_no_plain_file_is_not_there(workdir: Path) -> None:
    assert open_plain(workdir / "log.txt") is None
    assert log_tail(workdir / "log.txt") == []
    for call in (open_left, plain_file):
        with pytest.raises(CompileFailed, match=r"no regular file .log\.txt."):
            call(workdir, "log.txt")


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("one\ntwo")
    file = open_plain(tmp_path / "log.txt")
    assert file is not None
    with file:
        assert file.read() == b"one\ntwo"
        assert not os.get_inheritable(file.fileno())
    assert log_tail(tmp_path / "log.txt") == ["one", "two"]
    assert plain_file(tmp_path, "log.txt") == tmp_path / "log.txt"


@pytest.mark.parametrize("name", ["../secret", "..", ".", "", "in/secret", "/etc/hostname", "x\0", "x" * 300, 7, None])
def test_a_name_is_no_way_out_of_the_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "in").symlink_to(tmp_path)
    (tmp_path / "secret").write_text("keys")
    with pytest.raises(CompileFailed, match="no regular file"):
        open_left(tmp_path / "job", name)


@pytest.mark.sampled("sqlite-link_log-off")
@pytest.mark.parametrize("sandbox", ["off", "auto"])
@pytest.mark.parametrize("entry", ["link_log", "pipe_log"])
def test_a_job_that_swaps_its_log_fails_as_any_other_and_has_none(
    open_backend: OpenBackend, monkeypatch: pytest.MonkeyPatch, entry: str, sandbox: str
) -> None:
    monkeypatch.setenv("RELAXC_SANDBOX", sandbox)
    backend = open_backend()
    submitted = backend.jobs.submit(ANN, asks(backend, entry))
    assert submitted.origin is Origin.MISS
    error = end_of(backend, ANN, submitted.job.id).error or {}
    log = log_of(backend, submitted.job.id)
    assert "PATH=" not in (log or "")
    if sandbox == "off":
        assert (error["code"], error["fields"]["log_tail"], log) == ("compiler-crashed", [], None)
    else:  # in its sandbox it makes neither
        assert "PermissionError" in error["message"]
