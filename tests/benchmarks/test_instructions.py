"""The chain that tells a core's clock, and which instructions are counted beside it. No time decides anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import instructions
from relaxc.service import machine
from relaxc.service.runtime import probes


def test_the_chain_is_as_many_additions_as_it_is_counted_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "_LOOPS", 1000)
    assert instructions.chain(tmp_path)() == 1000 * instructions._CHAIN


def test_an_architecture_without_a_known_addition_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(RuntimeError, match="architecture"):
        instructions.chain(tmp_path)


def test_what_is_measured_is_what_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "_REPEATS", 100)
    monkeypatch.setattr(instructions, "_LOOPS", 100)
    found = instructions.shares(1)
    assert list(found) == ["fma", *probes.fastest(machine.host_features())]
    assert all(each["share"] > 0 and each["a_cycle"] > 0 and each["clock_ghz"] > 0 for each in found.values())
