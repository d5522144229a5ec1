"""Folders that a job has made to be hard to walk and to remove."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from relaxc.service.process.sandbox.confine import take_back
from relaxc.service.process.tree import MOST_DEPTH, remove_tree, walk
from tests.users import as_user, open_folder

__all__ = ["open_folder"]

USER = 12345


def make_deep(folder: Path, depth: int) -> None:
    """Folders within each other, further down than any path can name or Python can recurse."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        for _ in range(depth):
            Path("d" * 200).mkdir()
            os.chdir("d" * 200)
            Path("file").touch()
    finally:
        os.chdir(before)


def test_what_no_path_reaches_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    make_deep(folder, 3000)
    with pytest.raises(OSError, match="folders within each other") as caught:
        list(walk(folder))
    assert caught.value.errno == errno.ELOOP
    remove_tree(folder)
    assert not folder.exists()
    remove_tree(folder)  # a second time is nothing


def test_all_is_walked_that_is_not_too_deep(tmp_path: Path) -> None:
    make_deep(tmp_path, MOST_DEPTH - 1)
    found = [item.name for item in walk(tmp_path)]
    assert (found.count("file"), len(found)) == (MOST_DEPTH - 1, 2 * (MOST_DEPTH - 1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root takes something back")
def test_a_folder_too_deep_to_be_taken_back_is_removed(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("kept")
    make_deep(tmp_path, 1500)
    take_back(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_closed_folders_are_removed_and_links_are_not_followed(open_folder: Path) -> None:
    """By the user whose they are: root may pass them anyway."""
    kept, folder = open_folder / "kept", open_folder / "job"
    (folder / "a" / "b" / "c").mkdir(parents=True)
    for path in (kept, folder / "a" / "b" / "c" / "file"):
        path.write_text("x")
    for link in (folder / "link", folder / "a" / "link", folder / "a" / "b" / "link"):
        link.symlink_to(kept)
    for path in (open_folder, *open_folder.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    kept.chmod(0o640)
    for path in (folder / "a" / "b" / "c", folder / "a" / "b", folder / "a", folder):
        path.chmod(0)
    code = "import sys\nfrom pathlib import Path\nfrom relaxc.service.process.tree import remove_tree\n"
    done = as_user(USER, f"{code}remove_tree(Path({str(folder)!r}))", home=open_folder)
    assert done.returncode == 0, done.stderr
    assert not folder.exists()
    assert kept.stat().st_mode & 0o777 == 0o640
