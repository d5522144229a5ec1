"""Resize whose scales, sizes and regions are known as it runs alone, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from relaxc.service.errors import UnsupportedModel
from tests.frontend.onnx.harness import FLOAT, INT64, check, compiled, model, node, value, write

IMAGE = np.random.default_rng(0).standard_normal((1, 2, 10, 7)).astype("float32")
SIDES = {"axes": [2, 3]}


def _outputs(nodes: list[Any]) -> list[Any]:
    return [helper.make_tensor_value_info(each.output[0], FLOAT, None) for each in nodes]


def _beside(folder: Path, nodes: list[Any], inputs: list[Any], calls: list[dict[str, Any]], **weights: Any) -> None:
    proto = model(nodes, inputs, _outputs(nodes), opset=19, **weights)
    ours, theirs = compiled(folder, proto), onnxruntime.InferenceSession(proto.SerializeToString())
    for call in calls:
        got = ours(**call)
        for each, want in zip(nodes, theirs.run(None, call), strict=True):
            name = each.output[0]
            assert got[name].shape == want.shape, (name, call)
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


def test_scales_that_the_data_decides(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "linear"},
        {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
        {"mode": "cubic", "antialias": 1},
    ]
    nodes = [node("Resize", ["x", "", "s"], [f"y{at}"], **kind, **SIDES) for at, kind in enumerate(kinds)]
    scales = [np.array(sides, "float32") for sides in ((0.7, 0.31), (2.3, 1), (1.5, 0.5))]
    _beside(tmp_path, nodes, [value("x", [1, 2, "h", 7]), value("s", [2])], [{"x": IMAGE, "s": s} for s in scales])


def test_a_region_that_the_data_decides(tmp_path: Path) -> None:
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    nodes = [
        node("Resize", ["x", "roi", "", "sizes"], [mode], mode=mode, **crop) for mode in ("nearest", "linear", "cubic")
    ]
    inputs = [value("x", [1, 2, 10, 7]), value("roi", [8]), value("sizes", [4], INT64)]
    region = np.array([0, 0, 0.3, -0.2, 1, 1, 0.8, 1.1], "float32")
    call = {"x": IMAGE, "roi": region, "sizes": np.array([1, 2, 4, 9])}
    _beside(tmp_path, nodes, inputs, [call])


def test_sizes_of_one_ratio(tmp_path: Path) -> None:
    nodes = [
        node("Resize", ["x", "", "", "to"], [policy], mode="linear", keep_aspect_ratio_policy=policy, **SIDES)
        for policy in ("not_larger", "not_smaller")
    ]
    inputs = [value("x", [1, 2, "h", "w"]), value("to", [2], INT64)]
    _beside(tmp_path, nodes, inputs, [{"x": IMAGE, "to": np.array(to)} for to in ((4, 6), (23, 9))])


def test_a_wide_kernel_along_symbolic_axes(tmp_path: Path) -> None:
    """As torchvision exports a Resize with antialias=True."""
    nodes = [
        node("Resize", ["x", "", "", "to"], ["y"], mode="linear", antialias=1),
        node("Resize", ["x", "", "s"], ["z"], mode="cubic", antialias=1),
        node("Resize", ["x", "", "s"], ["w"], mode="cubic", exclude_outside=1),
    ]
    weights = {"to": np.array([1, 2, 5, 9]), "s": np.array([1, 1, 0.37, 1.3], "float32")}
    _beside(tmp_path, nodes, [value("x", [1, 2, "h", "w"])], [{"x": IMAGE}, {"x": IMAGE[:, :, :3]}], **weights)


def test_a_size_is_a_product_in_fp32(tmp_path: Path) -> None:
    """0.7 · 10 is 7 in fp32, and less in float64."""
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode="nearest")]
    scales = np.array([1, 1, 0.7, 1], "float32")
    check(write(tmp_path, model(nodes, [value("x", [1, 2, 10, 7])], _outputs(nodes), s=scales)))


def test_corners_that_a_scale_may_not_hit_are_refused(tmp_path: Path) -> None:
    """ONNX Runtime and the specification place them differently."""
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    nodes = [node("Resize", ["x", "", "s"], ["y"], **attributes)]
    with pytest.raises(UnsupportedModel, match="align_corners"):
        compiled(tmp_path, model(nodes, [value("x", [1, 2, 10, 7]), value("s", [4])], _outputs(nodes)))
