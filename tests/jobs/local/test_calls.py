"""The library's compile: real models, the same path as the server's, nothing left when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import relaxc
from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, ModelNotFound, UnknownFormat
from relaxc.service.jobs.local import calls as local
from relaxc.service.process.task import Flavour
from relaxc.service.request import CompileOptions, ModelFormat
from tests.api.conftest import ROOT, make_onnx
from tests.waiting import PATIENCE_S, gone


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store of this module's own, and no worker after it."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAXC_CACHE_DIR", str(cache))
        settings.cache_clear()
        local._backend_of.cache_clear()
        yield cache
        local.local_backend().close()
        local._backend_of.cache_clear()
    settings.cache_clear()
    assert list((cache / "jobs").iterdir()) == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(make_onnx(8))
    return path


def test_a_model_becomes_a_verified_artifact_and_then_a_hit(model: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    made = relaxc.compile(model, output=tmp_path / "net.so", on_event=events.append)
    assert not made.cached
    assert made.manifest.verified
    assert made.path == tmp_path / "net.so"
    assert made.build_record["stages"].keys() >= {"import", "optimize", "schedule", "build", "verify", "pack"}
    stages = [event["stage"] for event in events if event["event"] == "stage" and event["state"] == "done"]
    assert stages == ["import", "optimize", "schedule", "build", "verify", "pack"]
    again = relaxc.compile(model.read_bytes())
    assert again.cached
    assert (again.digest, again.build_record) == (made.digest, made.build_record)
    assert again.path.read_bytes() == (tmp_path / "net.so").read_bytes()
    x = np.random.default_rng(0).standard_normal((2, 8), np.float32)
    weight = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    y = relaxc.load(made.path)({"x": x})["y"]
    np.testing.assert_allclose(y, np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-5)


def test_two_compiles_of_one_request_are_equal_bit_for_bit(model: Path) -> None:
    request = local.prepare(model)
    first, second = (local.compile_local(request, force=True) for _ in range(2))
    assert not first.cached
    assert not second.cached
    assert first.digest == second.digest


def test_other_weights_take_the_kernels_that_are_there(tmp_path: Path, own_cache: Path) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    first.write_bytes(make_onnx(24, seed=1))
    second.write_bytes(make_onnx(24, seed=2))
    made = [relaxc.compile(model) for model in (first, second)]
    steps = [artifact.build_record["timings"] for artifact in made]
    assert "kernels.made" in steps[0]
    assert "kernels.found" in steps[1]
    assert not {"kernels.made", "llvm", "emit"} & steps[1].keys()
    for path in (own_cache / "kernels").rglob("*.o"):
        path.write_bytes(path.read_bytes()[:-1])
    again = local.compile_local(local.prepare(second), force=True)
    assert "kernels.made" in again.build_record["timings"]
    assert again.digest == made[1].digest != made[0].digest


def test_a_hit_with_a_wrong_byte_is_removed_and_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(make_onnx(9))
    request = local.prepare(tmp_path / "net.onnx", options=CompileOptions(verify=False))
    kept = local.compile_local(request)
    good = kept.path.read_bytes()
    manifest = good.index(kept.manifest.to_json().encode())
    for at in (len(good) // 3, manifest):  # a manifest that cannot be read is damage, too
        bad = bytearray(good)
        bad[at] ^= 1
        kept.path.chmod(0o644)
        kept.path.write_bytes(bad)
        made = local.compile_local(request, output=tmp_path / "net.so")
        assert not made.cached
        assert made.path.read_bytes() == kept.path.read_bytes() == good
    assert local.compile_local(request, output=tmp_path / "net.so").cached


def test_a_dump_is_written_also_when_the_store_has_it(model: Path, tmp_path: Path) -> None:
    request = local.prepare(model)
    local.compile_local(request)
    local.compile_local(request, dump_dir=tmp_path / "dump")
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names[0].startswith("00_")
    assert len(names) > 3


@pytest.mark.slow
def test_inspect_runs_in_a_child(model: Path) -> None:
    info = local.inspect_local(model, ModelFormat.ONNX)
    assert info["op_counts"] == {"MatMul": 1, "Relu": 1}
    assert info["unsupported"] == {}


def test_a_worker_starts_while_the_request_is_looked_up(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(local.local_backend().pool, "warm", lambda *flavours: started.extend(flavours))
    for path in (model, model.parent / "none.onnx", Path(__file__), model.parent):
        local.warm_for(path)
    assert started == [Flavour.ONNX]


def test_what_cannot_be_compiled(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ModelNotFound):
        relaxc.compile(tmp_path / "none.onnx")
    with pytest.raises(UnknownFormat):
        relaxc.compile(b"hello")
    with pytest.raises(InvalidOption, match="cannot write"):
        relaxc.compile(model, output=tmp_path / "none" / "net.so")


def test_an_exception_of_the_listener_comes_through_and_ends_the_compile(model: Path) -> None:
    def listen(event: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        relaxc.compile(model, options=CompileOptions(seed=7), on_event=listen)
    assert local.local_backend().queue.counts() == (0, 0)
    assert relaxc.compile(model, options=CompileOptions(seed=7)).manifest.verified


_WAITS = """
import sys, time, relaxc
def listen(event):
    print("started", flush=True)
    time.sleep(600)
if __name__ == "__main__":
    relaxc.compile(sys.argv[1], on_event=listen)
"""


@pytest.mark.sampled("2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_program_leaves_no_process(model: Path, number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "RELAXC_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", _WAITS, model]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=ROOT
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"started\n"
        below = psutil.Process(program.pid).children(recursive=True)
        assert below
        program.send_signal(number)
        program.communicate(timeout=PATIENCE_S)
    assert gone(below)
    assert number == signal.SIGKILL or not list((tmp_path / "cache" / "jobs").iterdir())
