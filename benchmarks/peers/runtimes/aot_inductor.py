"""AOTInductor with freezing: the exported program compiled to a package of C++ and constants."""

from __future__ import annotations

import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.files import arguments, build, read_inputs
from benchmarks.peers.runtimes import Loaded, Prepared
from benchmarks.peers.runtimes.torch_eager import leaves

COUNTS = True

_AVX2_BITS = 256
_ARGUMENTS = "aotinductor-arguments.pt"


def version() -> str:
    """See Runtime."""
    return metadata.version("torch")


def supports(case: Case) -> bool:
    """See Runtime."""
    return not (case.is_file or case.quantized)


def _package(folder: Path, threads: int) -> Path:
    return folder / f"aotinductor-{version()}-{threads}.pt2"


def prepare(case: Case, folder: Path, threads: int) -> Prepared:
    """See Runtime. A package that is there is kept, as compiling takes minutes."""
    package, record = _package(folder, threads), _package(folder, threads).with_suffix(".json")
    if not record.exists():
        seconds = _compile(case, folder, package, threads)
        record.write_text(json.dumps(seconds))
    return Prepared(package.stat().st_size, json.loads(record.read_text()))


def _compile(case: Case, folder: Path, package: Path, threads: int) -> float:
    """Compiles the program as its .pt2 holds it, for this many threads; seconds, without the export."""
    import torch

    torch.set_num_threads(threads)
    model = build(case)
    args, kwargs = arguments(model, read_inputs(folder))
    torch.save((args, kwargs), folder / _ARGUMENTS)
    with torch.no_grad():
        configs: dict[str, Any] = {"freezing": True}
        if case.target is not None:
            configs |= {"cpp.march": case.target, "cpp.simdlen": _AVX2_BITS}
        program = torch.export.export(_with_flat_outputs(model.module), args, kwargs)
        start = time.perf_counter()
        torch._inductor.aoti_compile_and_package(program, package_path=str(package), inductor_configs=configs)
        return round(time.perf_counter() - start, 2)


def _with_flat_outputs(module: Any) -> Any:
    """The module with its output tensors in a tuple: a package with a class of transformers in its signature loads only
    where that is imported."""
    import torch
    from torch.utils import _pytree as pytree

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            leaves = pytree.tree_leaves(self.module(*args, **kwargs))
            return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    return Flat().eval()


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    import torch

    torch.set_num_threads(threads)
    loaded = torch._inductor.aoti_load_package(str(_package(folder, threads)))
    args, kwargs = torch.load(folder / _ARGUMENTS, weights_only=True)

    def run() -> Any:
        with torch.inference_mode():
            return loaded(*args, **kwargs)

    return Loaded(run, leaves)
