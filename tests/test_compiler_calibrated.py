"""`--precision int8`: a model in floats and samples in, a verified artifact out that says how far it is from floats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service import compiler, frontend
from relaxc.service.artifact.key import key_for
from relaxc.service.compiling import calibration, verifier
from relaxc.service.errors import InvalidOption, UnsupportedModel, VerificationFailed
from relaxc.service.request import Calibration, CompileOptions, CompileRequest, Precision
from relaxc.service.runtime.loading import load
from relaxc.service.runtime.session import Session
from tests.frontend.onnx.harness import model, node, value, write
from tests.schedules.spaces import BYTES

RNG = np.random.default_rng(0)


def network(folder: Path) -> Path:
    held = {"a": RNG.standard_normal((16, 3, 3, 3)) / 5, "b": RNG.standard_normal((16, 16, 3, 3)) / 12}
    nodes = [
        node("Conv", ["x", "a"], ["p"], pads=[1, 1, 1, 1]),
        node("Relu", ["p"], ["r"]),
        node("Conv", ["r", "b"], ["q"], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["q"], ["y"]),
    ]
    arrays: dict[str, Any] = {name: array.astype("float32") for name, array in held.items()}
    return write(folder, model(nodes, [value("x", [1, 3, 12, 12])], [value("y", [1, 16, 1, 1])], **arrays))


def samples(folder: Path, seed: int = 0, name: str = "samples.npz") -> Path:
    draw = np.random.default_rng(seed).standard_normal((8, 3, 12, 12)).astype("float32")
    np.savez(folder / name, x=draw)
    return folder / name


def options(given: str, **others: Any) -> CompileOptions:
    return CompileOptions(precision=Precision.INT8, calibration=Calibration(given, **others))


def compiled(request: CompileRequest, workdir: Path) -> Session:
    workdir.mkdir(exist_ok=True)
    compiler.run(request, workdir, lambda event: None)
    assert sorted(file.name for file in workdir.iterdir()) == ["build.json", "model.so"]
    return load(workdir / "model.so")


def test_an_artifact_in_int8_is_verified_and_near_to_the_model(tmp_path: Path) -> None:
    path, given = network(tmp_path), samples(tmp_path)
    request = compiler.prepare(path, options=options(str(given), max_error=0.03))
    session = compiled(request, tmp_path / "out")
    manifest = session.manifest
    assert manifest.verified is True and manifest.digests["model"] == request.model.digest
    assert manifest.options["precision"] == "int8" and manifest.options["calibration"]["samples"] == "samples.npz"
    assert "--precision int8 --calibration samples.npz --max-error 0.03" in manifest.command
    found = manifest.passes["calibration"]
    assert found["samples"] == 8 and {row["precision"] for row in found["layers"]} == {"int8"}
    (row,) = found["outputs"]
    inputs = {"x": np.load(given)["x"][:1]}
    want, got = frontend.reference(path, request.model.format)(inputs)["y"], session(inputs)["y"]
    assert 0 < np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)) < 3 * row["error"] < 0.09


def test_where_bytes_are_multiplied_the_report_says_why(tmp_path: Path) -> None:
    path, given = network(tmp_path), samples(tmp_path)
    asked = replace(options(str(given), max_error=0.03), verify=False)
    made = relaxc.compile(path, target=BYTES, output=tmp_path / "m.so", options=asked)
    why = {row["why"] for row in made.manifest.passes["precisions"].values() if "int8" in row["dtype"]}
    assert "--precision int8: quantized by calibration" in why


def test_what_an_artifact_depends_on(tmp_path: Path) -> None:
    """What samples say, and not where they are; those beside the model are in its digest."""
    path, given = network(tmp_path), samples(tmp_path)
    keys = [
        key_for(compiler.prepare(path, options=options(str(each)))).digest
        for each in (given, samples(tmp_path, name="same.npz"), samples(tmp_path, seed=1, name="others.npz"))
    ]
    assert keys[0] == keys[1] != keys[2]
    assert key_for(compiler.prepare(path, options=options(str(given), method="entropy"))).digest not in keys
    beside = key_for(replace(compiler.prepare(path), options=options("samples.npz")))  # as a server has it
    assert dict(beside.entries)["option.calibration.samples"] == '"samples.npz"'
    with pytest.raises(InvalidOption, match="cannot read"):
        key_for(compiler.prepare(path, options=options(str(tmp_path / "none.npz"))))


def test_files_that_a_caller_names_are_those_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names alone said where the key found them, and the compile looked beside the model: new samples were an old
    artifact's."""
    (tmp_path / "model").mkdir()
    path, given = network(tmp_path / "model"), samples(tmp_path)
    monkeypatch.chdir(tmp_path)
    request = compiler.prepare(path.relative_to(tmp_path), options=replace(options(given.name), plugins=("one.py",)))
    assert request.options.calibration is not None
    assert request.options.calibration.samples == str(given) and request.options.plugins == (str(tmp_path / "one.py"),)
    plain = replace(request, options=replace(request.options, plugins=()))
    before = key_for(plain).digest
    samples(tmp_path, seed=1)
    assert key_for(plain).digest != before


def test_samples_beside_the_model_are_read_and_verified_with_again(tmp_path: Path) -> None:
    path = network(tmp_path)
    samples(tmp_path)
    request = replace(compiler.prepare(path), options=options("samples.npz"))  # as a server has it
    session = compiled(request, tmp_path / "out")
    found: Any = verifier.verify(request, session.signature, lambda: session, lambda *_: None)
    assert found.passed
    elsewhere = replace(request, options=options("none.npz"))
    assert "are not beside the model" in str(
        verifier.verify(elsewhere, session.signature, lambda: session, lambda *_: None)
    )


def test_what_samples_alone_show_is_caught(tmp_path: Path) -> None:
    """Rows of an embedding that no draw of small integers reads."""
    rng = np.random.default_rng(0)
    table, weights = (rng.standard_normal(shape).astype("float32") for shape in ((64, 32), (32, 16)))
    ids, tokens = rng.integers(32, 64, (8, 1, 12)), [value("ids", [1, 12], TensorProto.INT64)]
    nodes = [node("Gather", ["table", "ids"], ["x"]), node("MatMul", ["x", "w"], ["y"])]
    path = write(tmp_path, model(nodes, tokens, [value("y", [1, 12, 16])], table=table, w=weights))
    np.savez(tmp_path / "samples.npz", ids=ids)
    table[int(ids[0, 0, 0])] *= -1
    wrong = write(tmp_path, model(nodes, tokens, [value("y", [1, 12, 16])], table=table, w=weights), "wrong.onnx")
    given = str(tmp_path / "samples.npz")
    request = compiler.prepare(path, options=options(given))
    assert compiled(request, tmp_path / "right").manifest.verified is True
    faulty = compiler.prepare(wrong, options=replace(options(given), verify=False))
    session = compiled(faulty, tmp_path / "out")
    with pytest.raises(VerificationFailed, match="the artifact's numbers are wrong"):
        verifier.verify(request, session.signature, lambda: session, lambda *_: None)


def test_a_dump_has_the_quantized_model(tmp_path: Path) -> None:
    path, given = network(tmp_path), samples(tmp_path)
    (tmp_path / "dump").mkdir()
    (tmp_path / "out").mkdir()
    request = compiler.prepare(path, options=options(str(given)))
    compiler.run(request, tmp_path / "out", lambda event: None, dump_dir=tmp_path / "dump")
    run = frontend.reference(tmp_path / "dump" / calibration.QUANTIZED, request.model.format, fastest=True)
    assert run({"x": np.load(given)["x"][:1]})["y"].shape == (1, 16, 1, 1)


def test_int8_is_not_for_what_does_not_calibrate(tmp_path: Path) -> None:
    """A tuning of it would tune the model in floats."""
    request = compiler.prepare(network(tmp_path), options=options(str(samples(tmp_path))))
    with pytest.raises(InvalidOption, match="int8 by calibration is for compiles") as refused:
        compiler.cover(request, lambda event: None)
    assert "--dump" in refused.value.remedy


def test_samples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = network(tmp_path)
    np.savez(tmp_path / "wrong.npz", y=np.zeros((2, 3), "float32"))
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidOption, match="not those of the inputs"):
        compiler.run(
            compiler.prepare(path, options=options(str(tmp_path / "wrong.npz"))), tmp_path / "out", lambda event: None
        )
    half = write(
        tmp_path,
        model(
            [node("Relu", ["x"], ["y"])], [value("x", [2], TensorProto.FLOAT16)], [value("y", [2], TensorProto.FLOAT16)]
        ),
        "half.onnx",
    )
    with pytest.raises(InvalidOption):
        compiler.run(
            compiler.prepare(half, options=options(str(samples(tmp_path)))), tmp_path / "out", lambda event: None
        )


def test_an_error_that_no_choice_of_layers_reaches_is_refused(tmp_path: Path) -> None:
    request = compiler.prepare(network(tmp_path), options=options(str(samples(tmp_path)), max_error=1e-12))
    with pytest.raises(InvalidOption, match="with every layer in floats that may be"):
        compiler.run(request, tmp_path, lambda event: None)


def test_an_error_of_no_floats_is_refused(tmp_path: Path) -> None:
    weights = RNG.standard_normal((8, 8)).astype("float32")
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("ArgMax", ["p"], ["y"], axis=1)]
    net = model(nodes, [value("x", [4, 8])], [value("y", [4, 1], TensorProto.INT64)], w=weights)
    np.savez(tmp_path / "s.npz", x=RNG.standard_normal((16, 8)).astype("float32"))
    request = compiler.prepare(write(tmp_path, net), options=options(str(tmp_path / "s.npz"), max_error=0.01))
    with pytest.raises(InvalidOption, match="no output of the model has floats"):
        compiler.run(request, tmp_path, lambda event: None)


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    weights = RNG.standard_normal((8, 8)).astype("float32")
    weights[2, 2] = np.nan
    net = model([node("MatMul", ["x", "w"], ["y"])], [value("x", [4, 8])], [value("y", [4, 8])], w=weights)
    np.savez(tmp_path / "s.npz", x=RNG.standard_normal((16, 8)).astype("float32"))
    request = compiler.prepare(write(tmp_path, net), options=options(str(tmp_path / "s.npz")))
    with pytest.raises(UnsupportedModel, match="quantizer stops"):
        compiler.run(request, tmp_path, lambda event: None)
