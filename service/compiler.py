"""One compile from a model file to a verified artifact: the only page that knows every stage.

load → optimize → schedule → build → verify → pack. `prepare` makes the frozen request and is cheap;
`run` does the work in this process and is called in a child by `jobs.worker`, under limits.
"""

from __future__ import annotations

import json
import platform
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.config import settings
from service.dump import Dump, DumpFolder, no_dump
from service.errors import CompileFailed, CompilerOutOfMemory, RelaxcError, VerificationFailed
from service.request import CompileOptions, CompileRequest

if TYPE_CHECKING:
    from service.artifact.manifest import Manifest
    from service.frontend import ImportedModel
    from service.runtime.compare import Verification

__all__ = ["STAGES", "Emit", "prepare", "run"]

Emit = Callable[[dict[str, Any]], None]

STAGES = ("import", "optimize", "schedule", "build", "verify", "pack")


def prepare(path: Path | str, *, target: str = "auto", options: CompileOptions | None = None) -> CompileRequest:
    """The frozen request for the model at `path`: its format and digest, and the target resolved. Imports no tvm.

    Raises ModelNotFound, UnknownFormat, ModelTooLarge, ModelUnsafe or InvalidTarget.
    """
    from service import frontend
    from service.lowering.target import resolve

    path = Path(path).absolute()  # the child has another working folder
    return CompileRequest(frontend.digest(path, frontend.identify(path)), resolve(target), options or CompileOptions())


@dataclass
class Stages:
    """Tells the caller about each stage, times it, and gives what a stage raises the stage's name."""

    emit: Emit
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[Callable[[int, int], None]]:
        self.emit({"event": "stage", "stage": name, "state": "start"})
        start = time.perf_counter()
        try:
            yield lambda done, total: self.emit({"event": "progress", "stage": name, "done": done, "total": total})
        except RelaxcError as error:
            error.fields.setdefault("stage", name)
            raise
        except MemoryError as error:
            raise CompilerOutOfMemory(f"stage {name} ran out of memory", stage=name) from error
        except Exception as error:  # noqa: BLE001  # the one place where a stage's bug gets its name
            raise CompileFailed(f"stage {name}: {_first_line(error)}", stage=name) from error
        self.seconds[name] = round(time.perf_counter() - start, 4)
        self.emit({"event": "stage", "stage": name, "state": "done", "seconds": self.seconds[name]})


def run(request: CompileRequest, workdir: Path, emit: Emit, *, dump_dir: Path | None = None) -> None:
    """Compile `request` in this process; leaves the files that the `result` event names, and build.json, in `workdir`.

    Raises a RelaxcError, whose `fields["stage"]` names the stage that failed.
    """
    from service import artifact, frontend, lowering, passes
    from service.lowering.target import to_tvm

    stage = Stages(emit)
    dump: Dump = DumpFolder(dump_dir) if dump_dir else no_dump
    options, target = request.options, to_tvm(request.target)
    plugins = [passes.load_plugin(Path(path)) for path in options.plugins]
    with stage("import"):
        imported = frontend.load(request.model.path, request.model.format, shapes=dict(options.shapes))
        dump("relax_imported", lambda: imported.module.script(show_meta=False))
    with stage("optimize"):
        optimized = passes.optimize(imported.module, target, options, plugins=plugins, dump=dump)
    with stage("schedule") as progress:
        scheduled = lowering.schedule(
            optimized.module, request.target, opt_level=options.opt_level, dump=dump, progress=progress
        )
    with stage("build"):
        module, memory = passes.finalize(scheduled.module, target, bounds=imported.signature.bounds)
        library = workdir / "library.so"
        lowering.build(module, request.target, library, dump=dump)
    manifest = _manifest(request, imported, optimized, memory, scheduled)
    with stage("verify") as progress:
        manifest = manifest.with_verification(_verify(request, imported, library, optimized.weights, manifest, progress))
    with stage("pack"):
        files = artifact.pack(
            library,
            optimized.weights,
            manifest,
            workdir / "model.so",
            embed_max_bytes=settings().embed_weights_max_bytes,
        )
        library.unlink()
    record = {
        "stages": stage.seconds,
        "host": platform.node(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (workdir / "build.json").write_text(json.dumps(record))
    emit({"event": "result", "files": [file.name for file in files], "stages": stage.seconds})


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
