"""One commit's half of a replay: a line of JSON in, the digests of a compile's kernels out.

It runs with the packages of the commit that it is given, old or new, and so uses nothing else of this repository, and
of the compiler only what each commit has.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Kernels", "digest", "unpackaged"]

_PACKAGES = re.compile(r"\brelaxc\.(?=(?:service|schedules)\b)")
_NAME = "kernel"


def unpackaged(text: str) -> str:
    """Return the text as it is where the packages `service` and `schedules` have no parent."""
    return _PACKAGES.sub("", text)


def digest(data: str | bytes) -> str:
    """Return 16 hex digits of SHA-256."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


class Kernels:
    """The compiler of one commit, whose tree is at `root`, a folder named relaxc."""

    def __init__(self, root: Path) -> None:
        told = (root / "service" / "compiler.py").read_text()
        self._prefix = "relaxc." if "from relaxc.service" in told else ""
        self._code: dict[tuple[str, str], dict[str, str]] = {}
        sys.path.insert(0, str(root.parent if self._prefix else root))
        if self._prefix and not (root / "__init__.py").exists():  # an installed one would go before a bare folder
            sys.modules["relaxc"] = package = ModuleType("relaxc")
            package.__path__ = [str(root)]

    def _module(self, name: str) -> Any:
        return import_module(self._prefix + name)

    def of(self, model: Path, target: str, options: dict[str, Any], texts: Path | None) -> dict[str, Any]:
        """Return the digests of one compile, by kernel; or, under `refused`, what the compile was refused with.

        A kernel has `tir` and `code`, for CUDA also `cuda`; and where it was scheduled `key` and `plan`.
        With `texts`, a folder, the texts behind the digests are written there.
        """
        try:
            return self._of(model, target, options, texts)
        except self._module("service.errors").RelaxcError as error:
            return {"refused": unpackaged(f"{type(error).__name__}: {error}")}

    def _of(self, model: Path, target: str, options: dict[str, Any], texts: Path | None) -> dict[str, Any]:
        stages = self._module("service.compiling.stages").Stages(lambda event: None)
        compiler, passes = self._module("service.compiler"), self._module("service.passes")
        asked = self._module("service.request").CompileOptions.from_dict({**options, "verify": False})
        request = compiler.prepare(model, target=target, options=asked)
        front = compiler.load_and_schedule(request, stages, self._module("service.dump").no_dump)
        to_tvm = self._module("service.lowering.target").to_tvm
        bounds = front.imported.signature.bounds
        module, _ = passes.finalize(front.scheduled.module, to_tvm(request.target), bounds=bounds)
        if request.target.kind == "llvm":
            module = self._module("service.lowering.trusted_arguments").trust_arguments(module)
        write = _writer(texts)
        kernels = self._module("service.lowering.objects").kernels_of(module)
        rows = {name: self._kernel(name, kernel, request.target, write) for name, kernel in kernels.items()}
        for row in front.scheduled.report:
            rows.setdefault(row["function"], {}).update(_scheduled(row))
        weights = {name: digest(value.numpy().tobytes()) for name, value in front.optimized.weights.items()}
        return {"kernels": rows, "graph": self._graph(module, write), "weights": digest(json.dumps(weights))}

    def _graph(self, module: Any, write: Callable[[str, str], None]) -> str:
        import tvm

        functions = {v: f for v, f in module.functions_items() if isinstance(f, tvm.relax.Function)}
        text = unpackaged(tvm.IRModule(functions).script(show_meta=False))
        write("graph.py", text)
        return digest(text)

    def _kernel(self, name: str, kernel: Any, spec: Any, write: Callable[[str, str], None]) -> dict[str, str]:
        import tvm

        functions = list(kernel.functions_items())
        if len(functions) == 1:  # its name is no part of what it does
            kernel = tvm.IRModule({_NAME: functions[0][1].with_attr("global_symbol", _NAME)})
        text = unpackaged(str(tvm.ir.save_json(kernel)))
        write(f"{name}.tir.py", unpackaged(kernel.script(show_meta=False)))
        key = (text, spec.name)
        if key not in self._code:
            self._code[key] = self._built(name, kernel, spec, write)
        return {"tir": digest(text), **self._code[key]}

    def _built(self, name: str, kernel: Any, spec: Any, write: Callable[[str, str], None]) -> dict[str, str]:

        objects = self._module("service.lowering.objects")
        timings = self._module("service.process.timings").Timings()
        if spec.kind == "llvm":
            return {"code": digest(objects.object_of(kernel, spec, timings))}
        os.environ["TVM_COMPILE_FORCE_FALLBACK"] = "1"  # as without a GPU: kernels stay text
        module = objects.compiled(kernel, spec, timings)
        parts = [module]
        for part in parts:
            parts.extend(part.imports)
        cuda = "\n".join(unpackaged(part.inspect_source("cuda")) for part in parts if part.kind == "cuda")
        host = "\n".join(unpackaged(part.inspect_source("ll")) for part in parts if part.kind == "llvm")
        write(f"{name}.cu", cuda)
        return {"cuda": digest(cuda), "code": digest(host)}


def _writer(folder: Path | None) -> Callable[[str, str], None]:
    if folder is None:
        return lambda name, text: None
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, text: str) -> None:
        (folder / name).write_text(text)

    return write


def _scheduled(row: dict[str, Any]) -> dict[str, str]:
    """What a schedule's report says: the record's key, and the rule with what it chose."""
    said = {name: row[name] for name in ("version", "source", "parameters")}
    plan = f"{row['rule']} {json.dumps(said, sort_keys=True)}"
    return {"key": f"{row['workload']} {row['dtype']} {row['shapes']}", "plan": plan}


def main() -> None:
    """Answer a line of standard input with a line of standard output, until there is no other."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints is not an answer
    kernels = Kernels(Path(sys.argv[1]))
    for line in sys.stdin:
        case = json.loads(line)
        texts = Path(case["texts"]) if case["texts"] else None
        print(json.dumps(kernels.of(Path(case["model"]), case["target"], case["options"], texts)), file=out, flush=True)


if __name__ == "__main__":
    main()
