"""OpenVINO with float32 as its inference precision."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.files import onnx_path, read_inputs
from benchmarks.peers.runtimes import Loaded, Prepared

COUNTS = True


def version() -> str:
    """See Runtime."""
    return metadata.version("openvino")


def supports(case: Case) -> bool:
    """See Runtime."""
    return True


def prepare(case: Case, folder: Path, threads: int) -> Prepared:
    """See Runtime."""
    return Prepared(onnx_path(case, folder).stat().st_size)


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    return load_with(case, folder, threads, {"INFERENCE_PRECISION_HINT": "f32"})


def load_with(case: Case, folder: Path, threads: int, properties: dict[str, Any]) -> Loaded:
    """The model compiled for latency on `threads` threads. Outputs are shared with the request, not copied."""
    import openvino

    wanted = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, **properties}
    compiled = openvino.Core().compile_model(str(onnx_path(case, folder)), "CPU", wanted)
    if compiled.get_property("INFERENCE_NUM_THREADS") != threads:
        raise ValueError(f"OpenVINO takes {compiled.get_property('INFERENCE_NUM_THREADS')} threads, not {threads}")
    request = compiled.create_infer_request()
    taken = {name for port in compiled.inputs for name in port.get_names()}
    inputs = {name: array for name, array in read_inputs(folder).items() if name in taken}
    return Loaded(
        lambda: request.infer(inputs, share_inputs=True, share_outputs=True),
        lambda result: [result[port] for port in compiled.outputs],
    )
