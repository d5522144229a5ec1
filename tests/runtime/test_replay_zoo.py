"""Networks as they are compiled: replayed, bound and run by the virtual machine they give the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import relaxc
from relaxc.service.runtime import load
from relaxc.service.runtime.inputs import choose_sizes, random_inputs
from tests import zoo


@pytest.mark.parametrize(
    "name",
    ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "lstm", "bert", "llama", "t5_encoder"))],
)
def test_a_replay_gives_the_bits_of_the_virtual_machine(name: str, tmp_path: Path) -> None:
    relaxc.compile(zoo.export(name, "onnx", dynamic=True), output=tmp_path / "net.so")
    session, machine = load(tmp_path / "net.so", threads=2), load(tmp_path / "net.so", threads=2)
    machine._programs.first.replays._any_fits = False
    for sizes in choose_sizes(session.signature):
        for seed in range(4):
            inputs = random_inputs(session.signature, seed=seed, sizes=sizes)
            want, found = machine(inputs), session(inputs)
            assert (session._programs.first.replays.find((), inputs) is not None) == (seed > 0)
            for output, array in want.items():
                np.testing.assert_array_equal(found[output], array)
        bound = session.bind(inputs)
        for output, array in want.items():
            np.testing.assert_array_equal(bound()[output], array)
