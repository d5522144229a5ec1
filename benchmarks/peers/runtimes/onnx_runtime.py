"""ONNX Runtime with all its graph optimizations."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from benchmarks.peers.cases import Case
from benchmarks.peers.files import onnx_path, read_inputs
from benchmarks.peers.runtimes import Loaded, Prepared

COUNTS = True


def version() -> str:
    """See Runtime."""
    return metadata.version("onnxruntime")


def supports(case: Case) -> bool:
    """See Runtime."""
    return True


def prepare(case: Case, folder: Path, threads: int) -> Prepared:
    """See Runtime."""
    return Prepared(onnx_path(case, folder).stat().st_size)


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(onnx_path(case, folder)), options, providers=["CPUExecutionProvider"])
    taken = {value.name for value in session.get_inputs()}
    inputs = {name: array for name, array in read_inputs(folder).items() if name in taken}
    return Loaded(lambda: session.run(None, inputs), list)
