"""`relaxc demo`: a ResNet-18 through the HTTP service, from both formats, beside ONNX Runtime."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, print_json, table
from relaxc.service.cli.report import verification
from relaxc.service.cli.session import open_session
from relaxc.service.errors import RelaxcError, ToolMissing, VerificationFailed

if TYPE_CHECKING:
    from relaxc.service.runtime.bench import BenchReport
    from relaxc.service.runtime.verification import Verification

__all__ = ["demo"]

_START_S = 60.0
_STOP_S = 20.0
_BENCH_S = 1.5
"""Seconds of timing for each callable."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server sent for a model."""

    path: Path
    status: int
    seconds: float
    cached: bool


def demo(json: Json = False, verbose: Verbose = False) -> None:
    """Send a ResNet-18 through the HTTP service, as ONNX and as .pt2, and time the results beside ONNX Runtime.

    Takes about a minute, and leaves nothing behind. Needs `pip install 'relaxc[onnx,torch,server]'`.
    """
    _check_installed()
    with tempfile.TemporaryDirectory(prefix="relaxc-demo-") as name:
        folder = Path(name)
        _say("About a minute, most of it for two compiles and their verification.")
        with _step("a ResNet-18 with random weights, as ONNX and as .pt2"):
            _run([sys.executable, "-m", "relaxc.service.torch_backend.demo_model", folder], folder)
        models = [folder / "resnet18.onnx", folder / "resnet18.pt2"]
        with _server(folder) as address:
            answers = [_post(address, path, path.with_suffix(path.suffix + ".so")) for path in (*models, models[0])]
        refused = next((answer for answer in answers if answer.status != 200), None)
        if refused is not None:
            raise RelaxcError(f"the server answered {refused.status}: {refused.path.read_text()[:500]}")
        report, results, threads = _compare(models[0], [answer.path for answer in answers[:2]])
        if json:
            compared = {name: result.to_dict() for name, result in results.items()}
            rows = [{**asdict(answer), "path": answer.path.name} for answer in answers]
            print_json({"answers": rows, "outputs": compared, "threads": threads, **report.to_dict()})
        else:
            _show_answers(answers)
            _show_runs(report, results, threads)
    if not all(result.passed for result in results.values()):
        raise VerificationFailed("an artifact's output differs from ONNX Runtime's")


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxruntime", "torch", "fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ToolMissing(
            f"the demo needs {', '.join(missing)}", remedy="pip install 'relaxc[onnx,torch,server]'.", missing=missing
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _step(what: str) -> Iterator[None]:
    start = time.perf_counter()
    screen = console(sys.stderr)
    if not screen.is_terminal:  # where nothing turns
        _say(f"  {what} …")
    with screen.status(what):
        yield
    _say(f"✓ {what}  {time.perf_counter() - start:.1f} s")


def _run(command: list[Any], folder: Path) -> str:
    """What the command printed. Raise RelaxcError with its errors where it fails."""
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RelaxcError(f"{' '.join(map(str, command))} failed: {done.stderr or done.stdout}")
    return done.stdout


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """`relaxc serve` on a free port of this machine, with a store of its own; stopped at the end, whatever happens."""
    env = {**os.environ, "RELAXC_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "relaxc", "serve", "--host", "127.0.0.1", "--port", "0"]
    log = folder / "server.log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True) as server,
    ):
        try:
            with _step("relaxc serve, on loopback"):
                address = _address(server, log)
            yield address
        finally:
            server.terminate()
            try:
                server.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
    _say("✓ the server is stopped")


def _address(server: subprocess.Popen[str], log: Path) -> str:
    """The address in the server's first line. Raise RelaxcError with its log if there is none."""
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], _START_S)
    line = server.stdout.readline() if ready else ""
    if "http://" not in line:
        raise RelaxcError(f"the server did not start: {log.read_text()}")
    return line.split()[-1]


def _post(address: str, model: Path, output: Path) -> Answer:
    """`curl -F model=@MODEL ADDRESS/v1/compile -o OUTPUT`; by relaxc's own client where curl is not installed."""
    curl = shutil.which("curl")
    with _step(f"POST {model.name} with {'curl' if curl else 'relaxc.service.client (curl is not installed)'}"):
        return (_post_with_curl if curl else _post_with_client)(address, model, output)


def _post_with_curl(address: str, model: Path, output: Path) -> Answer:
    head, url = output.with_suffix(".headers"), f"{address}/v1/compile"
    command = [
        "curl",
        "-sS",
        "-F",
        f"model=@{model}",
        url,
        "-o",
        output,
        "-D",
        head,
        "-w",
        "%{http_code} %{time_total}",
    ]
    status, seconds = _run(command, output.parent).split()
    lines = head.read_text().lower().splitlines()
    cached = any(line.startswith("cache-status:") and "hit" in line for line in lines)
    return Answer(output, int(status), float(seconds), cached)


def _post_with_client(address: str, model: Path, output: Path) -> Answer:
    from relaxc.service.client import Client

    start = time.perf_counter()
    with Client(address) as client:
        made = client.compile(model, output)
    return Answer(output, 200, time.perf_counter() - start, made.cached)


def _show_answers(answers: list[Answer]) -> None:
    from relaxc.service.artifact.manifest import Manifest

    shown = table("What the server sent", "answer", "after", "size", "from", "verified against the reference")
    for answer in answers:
        size = f"{answer.path.stat().st_size / 1e6:.1f} MB"
        source = "the store" if answer.cached else "a compile"
        verified = verification(Manifest.read(answer.path))[0]
        shown.add_row(answer.path.name.removesuffix(".so"), f"{answer.seconds:.2f} s", size, source, verified)
    console().print(shown)


def _compare(model: Path, artifacts: list[Path]) -> tuple[BenchReport, dict[str, Verification], int]:
    """Runs both artifacts and ONNX Runtime on the same image, in turns, with as many threads each."""
    with _step("run both artifacts beside ONNX Runtime"):
        sessions = {path.name.removesuffix(".so"): open_session(path, None) for path in artifacts}
        from relaxc.service import frontend
        from relaxc.service.runtime.bench import bench
        from relaxc.service.runtime.compare import compare
        from relaxc.service.runtime.inputs import random_inputs

        first = next(iter(sessions.values()))
        reference = frontend.reference(model, frontend.identify(model), threads=first.threads, fastest=True)
        image = random_inputs(first.signature, seed=1)
        wanted = _only(reference(image))
        results = {name: compare({"y": _only(session(image))}, {"y": wanted}) for name, session in sessions.items()}
        # Arguments are bound now: a lambda would see the last session only.
        callables: dict[str, Any] = {name: partial(session, image) for name, session in sessions.items()}
        callables["onnxruntime"] = partial(reference, image)
        report = bench(callables, baseline="onnxruntime", measure_s=_BENCH_S * len(callables))
    return report, results, first.threads


def _only(outputs: dict[str, Any]) -> Any:
    (value,) = outputs.values()
    return value


def _show_runs(report: BenchReport, results: dict[str, Verification], threads: int) -> None:
    title = f"One image, {threads} threads, timed in turns"
    shown = table(title, "", "largest error", "agrees", "median", "of ONNX Runtime's time")
    ratios = {ratio.name: f"{ratio.median:.2f}" if ratio.median else "too noisy to say" for ratio in report.ratios}
    for timing in report.timings:
        result = results.get(timing.name)
        error = f"{result.outputs[0].max_abs_error:.1e}" if result else ""
        agrees = "" if result is None else "yes" if result.passed else "NO"
        shown.add_row(timing.name, error, agrees, f"{timing.p50_ms:.1f} ms", ratios.get(timing.name, ""))
    console().print(shown)
