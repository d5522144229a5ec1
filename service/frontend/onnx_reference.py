"""ONNX Runtime as the reference; where it has no kernel for a dtype, the ONNX project's own evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.errors import ModelMalformed
from service.frontend.model import Reference
from service.frontend.onnx_file import one_line

__all__ = ["reference"]


def reference(path: Path, threads: int) -> Reference:
    """Runs the model at `path` on arrays by name; one thread makes it repeatable.

    Only basic graph optimizations are on, since the extended ones trade digits for speed. A model that
    ONNX Runtime has no kernels for (most of bfloat16) runs in onnx.reference, which is slow.
    Raises ModelMalformed when neither takes the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return _evaluator(path, error)
    names = [output.name for output in session.get_outputs()]
    if any("bfloat16" in value.type for value in (*session.get_inputs(), *session.get_outputs())):
        return _through_values(session, names)

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return run


def _through_values(session: Any, names: list[str]) -> Reference:
    """numpy has no bfloat16 that ONNX Runtime knows, so bits go in and out as OrtValues."""
    import ml_dtypes
    import numpy as np
    import onnxruntime

    kind = 16  # onnx.TensorProto.BFLOAT16
    bfloat16 = np.dtype(ml_dtypes.bfloat16)

    def value(array: Any) -> Any:
        if array.dtype != bfloat16:
            return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), kind)

    def array(result: Any) -> Any:
        if result.element_type() != kind:
            return result.numpy()
        import ctypes

        count = int(np.prod(result.shape()))
        bits = (ctypes.c_uint16 * count).from_address(result.data_ptr())
        return np.frombuffer(bits, bfloat16).reshape(result.shape()).copy()

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        results = session.run_with_ort_values(names, {name: value(data) for name, data in inputs.items()})
        return {name: array(result) for name, result in zip(names, results, strict=True)}

    return run


def _evaluator(path: Path, cause: Exception) -> Reference:
    import onnx
    import onnx.reference

    if "NOT_IMPLEMENTED" not in str(cause) and "INVALID_GRAPH" not in str(cause):
        raise ModelMalformed(f"ONNX Runtime refuses the model: {one_line(cause)}") from cause
    try:
        model = onnx.load(path)
        evaluator = onnx.reference.ReferenceEvaluator(model)
    except Exception as error:
        raise ModelMalformed(f"ONNX Runtime refuses the model: {one_line(cause)}") from error
    names = list(evaluator.output_names)

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, evaluator.run(None, dict(inputs)), strict=True))

    return run
