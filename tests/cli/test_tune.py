"""`relaxc tune` as people use it: the list, a run, its records in a compile, a kill, Ctrl-C, wrong options."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from relaxc.service.cli.tune import parse_time
from relaxc.service.cli.tune_table import TuneProgress, duration
from relaxc.service.errors import InvalidOption
from tests.cli.conftest import ROOT, Relaxc
from tests.waiting import PATIENCE_S, gone
from tests.zoo import export

NO_WAIT = {"RELAXC_TUNE_QUIET_WAIT_S": "0"}


@pytest.fixture(scope="module")
def model() -> Path:
    return export("cnn", "onnx")


@pytest.fixture(scope="module")
def tasks(relaxc: Relaxc, model: Path) -> list[dict[str, Any]]:
    done = relaxc("tune", model, "--tasks", "list", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["tasks"]
    return found


@pytest.fixture(scope="module")
def pooling(tasks: list[dict[str, Any]]) -> int:
    """The task with the fewest points."""
    return min(range(len(tasks)), key=lambda index: int(tasks[index]["points"]))


@pytest.mark.slow
def test_the_list_says_what_there_is_to_tune(relaxc: Relaxc, model: Path, tasks: list[dict[str, Any]]) -> None:
    assert sum(task["share"] for task in tasks) == pytest.approx(1)
    assert all(task["points"] > 1 and task["weight"] >= 1 for task in tasks)
    done = relaxc("tune", model, "--tasks", "list")
    assert all(task["name"] in done.stdout for task in tasks)
    assert "not a task" in done.stdout


@pytest.mark.slow
def test_a_run_makes_records_that_a_compile_names(relaxc: Relaxc, model: Path, pooling: int, tmp_path: Path) -> None:
    options = ("--tasks", pooling, "--trials", 3, "--records", tmp_path / "records", "--seed", 3)
    done = relaxc("tune", model, *options, "--json", **NO_WAIT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert all(Path(file).exists() for file in report["files"])
    assert [Path(file).name for file in report["files"]] == ["records.jsonl", "report.json", "curve.svg"]
    assert f"task 0 {report['tasks'][0]['name']}: 1 trials" in done.stderr
    compiled = relaxc("compile", model, "-o", tmp_path / "a.so", "--records", tmp_path / "records", "--json")
    assert compiled.returncode == 0, compiled.stderr
    rows = json.loads(compiled.stdout)["manifest"]["schedule"]
    sources = {row["workload"]: row["source"] for row in rows}
    assert sources[report["tasks"][0]["workload"]] == "record"


def _started(cli_env: dict[str, str], model: Path, records: Path) -> subprocess.Popen[str]:
    """A run that has measured something and goes on."""
    command = ["tune", str(model), "--trials", "500", "--records", str(records)]
    process = subprocess.Popen(
        [sys.executable, "-m", "relaxc", *command],
        env={**cli_env, **NO_WAIT},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("["):
            return process
    raise AssertionError(f"it ended with {process.wait()}")


def _end(process: subprocess.Popen[str], number: int) -> int:
    """The exit code after a signal; every process that it started is gone soon after."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    code = process.wait(PATIENCE_S)
    assert process.stderr is not None
    process.stderr.close()
    assert gone(family), "it left processes"
    return code


def _trials(records: Path) -> list[str]:
    (journal,) = records.glob(".journal/*/0.trials")
    return [line for line in journal.read_text().splitlines() if '"trial ' in line]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
def test_an_interrupted_run_leaves_no_process_and_goes_on(
    relaxc: Relaxc, cli_env: dict[str, str], model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    code = _end(_started(cli_env, model, tmp_path), number)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    before = _trials(tmp_path)
    assert before
    done = relaxc("tune", model, "--trials", 2, "--records", tmp_path, "--resume", "--json", **NO_WAIT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["new_trials"] <= report["trials"] - min(len(before), 1)
    after = _trials(tmp_path)
    assert after[: len(before)] == before
    assert len(after) == len(before) + report["new_trials"]


@pytest.mark.slow
def test_two_runs_on_one_folder_keep_each_others_records(
    cli_env: dict[str, str], model: Path, tasks: list[dict[str, Any]], tmp_path: Path
) -> None:
    from relaxc.service.records.files import read

    command = [sys.executable, "-m", "relaxc", "tune", str(model), "--trials", "1", "--records", str(tmp_path)]
    runs = [
        subprocess.Popen(
            command, env={**cli_env, **NO_WAIT}, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(2)
    ]
    assert [run.wait(240) for run in runs] == [0, 0]
    assert {record.workload for record in read(tmp_path)} == {task["workload"] for task in tasks}
    assert len(list(tmp_path.glob(".journal/*/*.trials"))) == 2


@pytest.mark.sampled("---time takes")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--time", "soon"), "--time takes"),
        (("--tasks", "0,x"), "tasks"),
        (("--rpc-tracker", "localhost:9190"), "tracker and key"),
        (("--tasks", "99"), "there are tasks 0 to"),
        (("--target", "aarch64"), "cannot measure"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_option_is_refused_in_a_sentence(
    relaxc: Relaxc, model: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    done = relaxc("tune", model, "--records", tmp_path, *options)
    assert done.returncode in (2, 6)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_records_that_cannot_be_written_are_refused_first(relaxc: Relaxc, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = relaxc("tune", model, "--records", tmp_path / "file" / "records")
    assert done.returncode == 8
    assert "store-unwritable" in done.stderr


def test_times_are_read_and_shown() -> None:
    assert [parse_time(text) for text in (None, "90s", "10m", "1.5h", "7")] == [None, 90, 600, 5400, 7]
    assert [duration(value) for value in (59.6, 61, 3723)] == ["1:00", "1:01", "1:02:03"]
    with pytest.raises(InvalidOption):
        parse_time("10 minutes")


class Terminal:
    """A stream that says it is one."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    metric = {"event": "metric", "task": 3, "name": "conv", "trials": 9, "failed": 0, "best_s": 0.9e-3, "loud": False}
    with TuneProgress(stream) as progress:  # type: ignore[arg-type]
        progress({"event": "stage", "stage": "tune", "state": "start"})
        progress({"event": "progress", "stage": "tune", "done": 9, "total": 64})
        progress({**metric, "untuned_s": 1e-3, "gflops": 123.4, "roofline": 0.5, "done": "", "eta_s": 75.0})
    for shown in ("9 of 64 trials", "1:15 left", "conv", "123.4", "50%", "1.11 x"):
        assert shown in stream.text
