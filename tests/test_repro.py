"""The command that repeats a compile means the same request."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from relaxc.service.config import settings
from relaxc.service.lowering.target import resolve
from relaxc.service.repro import repro_command, tuned_remedy
from relaxc.service.request import CompileOptions, CompileRequest, ModelFormat, ModelRef, Precision


def request(options: CompileOptions, target: str = "x86-64-v3") -> CompileRequest:
    return CompileRequest(ModelRef(ModelFormat.ONNX, "a" * 64, 1, Path("m.onnx")), resolve(target), options)


def test_defaults_are_left_out() -> None:
    command = repro_command(request(CompileOptions()), "m.onnx")
    assert command == "relaxc compile m.onnx -o out.so --target x86-64-v3"


def test_everything_else_is_said_and_quoted() -> None:
    shapes = (("x", (1, "seq", 4)),)
    options = CompileOptions(
        Precision.FP16,
        3,
        shapes,
        plugins=("my pass.py",),
        verify=False,
        small_weights=True,
        state=(("h", "hn"),),
    )
    words = shlex.split(repro_command(request(options), "a model's.onnx"))
    assert words[2] == "a model's.onnx"
    assert words[7:] == [
        *(
            "-O",
            "3",
            "--precision",
            "fp16",
            "--shape",
            "x=1,seq,4",
            "--state",
            "h=hn",
            "--plugin",
            "my pass.py",
            "--small-weights",
            "--no-verify",
        ),
    ]


def test_a_target_without_a_name_of_its_own_is_given_as_json() -> None:
    odd = request(CompileOptions())
    odd = replace(odd, target=replace(odd.target, cores=3))
    words = shlex.split(repro_command(odd, "m.onnx"))
    assert resolve(words[words.index("--target") + 1]) == odd.target


def test_what_was_tuned_elsewhere_than_the_compile_looks_is_named_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for place, options, then in (
            (None, CompileOptions(), ", then compile with `--records tuning_logs`"),
            (None, CompileOptions(records=("mine",)), ""),
            ("/ours", CompileOptions(), ""),
            ("/our records", CompileOptions(default_records=False), ", then compile with `--records '/our records'`"),
        ):
            monkeypatch.delenv("RELAXC_RECORDS", raising=False)
            if place:
                monkeypatch.setenv("RELAXC_RECORDS", place)
            settings.cache_clear()
            assert f"` makes them{then}; or compile without" in tuned_remedy(request(options))
    finally:
        monkeypatch.undo()
        settings.cache_clear()
