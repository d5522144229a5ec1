"""NonMaxSuppression beside ONNX Runtime, with boxes of either form and scores of which many are equal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from relaxc.service import compiler
from relaxc.service.request import CompileOptions
from tests.frontend.onnx.harness import FLOAT, INT64, compiled, model, node, value, write


def _drawn(rng: np.random.Generator, images: int, classes: int, places: int, *, center: int) -> dict[str, Any]:
    """Boxes of which many overlap, some with their corners the other way round, some without an area."""
    middle, size = rng.uniform(0, 60, (images, places, 2)), rng.uniform(0, 40, (images, places, 2))
    size[rng.random((images, places)) < 0.1] = 0
    boxes = np.concatenate([middle, size] if center else [middle, middle + size], -1).astype("float32")
    turned = rng.random((images, places)) < (0 if center else 0.2)
    boxes[turned] = boxes[turned][:, [2, 3, 0, 1]]
    scores = rng.random((images, classes, places)).round(1).astype("float32")
    return {"boxes": boxes, "scores": scores}


@pytest.mark.parametrize("center", [0, 1])
def test_the_same_boxes_are_kept(center: int, tmp_path: Path) -> None:
    operands = {"most": (INT64, "int64"), "overlap": (FLOAT, "float32"), "least": (FLOAT, "float32")}
    inputs = [value("boxes", ["b", "n", 4]), value("scores", ["b", "c", "n"])]
    inputs += [value(name, [1], kind) for name, (kind, _) in operands.items()]
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", *operands], ["y"], center_point_box=center),
        node("NonMaxSuppression", ["boxes", "scores", "most"], ["z"], center_point_box=center),
    ]
    proto = model(nodes, inputs, [value(name, [None, 3], INT64) for name in "yz"])
    session = compiled(tmp_path, proto)
    runtime = onnxruntime.InferenceSession(proto.SerializeToString())
    rng = np.random.default_rng(center)
    for sizes, numbers in (((2, 3, 40), (5, 0.3, 0.4)), ((1, 1, 90), (1000, 0.6, 0.0)), ((1, 2, 9), (0, 0.5, 0.0))):
        call = _drawn(rng, *sizes, center=center)
        call |= {name: np.array([x], operands[name][1]) for name, x in zip(operands, numbers, strict=True)}
        got, want = session(**call), dict(zip("yz", runtime.run(["y", "z"], call), strict=True))
        assert all(np.array_equal(got[name], want[name]) for name in "yz"), sizes


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_it_is_a_kernel_of_a_gpu_too(tmp_path: Path) -> None:
    """What a block keeps for itself is no memory of the device."""
    inputs = [value("boxes", [1, 6, 4]), value("scores", [1, 2, 6]), value("most", [1], INT64)]
    proto = model(
        [node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"])], inputs, [value("y", [None, 3], INT64)]
    )
    request = compiler.prepare(write(tmp_path, proto), target="cuda-sm90", options=CompileOptions(verify=False))
    compiler.run(request, tmp_path, lambda event: None)
    assert next(tmp_path.glob("*.so")).stat().st_size
