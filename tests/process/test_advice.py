"""What `relaxc doctor` advises, for kernels that are not this one."""

from __future__ import annotations

from typing import Any

import pytest

from relaxc.service.config import Settings
from relaxc.service.process import advice as advice_module
from relaxc.service.process.advice import advice

SHARED = {"processes": "unshare(0x20000000): Operation not permitted"}


def lacking(**parts: Any) -> dict[str, Any]:
    return {"user": "same", "gaps": ["signal and slow its user's processes"], "missing": SHARED, **parts}


@pytest.fixture
def landlock(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    monkeypatch.setattr(advice_module.landlock, "version", lambda: request.param)
    return int(request.param)


def test_a_whole_sandbox_needs_no_advice() -> None:
    assert advice({"gaps": [], "missing": {}, "user": "own"}) == []


@pytest.mark.parametrize(("landlock", "linux"), [(0, "5.13"), (2, "6.2"), (5, "6.12"), (6, "")], indirect=["landlock"])
def test_an_old_kernel_is_named_with_the_one_that_would_do(landlock: int, linux: str) -> None:
    found = [line for line in advice(lacking(), lambda name: "") if line.startswith("Landlock")]
    assert [linux in line for line in found] == ([True] if linux else [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel.unprivileged_userns_clone", "0"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1"),
        ("user.max_user_namespaces", "0"),
    ],
)
def test_the_setting_that_forbids_namespaces_is_named(name: str, value: str) -> None:
    assert any(f"sysctl {name} is {value}" in line for line in advice(lacking(), {name: value}.get))


def test_without_such_a_setting_it_is_a_container_that_forbids_them() -> None:
    assert any("docs/docker.md" in line and SHARED["processes"] in line for line in advice(lacking(), lambda name: ""))


def test_a_sandbox_that_is_off_has_no_other_reason() -> None:
    assert advice(lacking(missing={"all": "RELAXC_SANDBOX=off"})) == ["Jobs are not held at all: RELAXC_SANDBOX=off."]


@pytest.mark.parametrize(("program", "advised"), [("no-such-program", True), ("true", False)])
def test_bubblewrap_is_advised_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, program: str, advised: bool
) -> None:
    monkeypatch.setattr("relaxc.service.process.advice.settings", lambda: Settings(bubblewrap=program))
    read = {"kernel.apparmor_restrict_unprivileged_userns": "1"}.get
    assert any("Bubblewrap" in line for line in advice(lacking(), read)) is advised
