"""The model in double precision: as float32 has it but for what that rounds, convolutions as torch has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxc.service.errors import ModelMalformed, ModelTooLarge
from relaxc.service.frontend.onnx import double
from relaxc.service.frontend.onnx.double import in_double
from relaxc.service.frontend.onnx.double_convs import conv, conv_transpose
from relaxc.service.frontend.onnx.file import parse
from relaxc.service.frontend.onnx.reference import double_reference, reference
from relaxc.service.runtime.measure import measure
from tests import zoo
from tests.frontend.onnx.harness import model, node, value, write

CONVS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": (2, 3), "padding": (1, 2)},
    "dilated": {"dilation": (2, 1), "padding": (2, 0)},
    "grouped": {"groups": 2, "padding": (1, 1)},
}


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_are_torchs(kind: str, transposed: bool) -> None:
    import torch

    given = CONVS[kind]
    groups = given.get("groups", 1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 9, 8))
    w = rng.standard_normal((4, 6 // groups, 3, 2) if transposed else (6, 4 // groups, 3, 2))
    b = rng.standard_normal(6)
    call = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    wanted = call(*map(torch.from_numpy, (x, w, b)), **given).numpy()
    names = {"stride": "strides", "dilation": "dilations", "padding": "pads"}
    said = {names[name]: each * (2 if name == "padding" else 1) for name, each in given.items() if name in names}
    got = (conv_transpose if transposed else conv)(x, w, b, group=groups, **said)
    np.testing.assert_allclose(got, wanted, atol=1e-12)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_padding_by_name_is_onnx_runtimes(kind: str, auto_pad: str, tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((3, 3, 2, 3)).astype("float32")
    nodes = [node(kind, ["x", "w"], ["y"], auto_pad=auto_pad, strides=[2, 2])]
    path = write(tmp_path, model(nodes, [value("x", [1, 3, 7, 8])], [value("y", [1, 3, None, None])], w=w))
    near(path, {"x": np.random.default_rng(1).standard_normal((1, 3, 7, 8)).astype("float32")})


@pytest.mark.parametrize("wanted", [[15, 17], [13, 18], [14, 16]])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_padding_by_an_output_shape_is_onnx_runtimes(auto_pad: str, wanted: list[int], tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((3, 3, 2, 3)).astype("float32")
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], auto_pad=auto_pad, strides=[2, 2], output_shape=wanted)]
    path = write(tmp_path, model(nodes, [value("x", [1, 3, 7, 8])], [value("y", [1, 3, None, None])], w=w))
    near(path, {"x": np.random.default_rng(1).standard_normal((1, 3, 7, 8)).astype("float32")})


def near(path: Path, inputs: dict[str, Any]) -> None:
    """Both dtypes of float give the same, but for float32's roundings."""
    run = double_reference(path)
    assert run is not None
    found, wanted = run(inputs), reference(path, 1)(inputs)
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        assert found[name].dtype == each.dtype and found[name].shape == each.shape
        assert measure(found[name], each).max_scaled < 1e-4 or each.dtype.kind in "ib"


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("family", ["unet", "cnn", "bert", "mobilenet_v2", "convnext", "swin", "gpt2"])
def test_a_network_is_the_same_in_both(family: str, tmp_path: Path) -> None:
    from benchmarks.peers.files import named_tensors

    made = zoo.build(family)
    path = tmp_path / "model.onnx"
    zoo.write_onnx(made, path)
    named = {name: each.numpy() for name, each in named_tensors(made).items()}
    taken = {each.name for each in parse(path).graph.input}
    near(path, {name: each for name, each in named.items() if name in taken})


def test_float32_is_rounded_nowhere_on_the_way() -> None:
    held = {"tiny": np.full(4, 2.0**-40, "float32")}
    nodes = [node("Add", ["x", "tiny"], ["a"]), node("Sub", ["a", "x"], ["b"]), node("Mul", ["b", "c"], ["y"])]
    one = node("Constant", [], ["c"], value_float=1.0)
    run = in_double(model([one, *nodes], [value("x", [4])], [value("y", [4])], **held))
    assert run is not None
    np.testing.assert_array_equal(run({"x": np.ones(4, "float32")})["y"], held["tiny"])


def test_a_resize_is_torchs_in_float64() -> None:
    """ONNX Runtime's in float32 is off by 1e-5 here: by its coordinates."""
    import torch

    nodes = [node("Resize", ["x", "", "", "sizes"], ["r"], mode="linear"), node("Mul", ["r", "one"], ["y"])]
    held: dict[str, Any] = {"sizes": np.array([1, 1, 9, 9]), "one": np.ones(1, "float32")}
    image = np.random.default_rng(0).standard_normal((1, 1, 256, 256)).astype("float32")
    run = in_double(model(nodes, [value("x", image.shape)], [value("y", [1, 1, 9, 9])], **held))
    assert run is not None
    wanted = torch.nn.functional.interpolate(torch.from_numpy(image).double(), size=(9, 9), mode="bilinear")
    assert measure(run({"x": image})["y"], wanted.numpy()).max_scaled < 1e-7


def test_it_declines_what_quantizes_and_stops_at_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, Any] = {"s": np.float32(0.1), "z": np.uint8(0), "w": np.ones((4, 4), "float32")}
    quantized = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    path = write(tmp_path, model(quantized, [value("x", [4, 4])], [value("y", [4, 4])], **held))
    assert double_reference(path) is None
    product = model([node("MatMul", ["x", "w"], ["y"])], [value("x", [4, 4])], [value("y", [4, 4])], w=held["w"])
    monkeypatch.setattr(double, "_MOST_PRODUCTS", 63)
    run = in_double(product)
    assert run is not None
    with pytest.raises(ModelTooLarge, match="in float64"):
        run({"x": np.ones((4, 4), "float32")})


def test_a_node_that_runs_nowhere_is_named() -> None:
    made = model([node("Unheard", ["x", "w"], ["y"])], [value("x", [4])], [value("y", [4])], w=np.ones(4, "float32"))
    run = in_double(made)
    assert run is not None
    with pytest.raises(ModelMalformed, match="Unheard does not run in float64"):
        run({"x": np.ones(4, "float32")})
