"""Exit codes, the error line and its remedy, --json errors, --verbose, and what help may not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from relaxc.service.cli import main as cli
from relaxc.service.errors import CompilerCrashed, InvalidTarget, RelaxcError, by_code
from tests.api.conftest import make_onnx
from tests.cli.conftest import ROOT, Relaxc


def test_help_lists_every_verb_and_imports_no_framework(cli_env: dict[str, str]) -> None:
    code = """
import sys
from relaxc.service.cli.main import main
code = main(["--help"])
heavy = {"tvm", "torch", "onnx", "onnxruntime", "numpy", "fastapi", "pydantic"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=cli_env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for verb in ("compile", "run", "bench", "profile", "inspect", "targets", "cache", "serve", "version"):
        assert f" {verb} " in done.stdout


def test_the_version_is_that_of_pyproject(called: Relaxc) -> None:
    from importlib import metadata

    assert called("--version").stdout == f"relaxc {metadata.version('relaxc')}\n"


@pytest.mark.parametrize("words", [(), ("compile",), ("cache", "ls")])
def test_help_of_a_verb_is_its_option_help(called: Relaxc, words: tuple[str, ...]) -> None:
    asked = called("help", *words)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout == called(*words, "--help").stdout


def test_help_of_no_verb_is_a_usage_error(called: Relaxc) -> None:
    done = called("help", "frobnicate")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_usage_error_exits_2_with_a_line_and_a_remedy(relaxc: Relaxc) -> None:
    done = relaxc("compile", "model.onnx")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "relaxc: error [invalid-option]: Missing option '--output' / '-o'.",
        "remedy: `relaxc compile --help` lists what it takes.",
    ]


@pytest.mark.parametrize(
    "arguments",
    [("frobnicate",), ("compile", "--frob"), ("serve", "--port", "99999"), ("targets", "one", "two"), ("cache", "eat")],
)
def test_usage_errors_are_json_too(called: Relaxc, arguments: tuple[str, ...]) -> None:
    done = called(*arguments, "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "invalid-option"
    assert done.stderr.splitlines()[0] == f"relaxc: error [invalid-option]: {error['message']}"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("missing.onnx", "-o", "x.so"), "model-not-found"),
        (("README.md", "-o", "x.so"), "unknown-format"),
        (("README.md", "-o", "nowhere/x.so"), "invalid-option"),
        (("README.md", "-o", "."), "invalid-option"),
        (("README.md", "-o", "x.so", "-O7"), "invalid-option"),
        (("README.md", "-o", "x.so", "--precision", "int3"), "invalid-option"),
        (("README.md", "-o", "x.so", "--shape", "x=1,z z"), "invalid-shape"),
    ],
)
def test_errors_exit_with_their_familys_code(called: Relaxc, arguments: tuple[str, ...], code: str) -> None:
    done = called("compile", *arguments, "--json")
    assert done.returncode == by_code()[code].exit_code
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code
    assert set(error) == {"code", "message", "remedy", "fault", "node", "retryable", "fields"}
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_wrong_setting_is_named(relaxc: Relaxc) -> None:
    done = relaxc("cache", "ls", RELAXC_CACHE_MAX_BYTES="lots")
    assert done.returncode == 2
    assert "RELAXC_CACHE_MAX_BYTES" in done.stderr


def test_the_log_has_the_level_of_its_setting(relaxc: Relaxc) -> None:
    assert "filelock" not in relaxc("cache", "gc", RELAXC_LOG_LEVEL="info").stderr
    done = relaxc("version", RELAXC_LOG_LEVEL="loud")
    assert done.returncode == 2
    assert "RELAXC_LOG_LEVEL" in done.stderr
    assert relaxc("version", "--help", RELAXC_LOG_LEVEL="loud").returncode == 0


def test_verbose_shows_the_trace_before_or_after_the_verb(relaxc: Relaxc) -> None:
    for arguments in (("--verbose", "inspect", "missing.onnx"), ("inspect", "missing.onnx", "--verbose")):
        done = relaxc(*arguments)
        assert done.returncode == 3
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("remedy: ")


def _run(monkeypatch: pytest.MonkeyPatch, error: BaseException, *arguments: str) -> int:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", broken)
    return cli.main(["targets", *arguments])


def test_a_bug_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(monkeypatch, KeyError("lost"), "--json") == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "relaxc: error [relaxc-error]: this is a bug: KeyError: 'lost'",
        f"remedy: {RelaxcError.remedy}",
    ]
    assert json.loads(captured.out)["error"]["code"] == "relaxc-error"


def test_verbose_shows_the_trace_of_a_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(monkeypatch, KeyError("lost"), "--verbose") == 1
    assert "Traceback" in capsys.readouterr().err


def test_fields_are_shown_with_verbose(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(monkeypatch, InvalidTarget("no", tag="sparc"), "--verbose") == 2
    assert "tag: sparc" in capsys.readouterr().err


def test_a_crash_shows_the_end_of_the_log_and_the_repro(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = CompilerCrashed("it died", log_tail=[f"line {i}" for i in range(20)], repro="relaxc compile m.onnx")
    assert _run(monkeypatch, crash) == CompilerCrashed.exit_code
    shown = capsys.readouterr().err
    assert "line 19" in shown and "line 11" not in shown
    assert "| relaxc compile m.onnx" in shown


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "relaxc: interrupted\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(monkeypatch, ModuleNotFoundError("No module named 'fastapi'", name="fastapi")) == 4
    assert "relaxc[server]" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("targets",), ("targets", "--json"), ("version",)])
def test_a_reader_that_goes_away_is_no_bug(cli_env: dict[str, str], arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "relaxc", *arguments],
            env=cli_env,
            cwd=ROOT,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    # A machine that is measured for the first time, or was busy the last time, shows that this takes seconds.
    said = [line for line in done.stderr.splitlines() if not line.startswith("measuring ")]
    assert (done.returncode, said) == (141, [])


def test_version_names_what_an_artifact_depends_on(relaxc: Relaxc) -> None:
    versions = json.loads(relaxc("version", "--json").stdout)["versions"]
    assert versions["apache-tvm"]
    assert "torch" in versions
    assert "apache-tvm-ffi" in relaxc("version").stdout


@pytest.mark.slow  # it measures the machine's peak; tests/cli/test_targets.py shows the same without
def test_targets_start_with_this_machine(relaxc: Relaxc) -> None:
    rows = json.loads(relaxc("targets", "--json").stdout)["targets"]
    assert rows[0]["target"] == "auto"
    assert rows[0]["missing"] == []
    assert {"x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "sapphirerapids", "aarch64", "cuda-sm80", "cuda-sm90"} <= {
        row["target"] for row in rows
    }


def test_commands_work_from_any_folder(relaxc: Relaxc, tmp_path: Path) -> None:
    assert relaxc("cache", "ls", "--json", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("arguments", [("version",), ("version", "--json"), ("--help",)])
def test_a_full_output_is_no_bug(cli_env: dict[str, str], arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "relaxc", *arguments],
            env=cli_env, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = "relaxc: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (74, said)


def test_an_interrupt_before_there_is_a_command_line_is_130(cli_env: dict[str, str]) -> None:
    code = """
import os, signal
from relaxc import __main__
from relaxc.service.process import early
early.start_early = lambda arguments: os.kill(os.getpid(), signal.SIGINT)
__main__.command()
"""
    done = subprocess.run([sys.executable, "-c", code], env=cli_env, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (130, "relaxc: interrupted\n", "")


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        (f"{LONG}.onnx", "-o", "x.so"),
        ("README.md", "-o", f"{LONG}.so"),
        ("MODEL", "-o", "OUT", "--plugin", LONG),
        ("MODEL", "-o", "OUT", "--records", LONG),
        ("MODEL", "-o", "OUT", "--precision", "int8", "--calibration", LONG),
    ],
)
def test_a_name_that_is_too_long_is_no_bug(called: Relaxc, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "m.onnx").write_bytes(make_onnx(4))
    places = {"MODEL": str(tmp_path / "m.onnx"), "OUT": str(tmp_path / "x.so")}
    done = called("compile", *(places.get(each, each) for each in arguments), "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], "too long" in error["message"]) == (2, "invalid-option", True)


def test_a_name_that_is_no_text_is_no_bug(relaxc: Relaxc, tmp_path: Path) -> None:
    model = tmp_path / os.fsdecode(b"m\xff.onnx")
    model.write_bytes(make_onnx(4))
    for verb, *more in (("compile", "-o", str(tmp_path / "x.so")), ("inspect",)):
        done = relaxc(verb, model if verb == "compile" else tmp_path / os.fsdecode(b"no\xff"), *more, "--json",
                      PYTHONIOENCODING="utf-8:strict")  # fmt: skip
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["code"]) == (3, "model-not-found") and "\udcff" in error["fields"]["path"]
