"""The ONNX project's node tests: no wrong number, no crash, and nothing lost of what passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.onnx_cases import CONSTANT, Outcome, all_cases
from tests.conformance.onnx_worker import run_cases

PASSING = Path(__file__).parent / "onnx_node_pass.txt"
SAMPLE_EVERY = 50
PROCESSES = 2


def _listed() -> list[str]:
    return PASSING.read_text().split()


def _bad(outcomes: dict[str, Outcome]) -> list[str]:
    return [f"{o.status} {name}: {o.detail}" for name, o in sorted(outcomes.items()) if o.status in ("wrong", "broken")]


@pytest.mark.slow
def test_sample() -> None:
    """Each 50th of the passing cases."""
    outcomes = run_cases(_listed()[::SAMPLE_EVERY], PROCESSES)
    assert [f"{name}: {o.status} {o.detail}" for name, o in outcomes.items() if o.status != "pass"] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_case(request: pytest.FixtureRequest) -> None:
    """All cases, and those that are refused once more with every input but the first as an initializer.

    `pytest --update-golden` writes the list of passing cases.
    """
    outcomes = run_cases(all_cases(), PROCESSES)
    refused = [name + CONSTANT for name, outcome in outcomes.items() if outcome.status == "unsupported"]
    outcomes |= run_cases(refused, PROCESSES)
    assert _bad(outcomes) == []
    passing = sorted(name for name, outcome in outcomes.items() if outcome.status == "pass")
    if request.config.getoption("--update-golden"):
        PASSING.write_text("\n".join(passing) + "\n")
    assert sorted(set(_listed()) - set(passing)) == []
