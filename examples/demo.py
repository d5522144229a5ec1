"""`make demo`: a ResNet-18 through the HTTP service, from both formats, beside ONNX Runtime. Takes about a minute."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from relaxc.service.runtime.bench import BenchReport
    from relaxc.service.runtime.verification import Verification

ROOT = Path(__file__).parent.parent
START_S = 60.0
STOP_S = 20.0
BENCH_S = 1.5
"""Seconds of timing for each callable."""

out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Answer:
    """What the server sent for a model."""

    path: Path
    status: int
    seconds: float
    headers: dict[str, str]


def main() -> int:
    """Runs the demo; 0 when both artifacts agree with ONNX Runtime. Stops the server in any case."""
    signal.signal(signal.SIGTERM, _terminate)
    with tempfile.TemporaryDirectory(prefix="relaxc-demo-") as name:
        folder = Path(name)
        try:
            return _demo(folder)
        except KeyboardInterrupt:
            out.print("interrupted")
            return 130
        except subprocess.CalledProcessError as error:
            out.print(f"{' '.join(map(str, error.cmd))} failed:\n{error.stderr or error.output}", markup=False)
            return 1


def _demo(folder: Path) -> int:
    out.print("about a minute, most of it two compiles and their verification")
    with _step("a ResNet-18 with random weights, as ONNX and as .pt2"):
        _run([sys.executable, "-m", "examples.resnet18", folder])
    models = [folder / "resnet18.onnx", folder / "resnet18.pt2"]
    with _server(folder) as address:
        answers = [_post(address, path, path.with_suffix(path.suffix + ".so")) for path in (*models, models[0])]
    _show_answers(answers)
    if any(answer.status != 200 for answer in answers):
        return 1
    return _compare(models[0], [answer.path for answer in answers[:2]])


@contextmanager
def _step(what: str) -> Iterator[None]:
    start = time.perf_counter()
    if not out.is_terminal:  # where nothing turns
        out.print(f"  {what} …")
    with out.status(what):
        yield
    out.print(f"[green]✓[/] {what}  [dim]{time.perf_counter() - start:.1f} s[/]")


def _run(command: list[Any]) -> str:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """`relaxc serve` on a free port of this machine, with a store of its own; stopped at the end, whatever happens."""
    env = {**os.environ, "RELAXC_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "relaxc", "serve", "--host", "127.0.0.1", "--port", "0"]
    log = folder / "server.log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True) as server,
    ):
        try:
            with _step("relaxc serve, on loopback"):
                address = _address(server, log)
            yield address
        finally:
            server.terminate()
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
    out.print("[green]✓[/] the server is stopped")


def _address(server: subprocess.Popen[str], log: Path) -> str:
    """The address in the server's first line. Raises CalledProcessError with its log if there is none."""
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], START_S)
    line = server.stdout.readline() if ready else ""
    if "http://" not in line:
        raise subprocess.CalledProcessError(server.poll() or 1, server.args, stderr=log.read_text())
    return line.split()[-1]


def _post(address: str, model: Path, output: Path) -> Answer:
    """`curl -F model=@MODEL ADDRESS/v1/compile -o OUTPUT`; by httpx where curl is not installed."""
    curl = shutil.which("curl")
    with _step(f"POST {model.name} with {'curl' if curl else 'httpx (curl is not installed)'}"):
        return (_post_with_curl if curl else _post_with_httpx)(f"{address}/v1/compile", model, output)


def _post_with_curl(url: str, model: Path, output: Path) -> Answer:
    head = output.with_suffix(".headers")
    timing = _run(
        ["curl", "-sS", "-F", f"model=@{model}", url, "-o", output, "-D", head, "-w", "%{http_code} %{time_total}"]
    )
    status, seconds = timing.split()
    pairs = [line.split(": ", 1) for line in head.read_text().splitlines() if ": " in line]
    return Answer(output, int(status), float(seconds), {name.lower(): value for name, value in pairs})


def _post_with_httpx(url: str, model: Path, output: Path) -> Answer:
    import httpx

    start = time.perf_counter()
    with model.open("rb") as file:
        response = httpx.post(url, files={"model": (model.name, file)}, timeout=600)
    output.write_bytes(response.content)
    return Answer(output, response.status_code, time.perf_counter() - start, dict(response.headers))


def _show_answers(answers: list[Answer]) -> None:
    table = Table(
        "answer", "status", "after", "size", "from", "verified against the reference", title="What the server sent"
    )
    for answer in answers:
        name = answer.path.name.removesuffix(".so")
        after = f"{answer.seconds:.2f} s"
        if answer.status != 200:
            table.add_row(name, str(answer.status), after, "", "", escape(answer.path.read_text()[:500]))
            continue
        source = "the store" if "hit" in answer.headers.get("cache-status", "") else "a compile"
        size = f"{answer.path.stat().st_size / 1e6:.1f} MB"
        table.add_row(name, "200", after, size, source, _verification(answer.path))
    out.print(table)


def _verification(path: Path) -> str:
    from relaxc.service.artifact.manifest import Manifest
    from relaxc.service.cli.report import verification

    return verification(Manifest.read(path))[0]


def _compare(model: Path, artifacts: list[Path]) -> int:
    """Runs both artifacts and ONNX Runtime on the same image, in turns, with as many threads each."""
    with _step("run both artifacts beside ONNX Runtime"):
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tvm would spend seconds on importing it
        from relaxc import load
        from relaxc.service import frontend
        from relaxc.service.runtime.bench import bench
        from relaxc.service.runtime.compare import compare
        from relaxc.service.runtime.inputs import random_inputs

        sessions = {path.name.removesuffix(".so"): load(path) for path in artifacts}
        first = next(iter(sessions.values()))
        reference = frontend.reference(model, frontend.identify(model), threads=first.threads, fastest=True)
        image = random_inputs(first.signature, seed=1)
        wanted = _only(reference(image))
        results = {name: compare({"y": _only(session(image))}, {"y": wanted}) for name, session in sessions.items()}
        # Arguments are bound now: a lambda would see the last session only.
        callables: dict[str, Any] = {name: partial(session, image) for name, session in sessions.items()}
        callables["onnxruntime"] = partial(reference, image)
        report = bench(callables, baseline="onnxruntime", measure_s=BENCH_S * len(callables))
    _show_runs(report, results, first.threads)
    return 0 if all(result.passed for result in results.values()) else 1


def _only(outputs: dict[str, Any]) -> Any:
    (value,) = outputs.values()
    return value


def _show_runs(report: BenchReport, results: dict[str, Verification], threads: int) -> None:
    title = f"One image, {threads} threads, timed in turns"
    table = Table("", "largest error", "agrees", "median", "of ONNX Runtime's time", title=title)
    ratios = {ratio.name: f"{ratio.median:.2f}" if ratio.median else "?" for ratio in report.ratios}
    for timing in report.timings:
        result = results.get(timing.name)
        error = f"{result.outputs[0].max_abs_error:.1e}" if result else ""
        agrees = "" if result is None else "yes" if result.passed else "NO"
        table.add_row(timing.name, error, agrees, f"{timing.p50_ms:.1f} ms", ratios.get(timing.name, ""))
    out.print(table)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unlike the default, this unwinds: the server is stopped


if __name__ == "__main__":
    sys.exit(main())
