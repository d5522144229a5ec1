"""Operators against ONNX Runtime where the node suite is thin: many variants of one family in one graph, one build."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax

from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend import load
from relaxc.service.frontend.onnx.node import Refused
from relaxc.service.frontend.onnx.ops.common import scalar
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import FLOAT, INT64, check, model, node, run, value, write

BOOL, FLOAT16 = TensorProto.BOOL, TensorProto.FLOAT16
Variant = tuple[str, list[str], dict[str, Any]]


def _bundle(
    folder: Path, variants: list[Variant], inputs: list[Any], *, opset: int = 20, dtype: int = FLOAT, **weights: Any
) -> None:
    """All variants as nodes of one graph, each with an output of its own."""
    nodes, outputs = [], []
    for place, (op, sources, attributes) in enumerate(variants):
        domain = "com.microsoft" if op.startswith("ms.") else ""
        name = f"y{place}"
        nodes.append(helper.make_node(op.removeprefix("ms."), sources, [name], name=name, domain=domain, **attributes))
        outputs.append(helper.make_value_info(name, helper.make_tensor_type_proto(dtype, None)))
    check(write(folder, model(nodes, inputs, outputs, opset=opset, **weights)))


def _grid(**choices: list[Any]) -> list[dict[str, Any]]:
    return [
        {name: choice for name, choice in zip(choices, row, strict=True) if choice is not None}
        for row in itertools.product(*choices.values())
    ]


def test_average_pool(tmp_path: Path) -> None:
    grid = _grid(
        kernel_shape=[[3, 2]],
        strides=[[2, 3], None],
        pads=[[1, 0, 1, 1], None],
        ceil_mode=[0, 1],
        count_include_pad=[0, 1],
    )
    grid += _grid(kernel_shape=[[2, 3]], strides=[[2, 2]], auto_pad=["SAME_UPPER", "SAME_LOWER", "VALID"])
    grid += _grid(kernel_shape=[[2, 2]], dilations=[[2, 2]], pads=[[1, 1, 1, 1]], count_include_pad=[0, 1])
    _bundle(tmp_path, [("AveragePool", ["x"], attributes) for attributes in grid], [value("x", [2, 3, 9, 10])])


def test_max_pool(tmp_path: Path) -> None:
    grid = _grid(
        kernel_shape=[[3, 2]],
        strides=[[2, 3], None],
        pads=[[1, 0, 1, 1], None],
        ceil_mode=[0, 1],
        dilations=[[1, 2], None],
    )
    grid += _grid(kernel_shape=[[2, 3]], strides=[[2, 2]], auto_pad=["SAME_UPPER", "SAME_LOWER", "VALID"])
    _bundle(tmp_path, [("MaxPool", ["x"], attributes) for attributes in grid], [value("x", [2, 3, 9, 10])])


def test_pools_of_one_and_three_axes(tmp_path: Path) -> None:
    variants: list[Variant] = []
    for op, source, kernel in (("AveragePool", "a", [3]), ("MaxPool", "a", [3]), ("MaxPool", "b", [2, 2, 2])):
        variants += [
            (op, [source], {"kernel_shape": kernel, "strides": [2] * len(kernel), "ceil_mode": c}) for c in (0, 1)
        ]
    _bundle(tmp_path, variants, [value("a", [2, 3, 10]), value("b", [1, 2, 5, 6, 7])])


def test_convolutions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w2": rng.standard_normal((4, 2, 3, 3)),
        "w1": rng.standard_normal((4, 2, 3)),
        "w3": rng.standard_normal((2, 2, 2, 2, 2)),
        "b": rng.standard_normal(4),
    }
    variants: list[Variant] = [
        ("Conv", ["x", "w2", "b"], a)
        for a in _grid(group=[2], pads=[[1, 0, 2, 1], None], strides=[[2, 1], None], dilations=[[1, 2], None])
    ]
    variants += [
        ("Conv", ["x", "w2"], {"group": 2, "auto_pad": pad, "strides": [2, 2]}) for pad in ("SAME_UPPER", "SAME_LOWER")
    ]
    variants += [("Conv", ["s", "w1", "b"], {"group": 2, "pads": [2, 1], "dilations": [2]}), ("Conv", ["v", "w3"], {})]
    inputs = [value("x", [2, 4, 9, 8]), value("s", [2, 4, 11]), value("v", [1, 2, 4, 5, 4])]
    _bundle(tmp_path, variants, inputs, **{name: data.astype("float32") for name, data in weights.items()})


@pytest.mark.slow
def test_transposed_convolutions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w2": rng.standard_normal((4, 3, 3, 2)),
        "w1": rng.standard_normal((4, 3, 3)),
        "w3": rng.standard_normal((2, 3, 2, 2, 2)),
        "b": rng.standard_normal(6),
    }
    variants: list[Variant] = [
        ("ConvTranspose", ["x", "w2", "b"], a)
        for a in _grid(group=[2], pads=[[1, 0, 2, 1], None], strides=[[2, 3], None], dilations=[[1, 2], None])
    ]
    variants += [
        ("ConvTranspose", ["x", "w2"], {"group": 2, "strides": [2, 2], "output_padding": [1, 1]}),
        ("ConvTranspose", ["x", "w2"], {"group": 2, "strides": [2, 2], "output_shape": [10, 9]}),
        ("ConvTranspose", ["x", "w2"], {"group": 2, "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("ConvTranspose", ["s", "w1", "b"], {"group": 2, "pads": [2, 1], "strides": [2]}),
        ("ConvTranspose", ["v", "w3"], {"strides": [2, 1, 2]}),
    ]
    inputs = [value("x", [2, 4, 5, 4]), value("s", [2, 4, 7]), value("v", [1, 2, 3, 3, 2])]
    _bundle(tmp_path, variants, inputs, **{name: data.astype("float32") for name, data in weights.items()})


def test_resize(tmp_path: Path) -> None:
    modes = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    scales = {"up": [1, 1, 2.0, 3.0], "down": [1, 1, 0.6, 0.5], "odd": [1, 1, 1.7, 0.8]}
    weights: dict[str, Any] = {name: np.array(scale, "float32") for name, scale in scales.items()}
    weights["sizes"] = np.array([1, 2, 7, 3], "int64")
    variants: list[Variant] = []
    for mode, coordinates in itertools.product(("nearest", "linear", "cubic"), modes):
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
        variants.append(("Resize", ["x", "", "", "sizes"], attributes))
        # ONNX Runtime and the specification differ for corners that a scale does not hit.
        names = ["up"] if coordinates == "align_corners" else list(scales)
        variants += [("Resize", ["x", "", name], attributes) for name in names]
    for rounding in ("round_prefer_ceil", "floor", "ceil"):
        attributes = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": "asymmetric"}
        variants += [("Resize", ["x", "", name], attributes) for name in scales]
    cubic = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    variants += [("Resize", ["x", "", name], cubic) for name in scales]
    variants += [("Resize", ["x", "", "down"], {"mode": mode, "antialias": 1}) for mode in ("linear", "cubic")]
    _bundle(tmp_path, variants, [value("x", [1, 2, 5, 4])], **weights)


def test_an_output_shape_beyond_the_full_result_is_all_behind_it(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype("float32")
    variants: list[Variant] = [
        ("ConvTranspose", ["x", "w"], {"strides": [3, 2], "output_shape": wanted, "auto_pad": mode})
        for wanted in ([14, 8], [11, 6], [9, 4])
        for mode in ("NOTSET", "SAME_UPPER", "SAME_LOWER")
    ]
    _bundle(tmp_path, variants, [value("x", [1, 2, 4, 3])], w=w)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10_rounds_up_where_it_shrinks(mode: str, tmp_path: Path) -> None:
    scales = {"up": [1, 1, 2.0, 3.0], "down": [1, 1, 0.6, 0.6], "odd": [1, 1, 1.7, 0.8]}
    variants: list[Variant] = [("Resize", ["x", name], {"mode": mode}) for name in scales]
    weights = {name: np.array(scale, "float32") for name, scale in scales.items()}
    _bundle(tmp_path, variants, [value("x", [1, 2, 5, 4])], opset=10, **weights)


def test_pad_and_slice(tmp_path: Path) -> None:
    weights: dict[str, Any] = {
        "some": np.array([0, 1, 2, 2, 0, 1], "int64"),
        "cut": np.array([0, -1, 0, 0, 2, -2], "int64"),
        "seven": np.float32(7),
    }
    variants: list[Variant] = [("Pad", ["x", "some"], {"mode": mode}) for mode in ("constant", "reflect", "edge")]
    variants += [("Pad", ["x", "cut", "seven"], {}), ("Pad", ["x", "some", "seven"], {})]
    bounds = [(0, 3, 1), (-3, -1, 1), (1, 1 << 62, 2), (4, 0, -1), (-1, -(1 << 62), -2), (-100, 100, 1), (2, 2, 1)]
    for place, (start, end, step) in enumerate(bounds):
        for name, number in (("start", start), ("end", end), ("step", step)):
            weights[f"{name}{place}"] = np.array([number], "int64")
        variants.append(("Slice", ["x", f"start{place}", f"end{place}", "one", f"step{place}"], {}))
    weights["one"] = np.array([1], "int64")
    _bundle(tmp_path, variants[:-1], [value("x", [3, 6, 5])], **weights)


def test_reductions_of_infinities(tmp_path: Path) -> None:
    """The largest of nothing but -inf is -inf: TVM's own maximum starts from the least finite number."""
    ops = ("ReduceMax", "ReduceMin", "ReduceLogSumExp", "ArgMax", "ArgMin", "MaxPool")
    nodes = [node(op, ["x"], [f"y{op}"], **({"kernel_shape": [2]} if op == "MaxPool" else {})) for op in ops[:3]] + [
        node(op, ["x"], [f"y{op}"], axis=2) for op in ops[3:5]
    ]
    kinds = {"ArgMax": INT64, "ArgMin": INT64}
    outputs = [
        helper.make_value_info(f"y{op}", helper.make_tensor_type_proto(kinds.get(op, FLOAT), None)) for op in ops[:5]
    ]
    imported = load(write(tmp_path, model(nodes, [value("x", [1, 1, 4])], outputs)), ModelFormat.ONNX)
    low = run(imported, {"x": np.full((1, 1, 4), -np.inf, "float32")})
    high = run(imported, {"x": np.full((1, 1, 4), np.inf, "float32")})
    assert [float(low[f"y{op}"].reshape(-1)[0]) for op in ops[:5]] == [-np.inf, -np.inf, -np.inf, 0, 0]
    assert [float(high[f"y{op}"].reshape(-1)[0]) for op in ops[:5]] == [np.inf, np.inf, np.inf, 0, 0]


def test_low_precision_sums_keep_their_digits(tmp_path: Path) -> None:
    variants: list[Variant] = [
        (op, ["x"], {}) for op in ("ReduceMean", "ReduceL2", "ReduceSum", "GlobalAveragePool", "Softmax", "LogSoftmax")
    ]
    variants += [("MatMul", ["x", "t"], {}), ("LayerNormalization", ["x", "g"], {})]
    weights = {"t": np.ones((512, 3), "float16"), "g": np.ones(512, "float16")}
    _bundle(tmp_path, variants, [value("x", [1, 2, 4, 512], FLOAT16)], dtype=FLOAT16, **weights)


def test_softmax_before_opset_13_joins_axes(tmp_path: Path) -> None:
    variants: list[Variant] = [(op, ["x"], {"axis": axis}) for op in ("Softmax", "LogSoftmax") for axis in (0, 1, 2)]
    _bundle(tmp_path, variants, [value("x", [2, 3, 4])], opset=11)


def test_einsum(tmp_path: Path) -> None:
    equations = [
        "bij,bjk->bik",
        "bij,bkj->bik",
        "bhid,bhjd->bhij",
        "...ij,...jk->...ik",
        "ij,jk",
        "bij->b",
        "ii->i",
        "i,j->ij",
    ]
    shapes = {
        "bij,bjk->bik": ([2, 3, 4], [2, 4, 5]),
        "bij,bkj->bik": ([2, 3, 4], [2, 5, 4]),
        "bhid,bhjd->bhij": ([2, 2, 3, 4], [2, 2, 5, 4]),
        "...ij,...jk->...ik": ([2, 2, 3, 4], [1, 2, 4, 5]),
        "ij,jk": ([3, 4], [4, 5]),
        "bij->b": ([2, 3, 4],),
        "ii->i": ([3, 3],),
        "i,j->ij": ([3], [4]),
    }
    inputs, variants = [], []
    for place, equation in enumerate(equations):
        names = [f"x{place}_{number}" for number in range(len(shapes[equation]))]
        inputs += [value(name, shape) for name, shape in zip(names, shapes[equation], strict=True)]
        variants.append(("Einsum", names, {"equation": equation}))
    _bundle(tmp_path, variants, inputs)


def test_operators_of_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {name: rng.standard_normal(8).astype("float32") for name in ("g", "b")}
    weights["t"] = rng.standard_normal((5, 8)).astype("float32")
    variants: list[Variant] = [
        ("ms.FastGelu", ["x", "b"], {}),
        ("ms.BiasGelu", ["x", "b"], {}),
        ("ms.Gelu", ["x"], {}),
        ("ms.QuickGelu", ["x"], {}),
        ("ms.FusedMatMul", ["x", "t"], {"transB": 1, "alpha": 0.5}),
        ("ms.SkipLayerNormalization", ["x", "s", "g", "b"], {"epsilon": 1e-5}),
        ("ms.SkipSimplifiedLayerNormalization", ["x", "s", "g"], {"epsilon": 1e-5}),
        ("SimplifiedLayerNormalization", ["x", "g"], {"epsilon": 1e-5}),
    ]
    _bundle(tmp_path, variants, [value("x", [2, 3, 8]), value("s", [2, 3, 8])], **weights)


@pytest.mark.sampled("5-6-GRU", "5-6-LSTM")
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("steps", "hidden"), [(5, 6), ("seq", 6), ("seq", 68)])
def test_recurrent(op: str, steps: int | str, hidden: int, tmp_path: Path) -> None:
    """Unrolled for 5 steps, one loop nest for a symbolic number; all directions; with and without reset first.

    6 units are less than one block of them, 68 are blocks and a rest, and enough for threads.
    """
    gates, rng = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], np.random.default_rng(0)
    nodes, outputs, weights = [], [], {}
    for place, (direction, before) in enumerate([("forward", 0), ("reverse", 1), ("bidirectional", 0)]):
        count = 2 if direction == "bidirectional" else 1
        shapes = {
            "w": (count, gates * hidden, 3),
            "r": (count, gates * hidden, hidden),
            "b": (count, 2 * gates * hidden),
        }
        weights.update({f"{n}{place}": (rng.standard_normal(s) / 3).astype("float32") for n, s in shapes.items()})
        attributes = {"hidden_size": hidden, "direction": direction} | (
            {"linear_before_reset": before} if op == "GRU" else {}
        )
        names = [f"y{place}", f"h{place}"]
        nodes.append(node(op, ["x", *(f"{n}{place}" for n in shapes)], names, **attributes))
        outputs += [helper.make_value_info(name, helper.make_tensor_type_proto(FLOAT, None)) for name in names]
    proto = model(nodes, [value("x", [steps, "batch", 3])], outputs, **weights)
    check(write(tmp_path, proto), sizes={"seq": 4, "batch": 2})


@pytest.mark.parametrize(("kind", "hidden"), [("int8", 6), ("uint8", 68)])
def test_an_lstm_of_codes(kind: str, hidden: int, tmp_path: Path) -> None:
    """Each step rounds its state to 8 bits by its own range, as ONNX Runtime does: they agree to the last digits."""
    rng, limits = np.random.default_rng(0), np.iinfo(kind)
    weights: dict[str, Any] = {
        name: rng.integers(limits.min, limits.max + 1, (2, depth, 4 * hidden)).astype(kind)
        for name, depth in (("w", 5), ("r", hidden))
    }
    weights["b"] = (rng.standard_normal((2, 8 * hidden)) / 3).astype("float32")
    for name, shape in (("w", (2, 4 * hidden)), ("r", (2,))):
        weights[f"{name}_scale"] = (rng.random(shape) / 400 + 0.002).astype("float32")
        weights[f"{name}_zero"] = np.full(shape, 128 if kind == "uint8" else 0, kind)
    names = ["x", "w", "r", "b", "", "h", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    attributes = {"domain": "com.microsoft", "hidden_size": hidden, "direction": "bidirectional"}
    nodes = [node("DynamicQuantizeLSTM", names, ["y", "last", "cell"], **attributes)]
    outputs = [helper.make_value_info(name, helper.make_tensor_type_proto(FLOAT, None)) for name in nodes[0].output]
    inputs = [value("x", ["seq", 1, 5]), value("h", [2, 1, hidden])]
    check(write(tmp_path, model(nodes, inputs, outputs, **weights)), sizes={"seq": 9})


def _branch(name: str, *nodes: Any) -> Any:
    return helper.make_graph(list(nodes), name, [], [value(nodes[-1].output[0], ["n", 3])])


def test_if_with_a_condition_from_data(tmp_path: Path) -> None:
    branches = _branch("a", node("Relu", ["x"], ["p"])), _branch("b", node("Neg", ["x"], ["q"]))
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    proto = model(nodes, [value("x", ["n", 3])], [value("y", ["n", 3])], zero=np.float32(0))
    check(write(tmp_path, proto))


def test_if_with_a_condition_from_shapes(tmp_path: Path) -> None:
    """Only the taken branch is converted, so what the other one needs does not matter."""
    refused = helper.make_graph([node("NoSuch", ["x"], ["p"])], "a", [], [value("p", ["n", 3])])
    del refused.node[:]
    refused.node.append(node("Relu", ["x"], ["p"]))
    branches = refused, _branch("b", node("Neg", ["x"], ["q"]))
    nodes = [
        node("Shape", ["x"], ["s"], start=1),
        node("Equal", ["s", "three"], ["c"]),
        node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    proto = model(nodes, [value("x", ["n", 3])], [value("y", ["n", 3])], three=np.array([3], "int64"))
    assert "where" not in str(check(write(tmp_path, proto)).module["main"])


def test_loop_of_known_length(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            node("Identity", ["going"], ["on"]),
            node("Mul", ["state", "two"], ["next"]),
            node("Identity", ["next"], ["out"]),
        ],
        "body",
        [value("i", [], INT64), value("going", [], BOOL), value("state", [2])],
        [value("on", [], BOOL), value("next", [2]), value("out", [2])],
    )
    nodes = [node("Loop", ["trips", "yes", "x"], ["y", "all"], body=body)]
    weights = {"trips": np.array(4, "int64"), "yes": np.array(True), "two": np.float32(2)}
    proto = model(nodes, [value("x", [2])], [value("y", [2]), value("all", [4, 2])], **weights)
    check(write(tmp_path, proto))


def test_a_loop_too_long_to_unroll_is_refused(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Identity", ["going"], ["on"]), node("Neg", ["state"], ["next"])],
        "body",
        [value("i", [], INT64), value("going", [], BOOL), value("state", [2])],
        [value("on", [], BOOL), value("next", [2])],
    )
    nodes = [node("Loop", ["trips", "yes", "x"], ["y"], body=body)]
    weights = {"trips": np.array(1 << 40, "int64"), "yes": np.array(True)}
    with pytest.raises(UnsupportedModel, match="unrolling"):
        load(write(tmp_path, model(nodes, [value("x", [2])], [value("y", [2])], **weights)), ModelFormat.ONNX)


def test_shapes_computed_in_the_graph(tmp_path: Path) -> None:
    """Shape, Gather, Unsqueeze, Concat, Reshape with symbolic sizes: nothing of it is left in the module."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i0"], ["b"], axis=0),
        node("Gather", ["s", "i1"], ["n"], axis=0),
        node("Div", ["n", "two"], ["half"]),
        node("Unsqueeze", ["b", "axis0"], ["b1"]),
        node("Unsqueeze", ["half", "axis0"], ["h1"]),
        node("Concat", ["b1", "minus", "h1", "two1"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"]),
        node("Transpose", ["r"], ["y"], perm=[0, 2, 1, 3]),
    ]
    weights = {
        "i0": np.array(0, "int64"),
        "i1": np.array(2, "int64"),
        "two": np.array(2, "int64"),
        "two1": np.array([2], "int64"),
        "axis0": np.array([0], "int64"),
        "minus": np.array([-1], "int64"),
    }
    proto = model(nodes, [value("x", ["b", "seq", 8])], [value("y", ["b", 4, "seq", 2])], **weights)
    text = str(check(write(tmp_path, proto), sizes={"b": 2, "seq": 5}).module["main"])
    assert "call_tir" not in text
    assert "R.reshape" in text


def test_division_by_zero_does_not_kill(tmp_path: Path) -> None:
    nodes = [node("Div", ["a", "b"], ["q"]), node("Mod", ["a", "b"], ["r"])]
    inputs, outputs = [value(n, [3], INT64) for n in "ab"], [value(n, [3], INT64) for n in "qr"]
    imported = load(write(tmp_path, model(nodes, inputs, outputs)), ModelFormat.ONNX)
    given = {"a": np.array([-7, 7, 5], "int64"), "b": np.array([2, -2, 0], "int64")}
    got = run(imported, given)
    assert got["q"][:2].tolist() == [-3, -3]
    assert got["r"][:2].tolist() == [1, -1]


def test_quantized_convolution(tmp_path: Path) -> None:
    """QuantizeLinear, Conv on dequantized weights, and back, as exporters of quantized models write it."""
    rng = np.random.default_rng(0)
    weights = {
        "sx": np.float32(0.05),
        "zx": np.uint8(120),
        "w": rng.integers(-100, 100, (4, 3, 3, 3)).astype("int8"),
        "sw": np.array([0.01, 0.02, 0.03, 0.04], "float32"),
        "zw": np.zeros(4, "int8"),
    }
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["v"], axis=0),
        node("Conv", ["d", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    check(write(tmp_path, model(nodes, [value("x", ["n", 3, 8, 8])], [value("y", ["n", 4, 8, 8])], **weights)))


def test_regions_outside_read_nothing_outside(tmp_path: Path) -> None:
    """A batch index counts from the end, and is clipped; coordinates may be anything."""
    image = np.stack([np.full((1, 5, 5), 1, "float32"), np.full((1, 5, 5), 2, "float32")])
    batches = np.array([0, 1, 2, 1 << 40, -1, -(1 << 40)], "int64")
    whole, far = [0, 0, 4, 4], [[np.nan] * 4, [-np.inf, 4, np.inf, 2], [-1e3, -1e3, 1e3, 1e3], [3e38, -3e38, 3e38, 0]]
    regions = np.array([whole] * 6 + far, "float32")
    batches = np.concatenate([batches, np.zeros(4, "int64")])
    rows = np.concatenate([batches[:, None].astype("float32"), regions], 1)
    rows[0, 0] = np.nan
    nodes = [
        node("RoiAlign", ["x", "r", "b"], ["a"], output_height=2, output_width=2, sampling_ratio=2),
        node("RoiAlign", ["x", "r", "b"], ["d"], output_height=2, output_width=2),
        node("MaxRoiPool", ["x", "p"], ["m"], pooled_shape=[2, 2]),
    ]
    inputs = [value("x", ["n", 1, 5, 5]), value("r", [10, 4]), value("b", [10], INT64), value("p", [10, 5])]
    path = write(tmp_path, model(nodes, inputs, [value(n, [10, 1, 2, 2]) for n in "adm"]))
    got = run(load(path, ModelFormat.ONNX), {"x": image, "r": regions, "b": batches, "p": rows})
    for name in "adm":
        assert got[name][:6, 0].max((1, 2)).tolist() == [1, 2, 2, 2, 2, 1], name
    assert (got["a"][6:] == 0).all()
    assert (got["d"][[6, 7, 9]] == 0).all()
    assert (got["m"][6:] <= 1).all()


def test_regions_are_onnx_runtimes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    starts = rng.uniform(-3, 8, (6, 2))
    weights: dict[str, Any] = {
        "r": np.concatenate([starts, starts + rng.uniform(1, 9, (6, 2))], 1).astype("float32"),
        "b": np.array([0, 1, 0, 1, 0, 1], "int64"),
    }
    attributes = {"output_height": 2, "output_width": 3}
    modes = ("half_pixel", "output_half_pixel")
    variants: list[Variant] = [
        ("RoiAlign", ["x", "r", "b"], attributes | {"spatial_scale": s, "coordinate_transformation_mode": m, **ratio})
        for s, m, ratio in itertools.product((1.0, 0.5), modes, ({}, {"sampling_ratio": 2}))
    ]
    _bundle(tmp_path, variants, [value("x", [2, 3, 8, 9])], **weights)


@pytest.mark.slow
def test_a_grid_beyond_the_image(tmp_path: Path) -> None:
    """Infinite and huge coordinates give what lies there: padding, the border, or some pixel of the reflection."""
    modes, pads = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    both = list(itertools.product(modes, pads))
    nodes = [node("GridSample", ["x", "g"], [f"{m}{p}"], mode=m, padding_mode=p) for m, p in both]
    outputs = [value(m + p, [1, 1, 1, 3]) for m, p in both]
    proto = model(nodes, [value("x", [1, 1, 5, 5]), value("g", [1, 1, 3, 2])], outputs)
    grid = np.array([[1e10, -1e10], [np.inf, -np.inf], [-3e38, 0]], "float32").reshape(1, 1, 3, 2)
    given = {"x": np.arange(25, dtype="float32").reshape(1, 1, 5, 5), "g": grid}
    got = run(load(write(tmp_path, proto), ModelFormat.ONNX), given)
    for mode, pad in both:
        found = got[mode + pad].reshape(-1)
        assert np.isfinite(found).all(), (mode, pad)
        if pad != "reflection" and mode != "cubic":
            np.testing.assert_allclose(found, [0, 0, 0] if pad == "zeros" else [4, 4, 10], err_msg=mode + pad)


def test_positions_in_a_sequence(tmp_path: Path) -> None:
    """A negative position counts from the end of the sequence, in Erase as in Insert and At."""
    nodes, outputs, weights = [node("SequenceConstruct", ["x", "y", "z"], ["s"])], [], {}
    for place in (-3, -2, -1, 0, 2):
        weights[f"p{place}"] = np.array(place, "int64")
        nodes += [
            node("SequenceErase", ["s", f"p{place}"], [f"e{place}"]),
            node("ConcatFromSequence", [f"e{place}"], [f"c{place}"], axis=0),
            node("SequenceInsert", ["s", "x", f"p{place}"], [f"i{place}"]),
            node("ConcatFromSequence", [f"i{place}"], [f"d{place}"], axis=0),
        ]
        outputs += [value(f"c{place}", [2]), value(f"d{place}", [4])]
    check(write(tmp_path, model(nodes, [value(n, [1]) for n in "xyz"], outputs, **weights)))


def test_a_position_outside_of_a_sequence_is_refused(tmp_path: Path) -> None:
    nodes = [node("SequenceConstruct", ["x"], ["s"]), node("SequenceErase", ["s", "p"], ["e"])]
    nodes.append(node("ConcatFromSequence", ["e"], ["y"], axis=0))
    path = write(tmp_path, model(nodes, [value("x", [1])], [value("y", [1])], p=np.array(1, "int64")))
    with pytest.raises(UnsupportedModel, match="position 1"):
        load(path, ModelFormat.ONNX)


def test_reductions_of_a_scalar(tmp_path: Path) -> None:
    ops = ("L1", "L2", "SumSquare", "LogSum", "LogSumExp", "Sum", "Mean", "Max", "Prod")
    variants: list[Variant] = [(f"Reduce{op}", ["x"], {}) for op in ops]
    _bundle(tmp_path, variants, [value("x", [])])


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
def test_no_axes_of_known_numbers(op: str, tmp_path: Path) -> None:
    """Nothing is reduced with `noop_with_empty_axes`, of a constant either."""
    nodes = [node(op, ["k", "none"], ["r"], noop_with_empty_axes=1), node("Add", ["r", "x"], ["y"])]
    weights = {"k": np.array([5, 7, 11], "int64"), "none": np.zeros(0, "int64")}
    check(write(tmp_path, model(nodes, [value("x", [3], INT64)], [value("y", [3], INT64)], **weights)))


def test_the_first_none_are_refused(tmp_path: Path) -> None:
    nodes = [node("TopK", ["x", "k"], ["y", "i"])]
    path = write(tmp_path, model(nodes, [value("x", [4])], [value("y", [0])], k=np.array([0], "int64")))
    with pytest.raises(UnsupportedModel, match="K=0"):
        load(path, ModelFormat.ONNX)


@pytest.mark.parametrize("size", [3, "n"])
def test_a_condition_past_the_end_keeps_nothing(size: int | str, tmp_path: Path) -> None:
    nodes, c = [node("Compress", ["x", "c"], ["y"], axis=0)], np.array([True, False, True, True, True])
    proto = model(nodes, [value("x", [size, 2])], [value("y", ["k", 2])], c=c)
    imported = load(write(tmp_path, proto), ModelFormat.ONNX)
    x = np.arange(6, dtype="float32").reshape(3, 2)
    np.testing.assert_array_equal(run(imported, {"x": x})["y"], x[[0, 2]])


def test_a_root_of_infinity(tmp_path: Path) -> None:
    proto = model([node("Pow", ["x", "half"], ["y"])], [value("x", [4])], [value("y", [4])], half=np.float32(0.5))
    given = {"x": np.array([-np.inf, np.inf, 4, -1], "float32")}
    got = run(load(write(tmp_path, proto), ModelFormat.ONNX), given)["y"]
    np.testing.assert_array_equal(got, [np.inf, np.inf, 2, np.nan])


def test_an_endless_loop_of_nothing_is_refused(tmp_path: Path) -> None:
    carried = [value("going", [], BOOL), value("state", [2])]
    body = helper.make_graph([], "body", [value("i", [], INT64), *carried], carried)
    nodes = [node("Loop", ["trips", "yes", "x"], ["y"], body=body)]
    weights = {"trips": np.array(1 << 62, "int64"), "yes": np.array(True)}
    with pytest.raises(UnsupportedModel, match="unrolling"):
        load(write(tmp_path, model(nodes, [value("x", [2])], [value("y", [2])], **weights)), ModelFormat.ONNX)


@pytest.mark.parametrize("dtype", [TensorProto.BFLOAT16, TensorProto.UINT8, TensorProto.UINT32, TensorProto.INT8])
def test_signs_and_largest_of_any_dtype(dtype: int, tmp_path: Path) -> None:
    nodes = [node("Sign", ["x"], ["s"]), node("ArgMax", ["x"], ["a"], axis=1), node("ArgMin", ["x"], ["i"], axis=1)]
    outputs = [value("s", [2, 4], dtype), value("a", [2, 1], INT64), value("i", [2, 1], INT64)]
    imported = load(write(tmp_path, model(nodes, [value("x", [2, 4], dtype)], outputs)), ModelFormat.ONNX)
    x = np.array([[1, 0, 3, 2], [5, 7, 7, 5]], helper.tensor_dtype_to_np_dtype(dtype))
    got = run(imported, {"x": x})
    assert got["s"].astype(int).tolist() == [[1, 0, 1, 1], [1, 1, 1, 1]]
    assert got["a"].tolist() == [[2], [1]]
    assert got["i"].tolist() == [[1], [0]]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums_of_integers_wrap(dtype: str, reverse: int, tmp_path: Path) -> None:
    kind, most = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.iinfo(dtype).max
    proto = model(
        [node("CumSum", ["x", "axis"], ["y"], reverse=reverse)],
        [value("x", [2, 5], kind)],
        [value("y", [2, 5], kind)],
        axis=np.array(1, np.int64),
    )
    x = np.array([[most - 1, 5, -3, most, 1], [most // 3, most, most, 2, -9]], dtype)
    ends = slice(None, None, -1 if reverse else 1)
    wanted = np.cumsum(x[:, ends], 1, dtype)[:, ends]
    found = run(load(write(tmp_path, proto), ModelFormat.ONNX), {"x": x})["y"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "int32", "int8"])
def test_the_least_integer_by_minus_one_wraps(dtype: str, known: bool, tmp_path: Path) -> None:
    """Which a CPU's division stops the process for."""
    kind, least = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.iinfo(dtype).min
    given = {"a": np.array([least, least, 7], dtype), "b": np.array([-1, 2, -1], dtype)}
    nodes = [node("Div", "ab", ["q"]), node("Mod", "ab", ["r"]), node("Mod", "ab", ["t"], fmod=1)]
    inputs = [value("x", [3], kind)] if known else [value(n, [3], kind) for n in "ab"]
    nodes += [node("Add", [n, "x"], [f"{n}x"]) for n in "qrt"] if known else []
    outputs = [f"{n}x" for n in "qrt"] if known else list("qrt")
    proto = model(nodes, inputs, [value(n, [3], kind) for n in outputs], **(given if known else {}))
    got = run(load(write(tmp_path, proto), ModelFormat.ONNX), {"x": np.zeros(3, dtype)} if known else given)
    assert [got[n].tolist() for n in outputs] == [[least, least // 2, -7], [0, 0, 0], [0, 0, 0]]


def test_group_normalization_of_opset_18_has_scales_of_groups(tmp_path: Path) -> None:
    """It is deprecated in the opset that it came with, and ONNX Runtime runs it."""
    weights = {"s": np.array([1, 2], "float32"), "b": np.array([0, 1], "float32")}
    variants: list[Variant] = [("GroupNormalization", ["x", "s", "b"], {"num_groups": 2})]
    _bundle(tmp_path, variants, [value("x", ["n", 4, 3])], opset=18, **weights)


def test_a_grid_samples_integers(tmp_path: Path) -> None:
    inputs = [value("x", [1, 1, 2, 2], TensorProto.INT32), value("g", [1, 1, 2, 2])]
    proto = model([node("GridSample", ["x", "g"], ["y"])], inputs, [value("y", [1, 1, 1, 2], TensorProto.INT32)])
    imported = load(write(tmp_path, proto), ModelFormat.ONNX, shapes={})
    grid = np.array([[[[-0.5, -0.5], [0.2, 0.5]]]], "float32")
    x = np.array([[[[0, 10], [20, 30]]]], "int32")
    assert run(imported, {"x": x, "g": grid})["y"].ravel().tolist() == [0, 27]


@pytest.mark.parametrize("rows", [2, "n"])
def test_a_tensor_without_elements_adds_nothing_to_a_concat(rows: int | str, tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1), node("Concat", ["s", "zero", "one"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["e"]), node("Mul", ["e", "c"], ["f"]),
        node("Concat", ["f", "x", "f"], ["y"], axis=1),
    ]  # fmt: skip
    weights = {"zero": np.array([0]), "one": np.array([1]), "c": np.float32(-1e9)}
    check(write(tmp_path, model(nodes, [value("x", [rows, 7, 1])], [value("y", [rows, 7, 1])], **weights)))


def test_positions_that_a_known_choice_decides_read_a_table(tmp_path: Path) -> None:
    """T5's buckets of distances: which are near is known, and the logarithms of the others are not."""
    nodes = [
        node("Cast", ["far"], ["f"], to=1), node("Log", ["f"], ["log"]), node("Cast", ["log"], ["l"], to=INT64),
        node("Where", ["near", "far", "l"], ["at"]), node("Gather", ["x", "at"], ["y"]),
    ]  # fmt: skip
    weights = {"far": np.array([0, 1, 2, 30, 90]), "near": np.array([True, True, True, False, False])}
    check(write(tmp_path, model(nodes, [value("x", [8, 2])], [value("y", [5, 2])], **weights)))


def test_celu_of_any_alpha(tmp_path: Path) -> None:
    _bundle(tmp_path, [("Celu", ["x"], {"alpha": alpha}) for alpha in (0.5, -0.5, -2.0)], [value("x", [4, 5])])


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "int64")


@pytest.mark.sampled("uint8", "int32")
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_truncated_after_a_function_of_floats(dtype: str, tmp_path: Path) -> None:
    """ONNX Runtime adds the bias of Shrink as a float, and takes logarithms of sums as such."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    variants: list[Variant] = [
        ("Shrink", ["x"], {"bias": bias, "lambd": lambd}) for bias, lambd in ((0.01, 0.5), (-1.0, 2.5), (0.0, -0.5))
    ]
    if dtype in ("int32", "int64"):
        variants += [(op, ["x"], {"axes": [1]}) for op in ("ReduceLogSum", "ReduceL2", "ReduceMean")]
    _bundle(tmp_path, variants, [value("x", [4, 5], kind)], opset=13, dtype=kind)


def test_what_a_dtype_has_no_number_for_is_refused() -> None:
    x = relax.Var("x", relax.TensorType([2], "uint8"))
    for number in (0.5, -1, 256):
        with pytest.raises(Refused, match="the dtype uint8, which has no such number"):
            scalar(number, x)


def test_erf_of_integers(tmp_path: Path) -> None:
    """ONNX Runtime has no kernel for it."""
    kind = TensorProto.INT32
    made = model([node("Erf", ["x"], ["y"])], [value("x", [4], kind)], [value("y", [4], kind)], opset=11)
    imported = load(write(tmp_path, made), ModelFormat.ONNX)
    assert run(imported, {"x": np.array([-7, 0, 1, 9], "int32")})["y"].tolist() == [-1, 0, 0, 1]


def test_log_sum_exp_of_integers_is_refused(tmp_path: Path) -> None:
    made = model([node("ReduceLogSumExp", ["x"], ["y"])], [value("x", [4], INT64)], [value("y", [1], INT64)])
    with pytest.raises(UnsupportedModel, match=r"ReduceLogSumExp .*truncates each exponential"):
        load(write(tmp_path, made), ModelFormat.ONNX)


def test_bools_are_added_by_or_and_multiplied_by_and(tmp_path: Path) -> None:
    held = {"i": np.array([3, 0, 1, 3, 3]), "j": np.array([[3], [0], [1], [3], [3]])}
    held |= {"d": np.array([0, 1, 0, 1, 0], bool), "u": np.array([0, 1, 1, 0, 1], bool)}
    variants: list[Variant] = [
        (op, [data, index, updates], {"reduction": reduction})
        for op, index in (("ScatterElements", "i"), ("ScatterND", "j"))
        for data, updates in (("x", "u"), ("d", "z"), ("d", "u"))
        for reduction in ("none", "add", "mul")
    ]
    _bundle(tmp_path, variants, [value("x", [5], BOOL), value("z", [5], BOOL)], dtype=BOOL, opset=18, **held)


def test_a_sequence_of_one_step_reversed(tmp_path: Path) -> None:
    variants: list[Variant] = [("ReverseSequence", ["x", "l"], {"batch_axis": 1, "time_axis": 0})]
    _bundle(tmp_path, variants, [value("x", [1, 5, 3])], l=np.ones(5, "int64"))
