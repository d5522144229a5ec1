"""Models in floats become QDQ models near to them; the report says how near, and what is left in floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from relaxc.service import frontend
from relaxc.service.errors import InvalidOption, UnsupportedModel
from relaxc.service.request import Calibration, ModelFormat
from relaxc.service.runtime.inputs import random_inputs
from tests import zoo
from tests.frontend.onnx.harness import model, node, value, write

RNG = np.random.default_rng(0)


def calibrated(path: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """The report; the model is `folder/int8.onnx`."""
    signature = frontend.inspect(path, ModelFormat.ONNX).signature
    drawn = [random_inputs(signature, seed=seed, int_high=50) for seed in range(4)]
    np.savez(folder / "samples.npz", **{name: np.stack([each[name] for each in drawn]) for name in drawn[0]})
    given = Calibration("samples.npz", **options)
    return frontend.calibrate(path, ModelFormat.ONNX, folder / "samples.npz", given, folder, folder / "int8.onnx")


def network(folder: Path, *, outliers: float = 1.0) -> Path:
    """Two layers behind a norm, some of whose channels are larger than the others; the first has a residual."""
    width = 64
    sizes = np.where(np.arange(width) % 16 == 3, outliers, 1.0).astype("float32")
    held = {
        "scale": sizes,
        "a": RNG.standard_normal((width, width)) / sizes[:, None],
        "b": RNG.standard_normal((width, 32)),
    }
    nodes = [
        node("LayerNormalization", ["x", "scale"], ["n"]),
        node("MatMul", ["n", "a"], ["p"]),
        node("Add", ["p", "n"], ["r"]),
        node("MatMul", ["r", "b"], ["y"]),
    ]
    arrays = {name: array.astype("float32") for name, array in held.items()}
    return write(folder, model(nodes, [value("x", [16, width])], [value("y", [16, 32])], **arrays))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["resnet50", "bert"])
def test_models_of_the_zoo_are_within_25_db(family: str, tmp_path: Path) -> None:
    found = calibrated(zoo.export(family, "onnx"), tmp_path)
    assert all(row["sqnr_db"] > 25 and row["cosine"] > 0.998 for row in found["outputs"]), found["outputs"]
    int8 = [row for row in found["layers"] if row["precision"] == "int8"]
    assert len(int8) >= 13 and all(row["sqnr_db"] > 25 for row in int8)
    assert {row["why"] for row in found["layers"]} <= {"calibrated", "a product of two computed values"}
    named = {row["name"] for row in int8}
    assert all(row["worst_layer"] in named for row in found["outputs"])
    onnx.checker.check_model(tmp_path / "int8.onnx")


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_each_method_gives_a_model_for_others_to_run(method: str, tmp_path: Path) -> None:
    path = network(tmp_path)
    found = calibrated(path, tmp_path, method=method)
    assert found["method"] == method and found["samples"] == 4
    inputs = {"x": RNG.standard_normal((16, 64)).astype("float32")}
    run = frontend.reference(tmp_path / "int8.onnx", ModelFormat.ONNX, fastest=True)
    got, want = (each(inputs)["y"] for each in (run, frontend.reference(path, ModelFormat.ONNX)))
    assert 0 < np.sqrt(np.mean((got - want) ** 2)) < 0.1 * want.std()


def test_scales_migrate_from_channels_that_are_larger(tmp_path: Path) -> None:
    path = network(tmp_path, outliers=40.0)
    rough, smooth = (calibrated(path, tmp_path, smooth=each) for each in (False, True))
    assert (rough["smoothed"], smooth["smoothed"]) == (0, 1)
    first = {True: smooth["layers"][0], False: rough["layers"][0]}
    assert first[True]["error"] < 0.5 * first[False]["error"]


def test_a_layer_is_left_in_floats_by_name(tmp_path: Path) -> None:
    path = network(tmp_path)
    found = calibrated(path, tmp_path, keep=("MatMul_p",))
    rows = {row["name"]: row for row in found["layers"]}
    assert (rows["MatMul_p"]["precision"], rows["MatMul_p"]["why"]) == ("float32", "asked for")
    assert rows["MatMul_y"]["precision"] == "int8"
    with pytest.raises(InvalidOption, match=r"no layer is called 'MatMul_q'; there are MatMul_p, MatMul_y"):
        calibrated(path, tmp_path, keep=("MatMul_q",))


def test_what_costs_most_is_left_in_floats_until_the_error_is_in_bounds(tmp_path: Path) -> None:
    path = network(tmp_path, outliers=300.0)
    whole = calibrated(path, tmp_path, smooth=False)
    (before,) = whole["outputs"]
    worst = max(whole["layers"], key=lambda row: row["error"])["name"]
    most = before["error"] / 2
    found = calibrated(path, tmp_path, smooth=False, max_error=most)
    (after,) = found["outputs"]
    assert after["error"] <= most < after["error_of_all_int8"] == before["error"]
    kept = [row for row in found["layers"] if row["precision"] == "float32"]
    assert kept[0]["name"] == worst and kept[0]["why"].startswith("costs most")


def test_an_error_that_no_layer_in_int8_meets_leaves_all_in_floats(tmp_path: Path) -> None:
    found = calibrated(network(tmp_path), tmp_path, max_error=1e-6)
    assert {row["precision"] for row in found["layers"]} == {"float32"} and found["outputs"][0]["error"] < 1e-6


def test_what_cannot_be_quantized_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, model([node("Relu", ["x"], ["y"])], [value("x", [4, 4])], [value("y", [4, 4])]))
    with pytest.raises(UnsupportedModel, match="no convolution or product"):
        calibrated(path, tmp_path)
    with pytest.raises(InvalidOption, match="takes ONNX models"):
        frontend.calibrate(path, ModelFormat.PT2, path, Calibration("s.npz"), tmp_path, tmp_path / "int8.onnx")
