"""Devices elsewhere: which the settings name, and which tunings they are for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, ServerUnreachable
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.workers.devices import Device, devices_of_settings, ports_of_settings, tracker_of_settings
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.jobs.workers.needs import needs_of
from relaxc.service.lowering.target import resolve
from tests.jobs.workers.kinds import ZEN

N1 = resolve("neoverse-n1")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No settings of another test's."""
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_settings_name_a_tracker_and_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices_of_settings() == ()
    monkeypatch.setenv("RELAXC_RPC_TRACKER", "localhost:9190")
    monkeypatch.setenv("RELAXC_RPC_DEVICES", "rpi5=neoverse-n1, board=aarch64")
    settings.cache_clear()
    assert devices_of_settings() == (Device("rpi5", N1), Device("board", resolve("aarch64")))
    assert tracker_of_settings() in ("127.0.0.1:9190", "[::1]:9190")
    assert {9190, 9090} <= set(ports_of_settings())


@pytest.mark.parametrize(
    ("tracker", "devices"),
    [
        ("", "rpi5=aarch64"),
        ("t:1", "rpi5"),
        ("t:1", "rpi5=pentium"),
        ("t:1", "=aarch64"),
        ("t:1", "a b=aarch64"),
        ("t:1", "x=cuda-sm80+cuda-sm90"),
        ("t", ""),
        ("user@t:1", ""),
    ],
)
def test_what_names_no_device_is_refused(monkeypatch: pytest.MonkeyPatch, tracker: str, devices: str) -> None:
    monkeypatch.setenv("RELAXC_RPC_TRACKER", tracker)
    monkeypatch.setenv("RELAXC_RPC_DEVICES", devices)
    settings.cache_clear()
    with pytest.raises(InvalidOption):
        devices_of_settings()


def test_a_tracker_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAXC_RPC_TRACKER", "there.invalid:9190")
    settings.cache_clear()
    with pytest.raises(ServerUnreachable):
        tracker_of_settings()


def test_a_tuning_for_a_device_is_taken_by_who_has_it() -> None:
    has = replace(ZEN, devices=(Device("rpi5", N1),))
    tunes = needs_of(JobKind.TUNE, N1, "neoverse-n1", can_be_run=False)
    assert tunes.missing(has) == []
    assert tunes.missing(ZEN)
    assert needs_of(JobKind.TUNE, resolve("aarch64"), "aarch64", can_be_run=False).missing(has)
    assert needs_of(JobKind.BENCH, N1, "neoverse-n1", can_be_run=True).missing(has)


def test_a_machine_is_told_of_with_its_devices() -> None:
    has = replace(ZEN, devices=(Device("rpi5", N1),))
    told = has.to_dict()
    assert Machine.from_dict(told) == has
    del told["devices"]
    assert Machine.from_dict(told) == ZEN
