"""Bubblewrap makes the namespaces of a user's jobs where the user may make none; here it is the real one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.users import as_user, open_folder

__all__ = ["open_folder"]

PROBED = """
import json, os, sys
folder, denied, os.environ["RELAXC_BUBBLEWRAP"] = json.loads(sys.stdin.read())
from relaxc.service.process.pool import Pool
from relaxc.service.process.probe import probed
from relaxc.service.process.task import Flavour, Task
from pathlib import Path
from tests.weaker_kernel import weaken
if denied:
    weaken("user-namespaces")
with Pool() as pool:
    pool.warm(Flavour.ONNX)
    asked = {"namespace": None, "read": "/etc/shadow"}
    got = pool.run(Task("tests.jobs.hostile:attempt", asked, Path(folder, "job")), lambda event: None)["got"]
    ready = pool.ready()["onnx"]
print(json.dumps([probed(), ready, got]))
"""
"""A server of a user without rights, who may make no user namespace by unshare(2) where that is so asked; bwrap makes
its own by clone(2)."""


def _found(folder: Path, *, denied: bool, bubblewrap: str = "bwrap") -> list[Any]:
    """What the doctor finds, what a zygote does, and what a job could do."""
    (folder / "job").mkdir(exist_ok=True)
    for path in (folder, folder / "job"):
        os.chown(path, 12345, 12345)
    done = as_user(12345, PROBED, home=folder, said=json.dumps([str(folder), denied, bubblewrap]))
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")
def test_behind_bubblewrap_the_sandbox_is_whole(open_folder: Path) -> None:
    allowed = _found(open_folder, denied=False)[0]
    if allowed["processes"] != "namespace":
        pytest.skip(f"users may make no namespaces on this machine: {allowed['missing']}")
    without = _found(open_folder, denied=True, bubblewrap="")[0]
    assert (without["processes"], without["network"]) != ("namespace", "namespace")
    probed, ready, got = _found(open_folder, denied=True)
    assert probed == ready
    assert {**ready, "missing": {}} == {**allowed, "missing": {}}
    assert all(text.startswith("refused: ") for text in got.values()), got


@pytest.mark.parametrize("program", [pytest.param("", marks=pytest.mark.slow), "no-such-program", "false"])
@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_a_door_that_is_not_there_or_closed_is_left_alone(open_folder: Path, program: str) -> None:
    found, ready, _ = _found(open_folder, denied=True, bubblewrap=program)
    assert found == ready
    assert found["user"] == "same"


KILLED = """
import json, os, signal, sys, time
import psutil
from pathlib import Path
from relaxc.service.process.pool import Pool
from relaxc.service.process.task import Flavour, Task
from tests.waiting import until
from tests.weaker_kernel import weaken
folder = Path(sys.stdin.read())
weaken("user-namespaces")
def ran(name):
    return pool.run(Task("tests.jobs.hostile:attempt", {"namespace": None}, folder / name), lambda event: None)["got"]
with Pool() as pool:
    pool.warm(Flavour.ONNX)
    (folder / "first").mkdir()
    ran("first")
    (door,) = psutil.Process().children()
    (zygote,) = door.children()
    names = door.name(), zygote.name()
    door.kill()
    until(lambda: not zygote.is_running())
    (folder / "second").mkdir()
    ran("second")
    left = psutil.Process().children(recursive=True)
psutil.wait_procs(left, timeout=60)
print(json.dumps([names, len(left), [each.pid for each in left if each.is_running()]]))
"""
"""A server whose zygote's door is killed: the zygote ends with it, and the next job has another."""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")
def test_what_is_behind_the_door_ends_with_it(open_folder: Path) -> None:
    os.chown(open_folder, 12345, 12345)
    done = as_user(12345, KILLED, home=open_folder, said=str(open_folder))
    assert done.returncode == 0, done.stderr
    names, before, left = json.loads(done.stdout)
    assert names == ["bwrap", "relaxc-zygote"]
    assert before >= 2
    assert left == []
