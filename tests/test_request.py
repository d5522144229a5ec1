"""The frozen request: it checks itself, and its JSON is canonical and loses nothing."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaxc.service.errors import InvalidOption, InvalidShape, InvalidTarget
from relaxc.service.request import (
    CompileOptions,
    CompileRequest,
    ModelFormat,
    ModelRef,
    Precision,
    TargetSpec,
    canonical_json,
)

CPU = TargetSpec("x86-64-v3", "llvm", mcpu="x86-64-v3", features=("avx2", "fma"), cores=4, vector_bits=256)
GPU = TargetSpec("cuda-sm90", "cuda", triple="", arch="sm_90", host=CPU)

NAMES = st.text(min_size=1, max_size=12)
DIMS = st.one_of(st.integers(0, 2**40), st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True))
OPTIONS = st.builds(
    CompileOptions,
    precision=st.one_of(st.none(), st.sampled_from([each for each in Precision if each is not Precision.INT8])),
    opt_level=st.integers(0, 3),
    shapes=st.dictionaries(NAMES, st.lists(DIMS, max_size=4).map(tuple), max_size=3).map(
        lambda shapes: tuple(sorted(shapes.items()))
    ),
    plugins=st.lists(NAMES, max_size=2).map(tuple),
    verify=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)


@given(OPTIONS)
def test_options_survive_json(options: CompileOptions) -> None:
    assert CompileOptions.from_dict(json.loads(canonical_json(options.to_dict()))) == options


@pytest.mark.parametrize("target", [CPU, GPU])
def test_a_request_survives_json(target: TargetSpec) -> None:
    model = ModelRef(ModelFormat.ONNX, "ab" * 32, 17, Path("model.onnx"))
    request = CompileRequest(model, target, CompileOptions(shapes=(("x", ("batch", 3)),)))
    again = CompileRequest.from_dict(json.loads(canonical_json(request.to_dict())))
    assert again == request
    assert again.model.path == Path("model.onnx")


def test_a_model_is_its_content_not_its_path() -> None:
    one, two = (ModelRef(ModelFormat.ONNX, "ab" * 32, 17, Path(name)) for name in ("a", "b"))
    assert one == two


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"opt_level": 4}, InvalidOption),
        ({"opt_level": True}, InvalidOption),
        ({"opt_level": "2"}, InvalidOption),
        ({"precision": "int3"}, InvalidOption),
        ({"seed": -1}, InvalidOption),
        ({"seed": 2**32}, InvalidOption),
        ({"seed": None}, InvalidOption),
        ({"verify": 1}, InvalidOption),
        ({"colour": "red"}, InvalidOption),
        ({"plugins": "x.py"}, InvalidOption),
        ({"shapes": []}, InvalidOption),
        ({"shapes": {"x": 3}}, InvalidShape),
        ({"shapes": {"x": [1.5]}}, InvalidShape),
        ({"shapes": {"x": [True]}}, InvalidShape),
        ({"shapes": {"x": [-1]}}, InvalidShape),
        ({"shapes": {"x": [2**63]}}, InvalidShape),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        CompileOptions.from_dict(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TargetSpec("?", "riscv"),
        lambda: TargetSpec("gpu", "cuda", arch="90", host=CPU),
        lambda: TargetSpec("gpu", "cuda", arch="sm_90"),
        lambda: TargetSpec("cpu", "llvm", cores=0),
    ],
)
def test_wrong_targets_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTarget):
        wrong()


def test_a_model_without_a_digest_is_refused() -> None:
    with pytest.raises(InvalidOption):
        ModelRef(ModelFormat.PT2, "short", 1, Path("m"))


def test_values_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        CPU.cores = 2  # type: ignore[misc]


def test_canonical_json_does_not_depend_on_order_and_refuses_nan() -> None:
    assert canonical_json({"b": 1, "a": [1, "é"]}) == '{"a":[1,"é"],"b":1}'
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precision": "int8"}, "go together"),
        ({"calibration": {"samples": "s.npz"}}, "go together"),
        ({"precision": "int8", "calibration": {"samples": 3}}, "samples cannot be 3"),
        ({"precision": "int8", "calibration": {"method": "minmax"}}, "takes samples"),
        ({"precision": "int8", "calibration": {"samples": "s", "method": "best"}}, "not 'best'"),
        ({"precision": "int8", "calibration": {"samples": "s", "max_error": 2}}, "between 0 and 1"),
        ({"precision": "int8", "calibration": {"samples": "s", "max_error": True}}, "cannot be True"),
        ({"precision": "int8", "calibration": {"samples": "s", "keep": [1]}}, "a list of names"),
        ({"precision": "int8", "calibration": {"samples": "s", "other": 1}}, "takes samples"),
        ({"precision": "int8", "calibration": ["s"]}, "takes samples"),
    ],
)
def test_a_calibration_that_is_none_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        CompileOptions.from_dict(given)


def test_a_calibration_goes_through_json() -> None:
    given = {"samples": "s.npz", "method": "entropy", "max_error": 0.1, "keep": ["a"], "smooth": False}
    options = CompileOptions.from_dict({"precision": "int8", "calibration": given})
    assert CompileOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    assert "calibration" not in CompileOptions().to_dict()
