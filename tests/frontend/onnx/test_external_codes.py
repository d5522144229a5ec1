"""Codes of 4 bits in a file beside the model, two to a byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from relaxc.service.frontend.onnx.file import array


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("beyond", [0, 4096])
def test_they_are_what_the_file_says(tmp_path: Path, kind: int, beyond: int) -> None:
    low = -8 if kind == TensorProto.INT4 else 0
    values = np.random.default_rng(0).integers(low, low + 16, (33, 95))
    tensor = helper.make_tensor("w", kind, values.shape, values.ravel())
    data = tensor.raw_data or onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)).raw_data
    (tmp_path / "w.bin").write_bytes(b"x" * 64 + data + bytes(beyond))
    outside = onnx.TensorProto(data_type=kind, dims=values.shape, name="w", data_location=TensorProto.EXTERNAL)
    for key, entry in (("location", "w.bin"), ("offset", "64"), ("length", str(len(data)))):
        outside.external_data.add(key=key, value=entry)
    np.testing.assert_array_equal(array(outside, tmp_path).astype(np.int64), values)
