"""docs/api.md: the commands run as they stand, in order and in one shell, and print what the page says."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any

import onnx
import pytest

from relaxc.service.api.app import create_app
from relaxc.service.api.problems import OF_HTTP
from tests.api.conftest import COMPILE, ROOT, RunningServer, make_onnx
from tests.waiting import PATIENCE_S

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(?P<kind>sh|text|json|python)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_END = "::end of block"


@dataclass(frozen=True)
class Block:
    """A block of commands, and the output block that follows it, if any."""

    commands: str
    kind: str
    output: str


def _blocks() -> list[Block]:
    found: list[Block] = []
    blocks = list(_BLOCK.finditer(PAGE))
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block["kind"] == "sh":
            shown = after if after and after["kind"] in ("text", "json") else None
            found.append(Block(block["text"], shown["kind"] if shown else "", shown["text"] if shown else ""))
    return found


BLOCKS = _blocks()


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that compiles."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), COMPILE)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder, with the files that the page speaks of."""
    import torch

    folder = tmp_path_factory.mktemp("reader")
    (folder / "model.onnx").write_bytes(make_onnx(8))
    (folder / "big.onnx").write_bytes(make_onnx(300))
    torch.manual_seed(0)
    program = torch.export.export(torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),))
    torch.export.save(program, folder / "model.pt2")
    external = onnx.load_from_string(make_onnx(64))
    onnx.external_data_helper.set_external_data(external.graph.initializer[0], "weights.bin")
    (folder / "weights.bin").write_bytes(external.graph.initializer[0].raw_data)
    external.graph.initializer[0].ClearField("raw_data")
    (folder / "external.onnx").write_bytes(external.SerializeToString())
    (folder / "records.jsonl").write_text(_record(), encoding="utf-8")
    return folder


def _record() -> str:
    """The example of docs/tuning.md."""
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    example = re.search(r'^\{"bytes".*?^```', text, re.MULTILINE | re.DOTALL)
    assert example is not None
    shown = example[0].removesuffix("```").replace("{…}", '{"m": 8}').replace("…", "")
    return json.dumps(json.loads(shown), sort_keys=True) + "\n"


class Reader:
    """Somebody who types the page into one shell, a block at a time."""

    def __init__(self, folder: Path, server: RunningServer) -> None:
        self._url = server.url
        self._typed = 0
        self.shell = subprocess.Popen(
            ["bash", "-u", "-o", "pipefail"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read(self, index: int) -> tuple[str, int]:
        """What BLOCKS[index] prints, after the blocks before it, which another process of pytest may have had."""
        for block in BLOCKS[self._typed : index]:
            self.type(block.commands)
        self._typed = index + 1
        return self.type(BLOCKS[index].commands)

    def type(self, commands: str) -> tuple[str, int]:
        """What the commands print, and the exit status of the first that failed or the last."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        script = commands.replace("localhost:8000", self._url)
        self.shell.stdin.write(f"trap 'failed=$?' ERR\nfailed=0\n{{\n{script}\n}} </dev/null\n")
        self.shell.stdin.write(f"printf '\\n%s %s\\n' '{_END}' $failed\n")
        self.shell.stdin.flush()
        watchdog = threading.Timer(PATIENCE_S, os.killpg, (self.shell.pid, signal.SIGKILL))
        watchdog.start()
        lines = []
        for line in self.shell.stdout:
            if line.startswith(_END):
                watchdog.cancel()
                return "".join(lines), int(line.split()[-1])
            lines.append(line)
        raise AssertionError(f"the shell ended or took over two minutes: {''.join(lines)}")

    def close(self) -> None:
        """Leaves the shell."""
        with contextlib.suppress(BrokenPipeError):
            self.shell.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def reader(folder: Path, compiler: RunningServer) -> Iterator[Reader]:
    reading = Reader(folder, compiler)
    yield reading
    reading.close()


@pytest.mark.parametrize(
    "index", range(len(BLOCKS)), ids=[f"{i}: {b.commands.splitlines()[0][:50]}" for i, b in enumerate(BLOCKS)]
)
def test_a_block_does_what_it_shows(reader: Reader, index: int) -> None:
    block = BLOCKS[index]
    printed, failed = reader.read(index)
    while "/healthz" in block.commands and '"running":null' in printed:  # a second in which the database did not answer
        printed, failed = reader.read(index)
    assert failed == 0, printed
    if block.kind == "json":
        _check_json(json.loads(block.output), json.loads(printed), "")
    elif block.kind == "text":
        pattern = translate(re.sub(r"([\[\]?*])", r"[\1]", block.output.strip()).replace("…", "*"))
        assert re.fullmatch(pattern, printed.strip(), re.DOTALL), printed


def _check_json(shown: Any, printed: Any, where: str) -> None:
    """`"…"` is any value, and as a name any more names."""
    if shown == "…":
        return
    if not isinstance(shown, dict):
        assert shown == printed, where
        return
    more = set(printed) - set(shown)
    assert not more or "…" in shown, f"{where}: the page lacks {more}"
    for name in shown.keys() - {"…"}:
        assert name in printed, f"{where}: the server lacks {name}"
        _check_json(shown[name], printed[name], f"{where}.{name}")


def test_every_call_is_shown() -> None:
    typed = re.sub(r"\$job\b", "/v1/jobs/x", "".join(block.commands for block in BLOCKS).replace("\\\n", " "))
    typed = re.sub(r"\$records\b", "/v1/records/x", re.sub(r"\$team\b", "/v1/owners/x", typed))
    typed = re.sub(r"\$\((?:[^()]|\([^()]*\))*\)|\$\w+", "x", re.sub(r"\$\(curl", "\ncurl", typed))
    shown = set()
    for line in typed.splitlines():
        shown |= {(_method(line), path) for path in re.findall(r"localhost:8000(/[^\s?\"')|]*)", line)}
    missing = []
    for path, methods in create_app().openapi()["paths"].items():
        pattern = re.compile(re.sub(r"\{\w+\}", "[^/]+", path))
        missing += [
            f"{method} {path}"
            for method in methods
            if not any(of == method and pattern.fullmatch(address) for of, address in shown)
        ]
    assert not missing


def _method(line: str) -> str:
    """What curl does with these options."""
    if named := re.search(r"-X (\w+)", line):
        return named[1].lower()
    if " -T " in line:
        return "put"
    if re.search(r" -(F|d) | --data-binary ", line):
        return "post"
    return "head" if re.search(r" -\w*I", line) else "get"


def test_every_code_of_http_is_listed() -> None:
    for code, (status, *_) in OF_HTTP.items():
        assert re.search(rf"\| `{code}` \| {status} \|", PAGE), code


def test_the_check_of_a_signature_works() -> None:
    (source,) = [block["text"] for block in _BLOCK.finditer(PAGE) if "def is_genuine" in block["text"]]
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102  # the page's own
    body, secret, now = b'{"event": "job.done"}', "whsec", int(time.time())
    genuine = hmac.new(secret.encode(), f"{now}.".encode() + body, hashlib.sha256).hexdigest()
    assert names["is_genuine"](f"t={now},v1={genuine}", body, secret, time.time())
    assert not names["is_genuine"](f"t={now},v1={genuine}", body + b" ", secret, time.time())
    assert not names["is_genuine"](f"t={now},v1={genuine}", body, secret, time.time() + 1000)


@pytest.mark.slow
def test_the_python_of_the_page_runs(compiler: RunningServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the blocks, with the key that they made."""
    (source,) = [block["text"] for block in _BLOCK.finditer(PAGE) if "from relaxc.service.client" in block["text"]]
    admin = folder / "admin.json"
    monkeypatch.chdir(folder)
    secret = json.loads(admin.read_text())["secret"] if admin.exists() else None
    exec(source.replace("http://localhost:8000", compiler.url), {"secret": secret})  # noqa: S102  # the page's own
    assert (folder / "fast.so").stat().st_size > 0
