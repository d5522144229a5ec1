"""What a sandbox leaves open, from its parts."""

from __future__ import annotations

from typing import Any

import pytest

from relaxc.service.process.sandbox.confinement import Sandbox

WHOLE = {"network": "namespace", "files": "landlock", "calls": "seccomp", "modes": "mounts", "processes": "namespace"}


def sandbox(**parts: Any) -> Sandbox:
    return Sandbox(**{**WHOLE, "user": "same", **parts})


def test_a_whole_sandbox_has_no_gaps() -> None:
    assert sandbox().gaps == []
    assert sandbox(network="filter", modes="filter", processes="signals").gaps == []
    assert sandbox(user="own", modes="user", processes="user").gaps == []


@pytest.mark.parametrize(
    ("part", "phrase"), [("network", "network"), ("files", "read"), ("modes", "modes"), ("processes", "signal")]
)
def test_each_missing_part_is_a_gap(part: str, phrase: str) -> None:
    (gap,) = sandbox(**{part: "none"}).gaps
    assert phrase in gap


@pytest.mark.parametrize(("modes", "gaps"), [("mounts", 0), ("user", 0), ("filter", 1)])
def test_truncation_that_landlock_does_not_know_is_held_by_mounts_and_users(modes: str, gaps: int) -> None:
    found = sandbox(modes=modes, missing={"files": "Landlock 2 does not cover truncation"}).gaps
    assert len(found) == gaps
    assert all("truncate" in gap for gap in found)
