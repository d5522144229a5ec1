"""`compile`, `run`, `inspect` and `cache` on the real compiler: tiny models, a cache of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
import pytest

import relaxc
from relaxc.service.artifact.compiled import CompiledArtifact
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.cli.main import main
from relaxc.service.errors import InvalidOption
from tests.cli.conftest import ROOT, Relaxc
from tests.frontend.onnx.harness import model as onnx_model
from tests.frontend.onnx.harness import node, value, write
from tests.triton_kernels import EXAMPLE, needs_triton
from tests.waiting import PATIENCE_S, gone
from tests.zoo import export


@pytest.fixture(scope="session")
def model() -> Path:
    return export("mlp", "onnx", dynamic=True)


@pytest.fixture(scope="session")
def artifact(relaxc: Relaxc, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model compiled by the command, which leaves it in the cache."""
    path = tmp_path_factory.mktemp("compiled") / "mlp.so"
    done = relaxc("compile", model, "-o", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(path))
    assert "passed: " in done.stdout
    lines = [line.split()[0] for line in done.stderr.splitlines()]
    assert lines == ["import", "optimize", "schedule", "build", "verify", "pack"]
    return path


def _json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_a_second_compile_comes_from_the_store_with_equal_bytes(
    relaxc: Relaxc, model: Path, artifact: Path, tmp_path: Path
) -> None:
    again = _json(relaxc("compile", model, "-o", tmp_path / "again.so", "--json"))
    assert again["cached"]
    assert again["manifest"]["verification"]["passed"]
    assert (tmp_path / "again.so").read_bytes() == artifact.read_bytes()
    assert again["size_bytes"] == artifact.stat().st_size
    assert [entry.name for entry in tmp_path.iterdir()] == ["again.so"]


@pytest.mark.slow
def test_force_compiles_again_to_equal_bytes(relaxc: Relaxc, model: Path, artifact: Path, tmp_path: Path) -> None:
    forced = _json(relaxc("compile", model, "-o", tmp_path / "forced.so", "--force", "--json"))
    assert not forced["cached"]
    assert (tmp_path / "forced.so").read_bytes() == artifact.read_bytes()


@pytest.mark.slow
def test_options_reach_the_compiler_and_a_dump_is_numbered(relaxc: Relaxc, model: Path, tmp_path: Path) -> None:
    options = ("-O1", "--precision", "bf16", "--seed", "7", "--dump", tmp_path / "dump", "--target", "x86-64-v3")
    made = _json(relaxc("compile", model, "-o", tmp_path / "a.so", *options, "--json"))
    manifest = made["manifest"]
    assert {"opt_level": 1, "precision": "bf16", "seed": 7, "verify": True}.items() <= manifest["options"].items()
    assert manifest["target"]["name"] == "x86-64-v3"
    dumped = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert len(dumped) > 3
    assert [int(file.partition("_")[0]) for file in dumped] == list(range(len(dumped)))


@pytest.mark.slow
def test_a_shape_fixes_a_symbolic_dim(relaxc: Relaxc, model: Path, artifact: Path, tmp_path: Path) -> None:
    signature = Manifest.read(artifact).signature
    spec = signature.inputs[0]
    assert isinstance(spec.shape[0], str)
    shape = ",".join(["5", *map(str, spec.shape[1:])])
    done = _json(relaxc("compile", model, "-o", tmp_path / "five.so", "--shape", f"{spec.name}={shape}", "--json"))
    assert done["manifest"]["signature"]["inputs"][0]["shape"][0] == 5
    refused = relaxc("compile", model, "-o", tmp_path / "no.so", "--shape", f"nobody={shape}", "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["error"]["code"] == "invalid-shape"


def test_a_command_ends_without_waiting_for_threads_that_look_for_work(relaxc: Relaxc, artifact: Path) -> None:
    """TVM joins them at exit: on a busy machine, where they yield to everybody, that took twenty minutes."""
    done = relaxc("run", artifact, "--fill", "random", "--threads", 2, TVM_THREAD_POOL_SPIN_COUNT="1000000000")
    assert (done.returncode, done.stderr) == (0, "")
    assert "first run took" in done.stdout


def test_run_gives_what_onnxruntime_gives(relaxc: Relaxc, model: Path, artifact: Path, tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    spec = Manifest.read(artifact).signature.inputs[0]
    for batch in (1, 4):
        shape = [batch, *spec.shape[1:]]
        inputs = {spec.name: np.random.default_rng(batch).standard_normal(shape, np.float32)}
        np.savez(tmp_path / "in.npz", **inputs)
        done = relaxc("run", artifact, "-i", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--threads", 1)
        assert done.returncode == 0, done.stderr
        got = np.load(tmp_path / "out.npz")
        assert got.files == [output.name for output in session.get_outputs()]
        for name, want in zip(got.files, session.run(None, inputs), strict=True):
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_run_fills_what_is_not_given_the_same_for_equal_seeds(relaxc: Relaxc, artifact: Path) -> None:
    dim = Manifest.read(artifact).signature.dims[0][0]
    fill = ("--fill", "random", "--dim", f"{dim}=3", "--json")
    one, two, other = (_json(relaxc("run", artifact, *fill, "--seed", seed))["outputs"] for seed in (1, 1, 2))
    assert one == two != other
    assert one[0]["shape"][0] == 3
    assert one[0]["nonfinite"] == 0


def test_run_loads_neither_tvms_compiler_nor_torch(artifact: Path, cli_env: dict[str, str]) -> None:
    code = (
        "import os, sys; from relaxc.service.cli.main import main\n"
        f"assert main(['run', {str(artifact)!r}, '--fill', 'random']) == 0\n"
        "mapped = open('/proc/self/maps').read()\n"
        "assert 'libtvm_runtime' in mapped and 'libtvm_compiler' not in mapped and 'libtorch' not in mapped\n"
        "assert 'TVM_USE_RUNTIME_LIB' not in os.environ"
    )
    done = subprocess.run([sys.executable, "-c", code], env=cli_env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_wrong_inputs_exit_7(artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = Manifest.read(artifact).signature.inputs[0].name
    cases = {
        "input-name": {"nobody": np.zeros(3, np.float32)},
        "input-type": {name: np.zeros((1, 16), np.float64)},
        "input-shape": {name: np.zeros(3, np.float32)},
    }
    for code, arrays in cases.items():
        np.savez(tmp_path / "in.npz", **arrays)
        assert main(["run", str(artifact), "-i", str(tmp_path / "in.npz"), "--json"]) == 7
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert main(["run", str(artifact)]) == 7
    assert main(["run", str(artifact), "--fill", "random", "--dim", "nobody=3"]) == 7


def test_files_that_are_no_artifacts_exit_6(artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.so").write_bytes(artifact.read_bytes()[:1000])
    (tmp_path / "text.so").write_text("hello")
    for path in (tmp_path / "cut.so", tmp_path / "text.so", tmp_path / "missing.so", Path(sys.executable)):
        assert main(["run", str(path), "--fill", "random", "--json"]) == 6
        assert json.loads(capsys.readouterr().out)["error"]["code"].startswith("artifact-")


def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for verb, code in (("inspect", 3), ("compile", 3), ("run", 6), ("bench", 6), ("profile", 6), ("package", 6)):
        output = ["-o", str(tmp_path / "made")] if verb in ("compile", "package") else []
        assert main([verb, str(pipe), *output, "--json"]) == code
        assert "no regular file" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.slow
def test_inspect_tells_a_model_from_an_artifact(relaxc: Relaxc, model: Path, artifact: Path) -> None:
    found = _json(relaxc("inspect", model, "--json"))
    assert (found["kind"], found["format"], found["supported"]) == ("model", "onnx", True)
    assert sum(found["op_counts"].values()) > 0
    packed = _json(relaxc("inspect", artifact, "--json"))
    assert packed["kind"] == "artifact"
    assert packed["manifest"]["signature"] == found["signature"]
    shown = relaxc("inspect", artifact).stdout
    assert "rebuild" in shown
    assert "passed: " in shown


@pytest.mark.slow
def test_inspect_names_every_unsupported_node(relaxc: Relaxc, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first", domain="org.nobody"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Frobnicate", ["b"], ["y"], name="second", domain="org.nobody"),
    ]
    io = [value(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.nobody", 1)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", io[:1], io[1:]), opset_imports=opsets), tmp_path / "m.onnx"
    )
    shown = relaxc("inspect", tmp_path / "m.onnx")
    assert shown.returncode == 0, shown.stderr
    assert "first, second" in shown.stdout
    assert "1 operator is not supported" in shown.stdout
    refused = relaxc("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.so")
    assert refused.returncode == 3
    assert "[unsupported-model]" in refused.stderr


@pytest.mark.slow
def test_the_cache_lists_explains_and_shrinks(relaxc: Relaxc, model: Path, tmp_path: Path, artifact: Path) -> None:
    listed = _json(relaxc("cache", "ls", "--json"))
    assert any(entry["size_bytes"] == artifact.stat().st_size for entry in listed["artifacts"])
    assert listed["kernels"]["count"] >= 1
    assert 0 < listed["kernels"]["size_bytes"] <= listed["kernels"]["max_bytes"]
    assert "artifacts, " in relaxc("cache", "ls").stdout
    hit = _json(relaxc("cache", "explain", model, "--json"))
    assert hit["hit"]
    miss = _json(relaxc("cache", "explain", model, "--seed", 99, "--json"))
    assert not miss["hit"]
    assert miss["differences"]["option.seed"]["wanted"] == "99"
    assert "option.seed" in relaxc("cache", "explain", model, "--seed", 99).stdout
    assert relaxc("cache", "explain", model).stdout.startswith("hit: ")
    empty = {"RELAXC_CACHE_DIR": str(tmp_path / "empty")}
    assert "no other key" in relaxc("cache", "explain", model, **empty).stdout
    assert _json(relaxc("cache", "gc", "--json", **empty)) == {
        "removed": [],
        "freed_bytes": 0,
        "kernels_freed_bytes": 0,
    }
    assert relaxc("cache", "gc").stdout.startswith("removed 0 artifacts")


@pytest.mark.sampled("2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_compile_and_leaves_no_child(
    cli_env: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    model = export("cnn", "onnx")
    command = [sys.executable, "-m", "relaxc", "compile", str(model), "-o", str(tmp_path / "x.so"), "--force"]
    process = subprocess.Popen(command, env=cli_env, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("import")
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert gone(children)
    assert not any(tmp_path.iterdir())


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    relaxc: Relaxc, model: Path, tmp_path: Path
) -> None:
    done = relaxc("compile", model, "-o", tmp_path / "nowhere" / "x.so")
    assert done.returncode == 2
    assert not done.stderr.startswith("import")  # the first stage
    assert not any(tmp_path.iterdir())


def test_an_output_that_is_a_pipe_or_the_model_stays_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx_model([node("Relu", ["x"], ["y"])], [value("x", (2, 3))], [value("y", (2, 3))])
    model, pipe = write(tmp_path, proto), tmp_path / "out.so"
    before = model.read_bytes()
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(model)
    for output, why in ((pipe, "no regular file"), (model, "the model"), (tmp_path / "link", "the model")):
        assert main(["compile", str(model), "-o", str(output), "--json"]) == 2
        assert why in json.loads(capsys.readouterr().out)["error"]["message"]
        with pytest.raises(InvalidOption, match=why):
            relaxc.compile(model, output=output)
    with pytest.raises(InvalidOption, match="no regular file"):
        CompiledArtifact("", model, (model,), None, {}, True).copy_to(pipe)  # type: ignore[arg-type]  # not looked at
    assert pipe.is_fifo() and model.read_bytes() == before


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("rows", [33, "n"])
def test_a_triton_kernel_is_named_or_why_it_is_left_out(relaxc: Relaxc, rows: int | str, tmp_path: Path) -> None:
    """And `--dump` has its PTX, in place of the text that stands for it."""
    names = ["x", "b", "y"]
    nodes = [node("Gelu", ["x"], ["g"]), node("Add", ["g", "b"], ["y"])]
    x, b, y = (value(name, [rows, 77]) for name in names)
    net = write(tmp_path, onnx_model(nodes, [x, b], [y], opset=20))
    wanted = ["--target", "cuda-sm90", "--plugin", EXAMPLE, "--dump", tmp_path / "dump"]
    done = relaxc("compile", net, "-o", tmp_path / "m.so", *wanted)
    assert done.returncode == 0, done.stderr
    said, dumped = " ".join(done.stdout.split()), {path.suffix for path in (tmp_path / "dump").iterdir()}
    if rows == "n":
        assert "left out triton: fused_gelu_add.gelu_add: it takes sizes that are known at compile time" in said
        assert ".ptx" not in dumped and ".cu" in dumped
    else:
        assert "triton: fused_gelu_add.gelu_add" in said and "left out" not in said
        assert ".ptx" in dumped and ".cu" not in dumped
