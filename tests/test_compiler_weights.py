"""`--weights`: compiled from rounded weights, judged with the same, and a fault is found. `--small-weights`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relaxc.schedules.cpu.gemm import blocks_compute
from relaxc.service.compiler import prepare, run
from relaxc.service.errors import InvalidOption, VerificationFailed
from relaxc.service.request import CompileOptions
from relaxc.service.runtime.loading import load
from relaxc.service.runtime.session import Session
from tests.frontend.onnx.harness import model, node, value, write

VOCABULARY, WIDTH, HIDDEN = 300, 128, 256


def decoder(folder: Path) -> Path:
    """An embedding, two products, and the embedding turned as the last one's weights; a small product besides."""
    rng = np.random.default_rng(0)
    shapes = {"table": (VOCABULARY, WIDTH), "up": (WIDTH, HIDDEN), "down": (WIDTH, HIDDEN), "small": (WIDTH, 8)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype("float32") / 9, n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "down"], ["d"], transB=1),
        helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["d", "head"], ["logits"]),
        helper.make_node("MatMul", ["d", "small"], ["extra"]),
    ]
    outputs = [value("logits", [2, VOCABULARY]), value("extra", [2, 8])]
    graph = helper.make_graph(nodes, "g", [value("ids", [2], TensorProto.INT64)], outputs, weights)
    return write(folder, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def compiled(path: Path, workdir: Path, target: str = "auto", **options: Any) -> Session:
    workdir.mkdir(exist_ok=True)
    run(prepare(path, target=target, options=CompileOptions(**options)), workdir, lambda event: None)
    return load(next(workdir.glob("*.so")))


@pytest.mark.parametrize(("weights", "bits", "most"), [("int4", 4, 0.3), ("int8", 8, 0.02)])
def test_a_model_is_rounded_and_says_so(tmp_path: Path, weights: Any, bits: int, most: float) -> None:
    session = compiled(decoder(tmp_path), tmp_path / "out", weights=weights)
    rules = [row["rule"] for row in session.manifest.schedule]
    assert rules.count("cpu.matmul_blocks") == 3
    rounding = session.manifest.passes["rounding"]
    assert rounding["bits"] == bits and rounding["kept"] == 1
    assert sorted(row["shape"] for row in rounding["weights"]) == [[128, 256], [128, 256], [300, 128]]
    assert {row["axis"] for row in rounding["weights"]} == {0, 1}
    assert all(0 < row["error"] < most for row in rounding["weights"])
    found: Any = session.manifest.verification
    assert found["passed"] and found["outputs"][0]["tolerance"] == 1e-4
    assert all(0 < row["unrounded"]["error"] < most for row in found["outputs"])
    assert session.manifest.options["weights"] == weights and f"--weights {weights}" in session.manifest.command


def test_many_rows_have_the_same_weights(tmp_path: Path) -> None:
    """Computed in floats, from the codes."""
    path = decoder(tmp_path)
    other = onnx.load(path)
    for tensor in (*other.graph.input, *other.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 20
    onnx.save(other, path)
    session = compiled(path, tmp_path / "out", weights="int4")
    assert "cpu.matmul_blocks" not in [row["rule"] for row in session.manifest.schedule]
    assert session.manifest.verification["passed"]  # type: ignore[index]


def test_a_tensor_that_is_read_both_ways_is_left_alone_and_said_so(tmp_path: Path) -> None:
    """x @ W and y @ W.T: a reference has one tensor for both."""
    draw = np.random.default_rng(0)
    square = draw.standard_normal((WIDTH, WIDTH)).astype("float32") / 9
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Gemm", ["h", "w"], ["y"], transB=1)]
    nodes.append(node("MatMul", ["y", "other"], ["z"]))
    shapes = [value("x", [2, WIDTH])], [value("z", [2, WIDTH])]
    path = write(tmp_path, model(nodes, *shapes, w=square, other=square[::-1].copy()))
    session = compiled(path, tmp_path / "out", weights="int4")
    rounding = session.manifest.passes["rounding"]
    assert len(rounding["weights"]) == 1 and rounding["reasons"] == {"read in several ways": 1}
    assert session.manifest.verification["passed"]  # type: ignore[index]


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_matrices_of_16_bits_are_refused_and_not_passed_over(tmp_path: Path, weights: Any) -> None:
    low = TensorProto.FLOAT16
    held = {"w": np.ones((WIDTH, HIDDEN), "float16")}
    path = write(tmp_path, model([node("MatMul", ["x", "w"], ["y"])], [value("x", [2, WIDTH], low)],
                                 [value("y", [2, HIDDEN], low)], **held))  # fmt: skip
    with pytest.raises(InvalidOption, match="this model's are float16") as refused:
        compiled(path, tmp_path / "out", weights=weights)
    assert "in float32" in refused.value.remedy


def test_a_program_of_torch(tmp_path: Path) -> None:
    import torch

    from tests.frontend.pt2.support import export

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.up = torch.nn.Linear(WIDTH, HIDDEN)
            self.down = torch.nn.Linear(HIDDEN, WIDTH)
            self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(self.down(torch.relu(self.up(self.table(ids)))))
            return result

    torch.manual_seed(0)
    path = export(tmp_path / "m.pt2", Decoder(), torch.tensor([1, 2, 3]))
    session = compiled(path, tmp_path / "out", weights="int4")
    assert [row["rule"] for row in session.manifest.schedule].count("cpu.matmul_blocks") == 3
    (row,) = session.manifest.verification["outputs"]  # type: ignore[index]
    assert row["passed"] and 0 < row["unrounded"]["error"] < 0.3


def _swapped(*parts: Any) -> Any:
    """Codes with the two nibbles of each byte swapped."""
    words, *rest = blocks_compute.pack(*parts)
    data = words.view(np.uint8)
    return ((data >> 4) | (data << 4)).view(words.dtype), *rest


def _shifted(*parts: Any) -> Any:
    """The scale of each block is that of the next."""
    words, scales, *rest = blocks_compute.pack(*parts)
    return words, np.roll(scales, 1, axis=1), *rest


@pytest.mark.parametrize("fault", [_swapped, _shifted])
def test_a_fault_in_the_packing_is_found(tmp_path: Path, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from relaxc.schedules.cpu import planning

    monkeypatch.setattr(planning, "pack_blocks", fault)
    with pytest.raises(VerificationFailed):
        compiled(decoder(tmp_path), tmp_path / "out", weights="int4")


def test_a_wrong_zero_point_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relaxc.service.passes.layout import pack_block_weights
    from tests.frontend.onnx.test_block_weights import n_bits

    path, _ = n_bits(tmp_path, 1, 512, 64, 32, 4, True)
    right = pack_block_weights.block_weights

    def wrong(*parts: Any) -> Any:
        found = right(*parts)
        return None if found is None else replace(found, zeros=(found.zeros + 1) % 16)

    monkeypatch.setattr(pack_block_weights, "block_weights", wrong)
    with pytest.raises(VerificationFailed):
        compiled(path, tmp_path / "out")


def test_small_weights_take_the_room_that_the_models_do(tmp_path: Path) -> None:
    """A 3x3 convolution for which Winograd's algorithm is the default."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64, 3, 3)).astype("float32") / 24
    conv = node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    made = model([conv], [value("x", [1, 64, 28, 28])], [value("y", [1, 64, 28, 28])], w=weight)
    path = write(tmp_path, made)
    cores = '{"kind": "llvm", "mcpu": "x86-64-v3", "cores": 2}'  # with more of them another algorithm is the default
    small, other = (compiled(path, tmp_path / str(each), cores, small_weights=each) for each in (True, False))
    tables = [session.manifest.weights for session in (small, other)]
    sizes = [sum(4 * math.prod(each.shape) for each in table.tensors) for table in tables]
    assert sizes[0] == weight.nbytes < sizes[1]
    assert small.manifest.verified and other.manifest.verified
    x = rng.standard_normal((1, 64, 28, 28)).astype("float32")
    np.testing.assert_allclose(small(x=x)["y"], other(x=x)["y"], atol=1e-4)
