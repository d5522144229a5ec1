"""A session on a GPU: verified there, tensors in and out without a copy, threads, weights that are shared.

Needs a GPU. The last run on one is named in docs/benchmarks_gpu.md.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service.config import settings
from relaxc.service.errors import InputType
from relaxc.service.runtime import Session, load
from tests.frontend.onnx.harness import model, node, value, write
from tests.gpu import needs_gpu

pytestmark = needs_gpu


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`relu(x @ w + b)` in fp16, and x as it came."""
    folder = tmp_path_factory.mktemp("gpu")
    draw = np.random.default_rng(0)
    w, b = (draw.standard_normal(shape).astype("float16") for shape in ((64, 96), (96,)))
    nodes = [node("Gemm", ["x", "w", "b"], ["sum"]), node("Relu", ["sum"], ["y"]), node("Identity", ["x"], ["same"])]
    low = TensorProto.FLOAT16
    outputs = [value("y", [32, 96], low), value("same", [32, 64], low)]
    net = write(folder, model(nodes, [value("x", [32, 64], low)], outputs, w=w, b=b))
    made = relaxc.compile(net, target="cuda", output=folder / "net.so")
    assert made.manifest.verified is True, made.manifest.verification
    return folder / "net.so"


@pytest.mark.parametrize("part", ["", "cuda-sm80", "cuda-sm90"])
def test_every_part_for_several_gpus_gives_the_same(artifact: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The first is machine code for sm_90a; `cuda-sm80` runs here by its PTX."""
    folder = artifact.parent
    made = relaxc.compile(folder / "model.onnx", target="cuda-sm80,cuda-sm90", output=folder / "both.so")
    assert made.manifest.verified is True and len(made.manifest.others) == 1
    monkeypatch.setenv("RELAXC_PART", part)
    settings.cache_clear()
    session = load(folder / "both.so")
    assert session.manifest.target.name == (part or "cuda-sm90")
    np.testing.assert_allclose(session(x=x_of(1))["y"], load(artifact)(x=x_of(1))["y"], rtol=2e-3, atol=2e-2)
    monkeypatch.undo()
    settings.cache_clear()


def x_of(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((32, 64)).astype("float16")


def test_tensors_go_in_and_out_without_a_copy(artifact: Path) -> None:
    torch = pytest.importorskip("torch")
    session = load(artifact)
    first, second = (torch.from_numpy(x_of(seed)).cuda() for seed in (1, 2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kept = {n: torch.from_dlpack(t) for n, t in session.on_device({"x": first}, stream=stream.cuda_stream).items()}
        session.on_device({"x": second}, stream=stream.cuda_stream)
    stream.synchronize()
    want = session(x=x_of(1))
    assert kept["y"].is_cuda and np.array_equal(kept["y"].cpu().numpy(), want["y"])
    assert kept["same"].data_ptr() != first.data_ptr(), "what a caller gets is its own"
    with pytest.raises(InputType, match="must be on cuda"):
        session.on_device({"x": x_of(1)})


def test_sessions_in_threads_share_weights_and_give_what_each_gives_alone(artifact: Path) -> None:
    sessions: list[Session] = [load(artifact) for _ in range(8)]
    assert len({session._code.weights[0].data_ptr() for session in sessions}) == 1
    want = [sessions[0](x=x_of(seed))["y"] for seed in range(8)]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            if not np.array_equal(sessions[index](x=x_of(index))["y"], want[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_bound_call_reads_and_writes_arrays_of_the_host(artifact: Path) -> None:
    """No run on a GPU is replayed: its kernels are in a CUDA graph already."""
    session = load(artifact)
    x, y = x_of(1), np.zeros((32, 96), "float16")
    bound = session.bind({"x": x}, {"y": y})
    for seed in (1, 2, 3):
        x[...] = x_of(seed)
        assert bound()["y"] is y and np.array_equal(y, session(x=x_of(seed))["y"])
        assert np.array_equal(bound.outputs["same"], x)
    assert session._programs.first.replays.find((), {"x": x}) is None
