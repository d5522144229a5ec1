"""Sessions of ONNX Runtime: at which level, with which of its rewrites, and what it raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.model import Reference
from relaxc.service.frontend.onnx.apart import SessionApart
from relaxc.service.frontend.onnx.exact import mixes_signs, with_equal_signs
from relaxc.service.frontend.onnx.file import one_line, outline
from relaxc.service.frontend.onnx.light import light

__all__ = [
    "UNVERIFIED",
    "bare_session",
    "open_here",
    "open_session",
    "reference_of",
    "runtime_errors",
]

UNVERIFIED = "--no-verify compiles it without a comparison."


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return what ONNX Runtime raises for a model that it does not take."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NotImplemented,
        state.RuntimeException,
    )


def open_session(
    model: str | bytes,
    threads: int,
    fastest: bool = False,
    optimized: Path | None = None,
    folds: bool = False,
    folder: Path | None = None,
    apart: bool = False,
) -> Any:
    """Return a session of ONNX Runtime, one `apart` in a process of its own; and one without optimizations where these
    make what it has no kernel for.

    It fuses products of 8-bit floats into a QGemm that takes bytes alone. With `folds` weights are dequantized once and
    not in each run; `folder` has the files with external data.
    """
    opened = SessionApart if apart else open_here
    given: dict[str, Any] = {"model": model, "threads": threads, "optimized": optimized, "folder": folder}
    try:
        return opened(level="ORT_ENABLE_ALL" if fastest else "ORT_ENABLE_BASIC", folds=folds, **given)
    except runtime_errors():
        return opened(level="ORT_DISABLE_ALL", **given)


def bare_session(model: str | bytes, threads: int = 1, *, apart: bool = False) -> Any:
    """Return a session that runs a model as it is. Raise one of `runtime_errors`."""
    return (SessionApart if apart else open_here)(level="ORT_DISABLE_ALL", model=model, threads=threads)


def open_here(
    *,
    level: str,
    model: str | bytes,
    threads: int,
    optimized: Path | None = None,
    folder: Path | None = None,
    folds: bool = False,
) -> Any:
    """Return a session in this process, at one of ONNX Runtime's levels. Raise one of `runtime_errors`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    if level != "ORT_ENABLE_ALL":  # what is timed is as its users have it
        model, folder = _exact(model, folder)
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Only fatal messages: what a session refuses comes as an exception.
    options.log_severity_level = 4
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    if folds:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    if level != "ORT_ENABLE_ALL":  # weights that few runs read are packed for nothing
        options.add_session_config_entry("session.disable_prepacking", "1")
    # Of a zero Pad before a MaxPool it makes padding with -inf. What is moved bounds what may be off, so it has none of
    # that; the reference itself may have it, as any optimization may be wrong: there is a second opinion for that.
    wrong = ["Pad_Fusion"] if folds or optimized is not None else []
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
        wrong.append("MatMulAddFusion")  # its names cannot be made twice
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model, options, providers=providers, disabled_optimizers=wrong)


def _exact(model: str | bytes, folder: Path | None) -> tuple[str | bytes, Path | None]:
    """The model, and the folder of its external data, with products of bytes that saturate on no CPU."""
    import onnx

    if not mixes_signs(outline(Path(model)) if isinstance(model, str) else model):
        return model, folder
    changed = light(Path(model)) if isinstance(model, str) else onnx.load_from_string(model)
    if not with_equal_signs(changed):
        return model, folder
    return changed.SerializeToString(), Path(model).parent if isinstance(model, str) else folder


_OTHER = re.compile(r"bfloat16|float[48]|int[24]\b")
"""`tensor(bfloat16)`, `tensor(float8e4m3fn)`, `tensor(uint4)`: of these it takes and gives no array of numpy's."""


def reference_of(session: Any) -> Reference:
    """Return what runs a session on arrays by name. It raises ModelMalformed where that stops.

    Raise one of `runtime_errors` for inputs and outputs of which ONNX Runtime has no arrays.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    values = (*session.get_inputs(), *session.get_outputs())
    if any(_OTHER.search(value.type) is not None for value in values):
        raise state.NotImplemented("it takes no arrays of bfloat16 and of fewer bits")
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))
        except runtime_errors() as error:
            raise ModelMalformed(f"ONNX Runtime stops in the model: {one_line(error)}", remedy=UNVERIFIED) from error

    return run
