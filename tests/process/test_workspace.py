"""Folders that outlive no process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relaxc.service.process.workspace import Workspace

_OPENS_AND_DIES = """
import os, sys
from pathlib import Path
from relaxc.service.process.workspace import Workspace
space = Workspace(Path(sys.argv[1]))
(space.folder("job") / "half.so").write_text("half")
os.kill(os.getpid(), 9)
"""

_DIES_WHILE_IT_REMOVES = """
import os, sys
from pathlib import Path
from relaxc.service.process import workspace
def dies(folder, **_):
    (Path(folder) / "lock").unlink()
    os.kill(os.getpid(), 9)
space = workspace.Workspace(Path(sys.argv[1]))
(space.folder("job") / "half.so").write_text("half")
workspace.remove_tree = dies
space.close()
"""


def test_folders_are_private_and_go_with_the_workspace(tmp_path: Path) -> None:
    with Workspace(tmp_path / "jobs") as space:
        one, two = space.folder("job"), space.folder("job")
        assert one != two
        assert one.stat().st_mode & 0o777 == 0o700
        space.remove(one)
        assert not one.exists()
        space.remove(one)  # a second time is nothing
    assert list((tmp_path / "jobs").iterdir()) == []
    space.close()


def test_what_a_killed_process_left_is_swept_and_a_living_one_is_left_alone(tmp_path: Path) -> None:
    with Workspace(tmp_path) as living:
        kept = living.folder("job")
        subprocess.run([sys.executable, "-c", _OPENS_AND_DIES, tmp_path], check=False)
        assert len(list(tmp_path.iterdir())) == 2
        with Workspace(tmp_path) as next_one:
            assert {path.name for path in tmp_path.iterdir()} == {living.path.name, next_one.path.name}
            assert kept.is_dir()


def test_what_was_half_removed_is_removed_by_the_next_and_by_a_sweep(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _DIES_WHILE_IT_REMOVES, tmp_path], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with Workspace(tmp_path) as space:
        assert list(tmp_path.iterdir()) == [space.path]
        for code in (_DIES_WHILE_IT_REMOVES, _OPENS_AND_DIES):
            subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
            assert len(list(tmp_path.iterdir())) == 2
            space.sweep()
            assert list(tmp_path.iterdir()) == [space.path]


def test_a_folder_without_permissions_is_removed(tmp_path: Path) -> None:
    with Workspace(tmp_path) as space:
        folder = space.folder("job")
        (folder / "locked" / "in").mkdir(parents=True)
        (folder / "locked" / "in" / "file").write_text("x")
        (folder / "locked").chmod(0)
        space.remove(folder)
        assert not folder.exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    with Workspace(tmp_path / "jobs") as space:
        folder = space.folder("job")
        (folder / "link").symlink_to(tmp_path / "precious")
        space.remove(folder)
    assert (tmp_path / "precious" / "file").exists()


@pytest.mark.parametrize("removed", ["path", "root"])
def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path, removed: str) -> None:
    with Workspace(tmp_path / "jobs") as workspace:
        shutil.rmtree(workspace.path if removed == "path" else tmp_path / "jobs")
        with ThreadPoolExecutor(4) as threads:
            made = list(threads.map(workspace.folder, ["job"] * 8))
        assert all(folder.is_dir() and folder.parent == workspace.path for folder in made)
        Workspace(tmp_path / "jobs").close()
        assert all(folder.is_dir() for folder in made)  # ours is held again
