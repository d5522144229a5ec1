"""`relaxc records …` and compiles that require records, on the real compiler and a model of two products."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from relaxc.service.artifact.manifest import Manifest
from relaxc.service.cli.main import main
from relaxc.service.lowering.target import resolve
from relaxc.service.records.files import append, read, remove
from relaxc.service.records.record import Record, RecordSet, RecordTarget
from tests.cli.conftest import Relaxc
from tests.records.samples import TARGET, record, record_of_row

TAG = "x86-64-v3"
SPEC = resolve(TAG)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = relu(x @ a) @ b on x[n, 64]: two kernels to tune, of which the first takes nearly all the time."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("model") / "two.onnx"
    weights = {"a": rng.standard_normal((64, 512), np.float32), "b": rng.standard_normal((512, 8), np.float32)}
    nodes = [("MatMul", ["x", "a"], "h"), ("Relu", ["h"], "r"), ("MatMul", ["r", "b"], "y")]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes],
        "two",
        [value("x", onnx.TensorProto.FLOAT, [64, 64])],
        [value("y", onnx.TensorProto.FLOAT, [64, 8])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def rows(relaxc: Relaxc, model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The schedule report of the untuned model, the heavier product first."""
    out = tmp_path_factory.mktemp("untuned") / "out.so"
    done = relaxc("compile", model, "-o", out, "--target", TAG, "--no-records")
    assert done.returncode == 0, done.stderr
    found = [dict(row) for row in Manifest.read(out).schedule if row["parameters"]]
    return sorted(found, key=lambda row: -row["flops"])


@pytest.fixture
def records(rows: list[dict[str, Any]], tmp_path: Path) -> list[Record]:
    """Records in tmp_path/records for both products, which take one row at a time."""
    made = [record_of_row(row, SPEC, parameters={**row["parameters"], "rows": 1}) for row in rows]
    append(tmp_path / "records", made)
    return made


Compile = Callable[..., Any]


@pytest.fixture
def compile_model(relaxc: Relaxc, model: Path, tmp_path: Path) -> Compile:
    """Compiles from tmp_path/records alone; the exit code, the manifest, and what was printed as JSON."""

    def run(*options: object, records: Path = tmp_path / "records") -> tuple[int, Manifest | None, dict[str, Any]]:
        out = tmp_path / "out.so"
        places = ("--records", records, "--no-records")
        done = relaxc("compile", model, "-o", out, "--target", TAG, "--force", "--json", *places, *options)
        return done.returncode, Manifest.read(out) if done.returncode == 0 else None, json.loads(done.stdout)

    return run


@pytest.mark.slow
def test_the_manifest_names_the_record_behind_each_kernel(compile_model: Compile, records: list[Record]) -> None:
    code, manifest, _ = compile_model("--require-tuned")
    assert code == 0
    behind = {row["workload"]: row for row in manifest.schedule if row["source"] == "record"}
    assert {row["record"]["digest"] for row in behind.values()} == {one.digest for one in records}
    assert all(behind[one.workload]["parameters"] == one.parameters for one in records)
    assert manifest.options["require_tuned"] == "all" and "records" not in manifest.options


@pytest.mark.slow
def test_a_compile_from_records_is_bit_identical_wherever_they_are(
    compile_model: Compile, records: list[Record], tmp_path: Path
) -> None:
    append(tmp_path / "elsewhere" / "records", reversed(records))
    digests = [
        compile_model(records=place)[2]["digest"]
        for place in (tmp_path / "records", tmp_path / "records", tmp_path / "elsewhere" / "records")
    ]
    assert len(set(digests)) == 1


@pytest.mark.slow
def test_a_removed_record_fails_the_compile_and_is_named(
    compile_model: Compile, records: list[Record], rows: list[dict[str, Any]], model: Path, tmp_path: Path
) -> None:
    remove(tmp_path / "records", records[:1])
    code, _, printed = compile_model("--require-tuned=hot")
    error = printed["error"]
    assert (code, error["code"]) == (4, "not-tuned")
    [missing] = error["fields"]["workloads"]
    assert missing["workload"] == records[0].workload and missing["functions"] == [rows[0]["function"]]
    assert missing["shapes"] == records[0].shapes and missing["share"] > 0.5 and missing["hot"]
    assert records[0].workload in error["message"]
    command = f"relaxc tune {model} --target {TAG} --records {tmp_path / 'records'}"
    assert error["fields"]["command"] == command and command in error["remedy"]


OTHERS = {
    "of another target": {"target": RecordTarget("llvm", "x86-64-v3", "avx512")},
    "of another dtype": {"dtype": "float16"},
    "of another version": {"version": 1000},
    "of another rule": {"rule": "cpu.forgotten"},
}


@pytest.mark.slow
@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_a_record_for_something_else_is_a_miss(
    compile_model: Compile, records: list[Record], tmp_path: Path, fields: dict[str, Any]
) -> None:
    remove(tmp_path / "records", records[:1])
    append(tmp_path / "records", [replace(records[0], **fields)])
    code, _, printed = compile_model("--require-tuned")
    assert code == 4
    assert [one["workload"] for one in printed["error"]["fields"]["workloads"]] == [records[0].workload]


def test_every_miss_is_a_line_for_people(relaxc: Relaxc, model: Path, tmp_path: Path) -> None:
    done = relaxc("compile", model, "-o", tmp_path / "out.so", "--target", TAG, "--no-records", "--require-tuned")
    assert done.returncode == 4 and not (tmp_path / "out.so").exists()
    lines = [line for line in done.stderr.splitlines() if line.startswith("  | ")]
    assert len(lines) == 2 and all("cpu.matmul" in line and "%" in line for line in lines)
    assert "remedy: `relaxc tune " in done.stderr


def test_another_word_than_hot_or_all_is_refused(relaxc: Relaxc, model: Path, tmp_path: Path) -> None:
    done = relaxc("compile", model, "-o", tmp_path / "out.so", "--require-tuned=some")
    assert done.returncode == 2 and "require_tuned takes hot or all" in done.stderr
    done = relaxc("compile", model, "-o", tmp_path / "out.so", "--records", tmp_path / "nowhere")
    assert done.returncode == 2 and "[invalid-records]" in done.stderr


@pytest.mark.slow
def test_the_key_knows_the_records(relaxc: Relaxc, model: Path, records: list[Record], tmp_path: Path) -> None:
    def key(*options: object) -> str:
        done = relaxc("cache", "explain", "--key", model, "--target", TAG, "--records", tmp_path / "records", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    before = key()
    assert len(before) == 64
    append(tmp_path / "records", [record()])  # for another target
    assert key() == before
    append(tmp_path / "records", [replace(records[0], seconds=1e-6)])
    assert key() != before


@pytest.mark.slow
def test_coverage(relaxc: Relaxc, model: Path, records: list[Record], tmp_path: Path) -> None:
    remove(tmp_path / "records", records[1:])
    options = (model, "--target", TAG, "--records", tmp_path / "records", "--no-records")
    done = relaxc("records", "coverage", *options, "--all", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_workload = {kernel["workload"]: kernel for kernel in found["kernels"]}
    assert by_workload[records[0].workload]["record"]["digest"] == records[0].digest
    assert by_workload[records[1].workload]["record"] is None and by_workload[records[1].workload]["tunable"]
    assert found["tunable"] - found["covered"] == by_workload[records[1].workload]["hot"]
    text = relaxc("records", "coverage", *options)
    assert records[0].digest[:8] in text.stdout and "hot kernels that can be tuned have a record" in text.stdout


# What needs no compiler runs in this process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append(
        tmp_path / "ours",
        [record(), record(rule="cpu.rows", seconds=9.0), record(target=RecordTarget("cuda", arch="sm_90a"))],
    )
    return tmp_path / "ours"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_ls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "records", "ls", folder)
    assert found["digest"] == read(folder).digest
    assert [row["digest"] for row in found["records"]] == [one.digest for one in read(folder)]
    only = printed(capsys, "records", "ls", folder, "--target", "cuda-sm90")["records"]
    assert [row["target"] for row in only] == [{"kind": "cuda", "arch": "sm_90a"}]
    assert len(printed(capsys, "records", "ls", folder, "--target", TARGET.name)["records"]) == 2
    assert main(["records", "ls", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "3 records for 2 targets" in out and "1.13x" in out and "83%" in out


def test_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(printed(capsys, "records", "show", record().workload[:6], folder)["records"]) == 3
    [one] = printed(capsys, "records", "show", record().digest, folder)["records"]
    assert one["parameters"] == record().parameters and one["gain"] == pytest.approx(17 / 15)
    assert main(["records", "show", record().digest[:8], str(folder)]) == 0
    assert "rows=8 vectors=2" in capsys.readouterr().out
    assert main(["records", "show", "zz", str(folder)]) == 2


def test_merge(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, both = tmp_path / "theirs", tmp_path / "both"
    append(theirs, [record(seconds=0.001), record(workload="f" * 16)])
    assert len(printed(capsys, "records", "merge", folder, theirs, "--into", both, "--dry-run")["changed"]) == 4
    assert not both.exists()
    assert len(printed(capsys, "records", "merge", folder, theirs, "--into", both)["changed"]) == 4
    assert read(both) == read(folder) | read(theirs)
    assert printed(capsys, "records", "merge", theirs, folder, "--into", both)["changed"] == []
    assert main(["records", "merge", str(theirs), "--into", str(folder)]) == 0
    assert "2 of 2 records are new or faster" in capsys.readouterr().out


def test_export_and_import(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["records", "export", str(folder), "-o", str(tmp_path / "set.jsonl")]) == 0
    capsys.readouterr()
    assert main(["records", "export", str(folder)]) == 0
    assert capsys.readouterr().out == (tmp_path / "set.jsonl").read_text() == read(folder).to_lines()
    found = printed(capsys, "records", "import", tmp_path / "set.jsonl", "--into", tmp_path / "new")
    assert (found["given"], found["changed"]) == (3, 3) and read(tmp_path / "new") == read(folder)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in folder.iterdir()}
    assert main(["records", "export", str(folder), "-o", str(tmp_path / "no" / "set.jsonl")]) == 2


def test_import_from_stdin(relaxc: Relaxc, folder: Path, tmp_path: Path) -> None:
    done = relaxc("records", "import", "-", "--into", tmp_path / "new")
    assert done.returncode == 0 and "0 of 0" in done.stdout  # stdin is empty here


def test_prune(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = record(workload="f" * 16, rule="cpu.matmul", version=1000)  # a newer relaxc's
    append(folder, [kept, record(workload="f" * 16, rule="cpu.gone")])
    before = read(folder)
    planned = printed(capsys, "records", "prune", folder, "--dry-run")["removed"]
    assert read(folder) == before and all(row["reason"] for row in planned)
    assert printed(capsys, "records", "prune", folder)["removed"] == planned
    after = read(folder)
    assert kept in after and len(after) == len(before) - len(planned)
    assert {one.digest for one in before} - {one.digest for one in after} == {row["digest"] for row in planned}
    assert printed(capsys, "records", "prune", folder)["removed"] == []


def test_damaged_records_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / TARGET.name / "cpu.matmul.jsonl"
    file.write_text("<<<<<<< HEAD\n" + file.read_text())
    assert main(["records", "ls", str(folder)]) == 2
    assert f"{file}:1 is no record" in capsys.readouterr().err


@pytest.mark.slow
def test_verify_measures_again(relaxc: Relaxc, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.so"
    assert relaxc("compile", model, "-o", out, "--no-records").returncode == 0
    manifest = Manifest.read(out)
    said = {"seconds": 100.0, "untuned_s": 1000.0}  # ten times as quick as the default, which is what is measured
    made = [record_of_row(dict(r), manifest.target, **said) for r in manifest.schedule if r["parameters"]]
    append(tmp_path / "records", RecordSet(made))
    options = ("--records", tmp_path / "records", "--no-records", "--sample", 1)
    done = relaxc("records", "verify", model, *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    [measured] = found["measured"]
    assert found["records"] == len(made) and measured["record"] in {one.digest for one in made}
    assert 0 < measured["seconds"] < 1 and measured["verdict"] in ("drifted", "slower")
    assert 0 < found["machine"] < 0.01 and measured["recorded_gain"] == 10


@pytest.mark.slow
def test_verify_wants_the_machine_of_the_target(relaxc: Relaxc, model: Path) -> None:
    done = relaxc("records", "verify", model, "--target", "aarch64")
    assert done.returncode == 6 and "[machine-mismatch]" in done.stderr
