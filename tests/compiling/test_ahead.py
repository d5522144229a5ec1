"""The reference that runs while the model is compiled: what it is asked is what it would have given later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxc.service import frontend
from relaxc.service.compiler import prepare
from relaxc.service.compiling.ahead import Ahead
from relaxc.service.frontend import Move
from relaxc.service.request import ModelFormat
from relaxc.service.runtime.inputs import drawn, random_inputs
from relaxc.service.runtime.moved import FIRST_RUNS, MOVED_BY
from tests.frontend.onnx.harness import model, node, value, write


def refused() -> Any:
    """What makes a reference, and must not."""
    raise AssertionError("the reference was made anew")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = sqrt(x), with NaN for half of the inputs."""
    return write(tmp_path, model([node("Sqrt", ["x"], ["y"])], [value("x", ["n", 3])], [value("y", ["n", 3])]))


def begun(path: Path) -> tuple[Ahead, Any]:
    """One that runs a model, and the model's signature."""
    request = prepare(path)
    signature = frontend.load(path, request.model.format).signature
    ahead = Ahead(request)
    ahead.begin(signature)
    return ahead, signature


def test_each_drawn_input_has_been_run(path: Path) -> None:
    ahead, signature = begun(path)
    run = ahead.reference(refused)
    for draw in drawn(signature, 0):
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(run(draw.inputs)["y"], np.sqrt(draw.inputs["x"]), rtol=1e-6)


def test_other_inputs_make_the_reference_once(path: Path) -> None:
    ahead, signature = begun(path)
    made = []

    def make() -> Any:
        made.append(frontend.reference(path, prepare(path).model.format))
        return made[-1]

    run, first = ahead.reference(make), drawn(signature, 0)[0].inputs
    assert run(first) and not made
    for other in (random_inputs(signature, seed=7), {"x": first["x"].astype("float64").astype("float32") * 2}):
        np.testing.assert_array_equal(run(other)["y"], made[0](other)["y"])
    assert len(made) == 1


def test_what_stops_the_thread_stops_who_asks(path: Path) -> None:
    request = prepare(path)
    ahead = Ahead(replace(request, model=replace(request.model, path=path.with_name("gone.onnx"))))
    ahead.begin(frontend.load(path, request.model.format).signature)
    with pytest.raises(AssertionError, match="made anew"):
        ahead.reference(refused)


def test_a_machine_that_cannot_run_it_runs_no_reference(path: Path) -> None:
    request = prepare(path)
    ahead = Ahead(replace(request, target=replace(request.target, features=("avx10.9",))))
    ahead.begin(frontend.load(path, request.model.format).signature)
    with pytest.raises(AssertionError, match="made anew"):
        ahead.reference(refused)


QDQ = [
    node("Exp", ["x"], ["e"]),
    node("QuantizeLinear", ["e", "s", "z"], ["q"]),
    node("DequantizeLinear", ["q", "s", "z"], ["y"]),
]


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    """y = exp(x) up to 2.55, in steps of 0.01."""
    held = {"s": np.float32(0.01), "z": np.uint8(0)}
    return write(tmp_path, model(QDQ, [value("x", [64, 64])], [value("y", [64, 64])], **held))


def test_what_does_not_round_has_been_run(quantized: Path) -> None:
    ahead, signature = begun(quantized)
    run = ahead.unquantized(refused)
    assert run is not None
    for draw in drawn(signature, 0):
        want = np.minimum(np.exp(draw.inputs["x"]), 2.55)
        np.testing.assert_allclose(run(draw.inputs)["y"], want, rtol=1e-5, atol=1e-6)
        assert run(draw.inputs)["y"] is run(draw.inputs)["y"]


def test_a_model_that_rounds_nothing_asks_whoever_can_tell(path: Path) -> None:
    ahead, _ = begun(path)
    assert ahead.unquantized(lambda: None) is None
    assert ahead.moved(lambda seed: None) is None


def test_each_moved_run_moves_anew(quantized: Path) -> None:
    """The first are those of the request's seed, and what is asked for behind them repeats none of these."""
    ahead, signature = begun(quantized)
    seeds = []

    def make(seed: int) -> Any:
        seeds.append(seed)
        return frontend.moved_reference(quantized, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=seed, by=MOVED_BY)

    run, alone = ahead.moved(make), make(0)
    assert run is not None
    draws = [draw.inputs for draw in drawn(signature, 0)]
    found = {index: [run(inputs)["y"] for _ in range(FIRST_RUNS)] for index, inputs in enumerate(draws)}
    for index, inputs in enumerate(draws):
        for each in found[index]:
            np.testing.assert_array_equal(each, alone(inputs)["y"])
    assert seeds == [0]
    last = run(draws[0])["y"]
    assert len(seeds) == 2 and seeds[1] != 0
    assert not any(np.array_equal(last, each) for each in found[0])
