"""GroupQueryAttention and RotaryEmbedding beside ONNX Runtime, in several steps behind a past, and in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.frontend.onnx.harness import INT64, check, compiled, model, node, value, write

RNG = np.random.default_rng(0)
INT32, MS = TensorProto.INT32, "com.microsoft"
TABLES = {name: RNG.standard_normal((16, 4)).astype("float32") for name in ("cos", "sin")}

WIDE = {name: RNG.standard_normal((16, 8)).astype("float32") for name in TABLES}


def _w(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


@pytest.mark.parametrize("attributes", [{}, {"do_rotary": 1, "softcap": 5.0, "local_window_size": 4}])
def test_steps_behind_a_past(attributes: dict[str, Any], tmp_path: Path) -> None:
    names = ["q", "k", "v", "pk", "pv", "last", "total", *(TABLES if attributes else ())]
    given = node("GroupQueryAttention", names, ["y", "nk", "nv"], domain=MS, num_heads=4, kv_num_heads=2, **attributes)
    inputs = [value("q", ["b", "n", 64]), value("k", ["b", "n", 32]), value("v", ["b", "n", 32]),
              value("pk", ["b", 2, "past", 16]), value("pv", ["b", 2, "past", 16]), value("last", ["b"], INT32),
              value("total", [], INT32)]  # fmt: skip
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "nk", "nv")]
    proto = model([given], inputs, outs, opset=17, **(WIDE if attributes else {}))
    ours, theirs = compiled(tmp_path, proto), onnxruntime.InferenceSession(proto.SerializeToString())
    for batch, before, now in ((1, 3, 4), (2, 5, 1)):
        call = {"q": _w(batch, now, 64), "k": _w(batch, now, 32), "v": _w(batch, now, 32)}
        call |= {name: _w(batch, 2, before, 16) for name in ("pk", "pv")}
        call |= {"last": np.full(batch, before + now - 1, "int32"), "total": np.array(before + now, "int32")}
        got = ours(**call)
        for name, want in zip(("y", "nk", "nv"), theirs.run(None, call), strict=True):
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=f"{name}, {before}")


def test_a_prompt_in_one_operand(tmp_path: Path) -> None:
    """Rows of several lengths: what is behind a row's end nobody reads."""
    names, attributes = ["x", "", "", "", "", "last", "total", *WIDE], {"num_heads": 4, "kv_num_heads": 2}
    given = node("GroupQueryAttention", names, ["y", "nk", "nv"], domain=MS, do_rotary=1, **attributes)
    inputs = [value("x", ["b", "n", 128]), value("last", ["b"], INT32), value("total", [], INT32)]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "nk", "nv")]
    proto = model([given], inputs, outs, opset=17, **WIDE)
    ours, theirs = compiled(tmp_path, proto), onnxruntime.InferenceSession(proto.SerializeToString())
    call = {"x": _w(2, 6, 128), "last": np.array([5, 3], "int32"), "total": np.array(6, "int32")}
    got, want = ours(**call), theirs.run(None, call)
    np.testing.assert_allclose(got["y"][0], want[0][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["y"][1, :4], want[0][1, :4], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["nk"][0], want[1][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_turned_pairs(interleaved: int, tmp_path: Path) -> None:
    nodes = [
        node("RotaryEmbedding", ["x", "at", "cos", "sin"], ["y"], domain=MS, interleaved=interleaved),
        node("RotaryEmbedding", ["f", "from", "cos", "sin"], ["z"], domain=MS, interleaved=interleaved),
    ]
    inputs = [value("x", ["b", "n", 24]), value("at", ["b", "n"], INT64), value("f", ["b", 3, "n", 8]),
              value("from", [1], INT64)]  # fmt: skip
    outs = [value("y", ["b", "n", 24]), value("z", ["b", 3, "n", 8])]
    check(write(tmp_path, model(nodes, inputs, outs, opset=17, **TABLES)))
