"""Small ONNX models for tests, and a comparison of an import with ONNX Runtime through TVM's default build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import relaxc
from relaxc.service import compiler
from relaxc.service.frontend import ImportedModel, load, reference
from relaxc.service.request import CompileOptions, ModelFormat
from relaxc.service.signature import Signature
from tests import quickly

__all__ = ["check", "compiled", "inputs_for", "model", "node", "run", "value", "write"]

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
_TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """A NodeProto named after its first output."""
    return helper.make_node(op, list(inputs), list(outputs), name=f"{op}_{outputs[0]}", **attributes)


def value(name: str, shape: Sequence[int | str | None], dtype: int = FLOAT) -> Any:
    """A ValueInfoProto."""
    return helper.make_tensor_value_info(name, dtype, list(shape))


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    opset: int = 20,
    ml: int = 3,
    **weights: Any,
) -> Any:
    """A ModelProto; `weights` are arrays by name."""
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), initializers)
    others = {"com.microsoft": 1, "ai.onnx.ml": ml}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*each) for each in others.items())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def write(folder: Path, proto: Any, name: str = "model.onnx") -> Path:
    """The model in a file."""
    path = folder / name
    onnx.save(proto, path)
    return path


def sizes_for(signature: Signature, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """A size for each symbolic name: the given one, else one of 3, 4, 5, …, so that no two are equal."""
    given = dict(sizes or {})
    return {name: given.get(name, 3 + place) for place, (name, _) in enumerate(signature.dims)}


def concrete(shape: Sequence[int | str], sizes: Mapping[str, int]) -> list[int]:
    """A shape with numbers for names."""
    scope = {**sizes, "max": max, "min": min}
    return [dim if isinstance(dim, int) else eval(dim, {"__builtins__": {}}, scope) for dim in shape]  # noqa: S307


def inputs_for(signature: Signature, sizes: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, Any]:
    """Seeded inputs: masks are ones, other integers small enough for any vocabulary."""
    import ml_dtypes

    rng = np.random.default_rng(seed)
    known = sizes_for(signature, sizes)
    made: dict[str, Any] = {}
    for spec in signature.inputs:
        shape = concrete(spec.shape, known)
        dtype = ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else spec.dtype
        if "mask" in spec.name:
            made[spec.name] = np.ones(shape, dtype)
        elif spec.dtype == "bool":
            made[spec.name] = rng.random(shape) > 0.5
        elif spec.dtype.startswith(("int", "uint")):
            made[spec.name] = rng.integers(0, 8, shape).astype(dtype)
        else:
            made[spec.name] = rng.standard_normal(shape).astype(dtype)
    return made


def run(imported: ImportedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by name, through TVM's default pipeline for the CPU."""
    import tvm

    machine = quickly.machine_of(tvm.compile(imported.module, quickly.target()))
    arguments = [tvm.runtime.tensor(inputs[spec.name]) for spec in imported.signature.inputs]
    results = machine["main"](*arguments)
    return {spec.name: result.numpy() for spec, result in zip(imported.signature.outputs, results, strict=True)}


def compiled(folder: Path, proto: Any) -> relaxc.Session:
    """The model compiled into `folder` without verification, and loaded."""
    request = compiler.prepare(write(folder, proto), options=CompileOptions(verify=False))
    compiler.run(request, folder, lambda event: None)
    return relaxc.load(next(folder.glob("*.so")))


def check(
    path: Path, *, sizes: Mapping[str, int] | None = None, shapes: Mapping[str, Any] | None = None
) -> ImportedModel:
    """Imports, builds, runs and compares every output with ONNX Runtime; gives the import."""
    imported = load(path, ModelFormat.ONNX, shapes=dict(shapes or {}))
    compare(imported, path, sizes)
    return imported


def compare(imported: ImportedModel, path: Path, sizes: Mapping[str, int] | None = None) -> None:
    """Asserts that shape, dtype and numbers of each output are ONNX Runtime's, and the signature's."""
    signature = imported.signature
    inputs = inputs_for(signature, sizes)
    got, wanted = run(imported, inputs), reference(path, ModelFormat.ONNX)(inputs)
    known = sizes_for(signature, sizes)
    for spec in signature.outputs:
        a, b = got[spec.name], np.asarray(wanted[spec.name])
        assert a.dtype == b.dtype, f"{spec.name} is {a.dtype}, not {b.dtype}"
        assert str(a.dtype) == spec.dtype
        assert a.shape == b.shape, f"{spec.name} is {a.shape}, not {b.shape}"
        assert all(size == want for size, want in zip(a.shape, concrete(spec.shape, known), strict=True)), str(spec)
        if a.dtype.kind in "iub":
            assert (a == b).all(), spec.name
            continue
        a, b, tolerance = a.astype("float64"), b.astype("float64"), _TOLERANCE[spec.dtype]
        scale = np.abs(b[np.isfinite(b)]).max(initial=1e-6)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=spec.name)
