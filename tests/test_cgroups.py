"""What control groups leave a process, read from trees as containers and machines of both versions have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service.cgroups import cores_left, memory_left, unified

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
CPU_1 = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct"
MEMORY_1 = "34 31 0:31 / /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory"


def tree(root: Path, mounts: list[str], own: list[str], files: dict[str, str]) -> Path:
    """A root folder in which /proc tells of these mounts and groups."""
    for name, text in {
        "proc/self/mountinfo": "\n".join(mounts),
        "proc/self/cgroup": "\n".join(own),
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_a_container_of_two_cpus_has_two(tmp_path: Path) -> None:
    """As `docker run --cpus 2 --memory 1g` shows itself from within."""
    files = {"cpu.max": "200000 100000", "memory.max": str(1 << 30)}
    root = tree(tmp_path, [V2], ["0::/"], files)
    assert (cores_left(root), memory_left(root)) == (2, 1 << 30)


def test_the_least_of_all_groups_above_holds(tmp_path: Path) -> None:
    files = {
        "system.slice/cpu.max": "150000 100000",
        "system.slice/memory.max": "max",
        "system.slice/relaxc.service/cpu.max": "max 100000",
        "system.slice/relaxc.service/memory.max": "4096",
    }
    root = tree(tmp_path, [V2], ["0::/system.slice/relaxc.service"], files)
    assert (cores_left(root), memory_left(root)) == (2, 4096)
    found = unified(root)
    assert found is not None
    assert found.folder == root / "sys/fs/cgroup/system.slice/relaxc.service"


def test_nothing_is_left_out_where_nothing_is_set(tmp_path: Path) -> None:
    root = tree(
        tmp_path, [V2], ["0::/user.slice"], {"user.slice/cpu.max": "max 100000", "user.slice/memory.max": "max"}
    )
    assert (cores_left(root), memory_left(root)) == (None, None)


def test_version_1_as_in_a_container_that_sees_the_path_of_its_host(tmp_path: Path) -> None:
    mounts = [line.replace(" / /sys", " /docker/ab /sys") for line in (CPU_1, MEMORY_1)]
    own = ["4:memory:/docker/ab", "2:cpu,cpuacct:/docker/ab", "0::/"]
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": "50000",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "123",
    }
    root = tree(tmp_path, mounts, own, files)
    assert (cores_left(root), memory_left(root)) == (1, 123)


def test_version_1_without_limits(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
    }
    root = tree(tmp_path, [CPU_1, MEMORY_1], ["4:memory:/", "2:cpu,cpuacct:/"], files)
    assert (cores_left(root), memory_left(root)) == (None, None)
    assert unified(root) is None


@pytest.mark.parametrize("text", ["", "x", "1", "max", "100000 0", "-5 100000", "1 2 3"])
def test_what_is_no_quota_is_none(tmp_path: Path, text: str) -> None:
    assert cores_left(tree(tmp_path, [V2], ["0::/"], {"cpu.max": text})) is None


def test_a_process_outside_of_what_is_mounted_is_taken_to_be_at_its_top(tmp_path: Path) -> None:
    root = tree(tmp_path, [V2.replace(" / /sys", " /pod/a /sys")], ["0::/../b"], {"cpu.max": "300000 100000"})
    assert cores_left(root) == 3


def test_a_machine_without_any_of_it_has_no_limit(tmp_path: Path) -> None:
    assert (cores_left(tmp_path), memory_left(tmp_path), unified(tmp_path)) == (None, None, None)


def test_this_machine_can_be_read() -> None:
    assert (cores_left() or 1) >= 1
    assert (memory_left() or 1) > 0
