"""What the server is loaded with: artifacts that it has compiled, a large model that nobody has to compile."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.service.server import Server
from relaxc.service.client import Client
from relaxc.service.request import CompileOptions

__all__ = ["Work", "large_model", "prepare"]

_LARGE_WIDTH, _SMALL_WIDTH = 5120, 8
_DOC_STRING = 6
"""Field of onnx.ModelProto."""


@dataclass(frozen=True, slots=True)
class Work:
    """Digests: an artifact of 100 MB and a small one, and the model of the second; `job` made it."""

    large: str
    small: str
    model: str
    job: str


def prepare(folder: Path) -> Work:
    """Compiles what is not there yet; the server's cache is in the folder and stays."""
    told = folder / "work.json"
    if told.exists():
        return Work(**json.loads(told.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    with Server(folder / "cache") as server, Client(server.url) as client:
        digests = {}
        for name, width in (("large", _LARGE_WIDTH), ("small", _SMALL_WIDTH)):
            path = folder / f"{name}.onnx"
            path.write_bytes(_model(width))
            options = CompileOptions(opt_level=1, verify=False)
            digests[name] = client.compile(path, folder / f"{name}.so", options=options).digest
        model = client.upload(folder / "small.onnx").digest
        job = client.jobs(kind="compile", model=model).jobs[0].id
    work = Work(digests["large"], digests["small"], model, job)
    told.write_text(json.dumps(asdict(work)))
    return work


def large_model(folder: Path, size_bytes: int) -> tuple[Path, str]:
    """A file of that size that is an ONNX model, and its SHA-256: zeros, as the comment of a small one."""
    path, small = folder / "huge.onnx", _model(_SMALL_WIDTH)
    if not path.exists() or path.stat().st_size != size_bytes:
        comment = size_bytes - len(small) - 1 - 5
        with path.open("wb") as file:
            file.write(small + bytes([_DOC_STRING << 3 | 2]) + _varint(comment, 5))
            file.truncate(size_bytes)
    with path.open("rb") as file:
        return path, hashlib.file_digest(file, "sha256").hexdigest()


def _varint(value: int, length: int) -> bytes:
    """The protobuf varint, padded to `length` bytes."""
    parts = [value >> 7 * i & 0x7F for i in range(length)]
    return bytes([*(part | 0x80 for part in parts[:-1]), parts[-1]])


def _model(width: int) -> bytes:
    """y = relu(x @ w) with a square w of `width`: its artifact has four bytes for each of its numbers."""
    import numpy as np
    import onnx

    weight = np.random.default_rng(0).standard_normal((width, width), np.float32)
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Relu", ["h"], ["y"])],
        "net",
        [info("x", onnx.TensorProto.FLOAT, [2, width])],
        [info("y", onnx.TensorProto.FLOAT, [2, width])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opset = onnx.helper.make_opsetid("", 17)
    return bytes(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())
