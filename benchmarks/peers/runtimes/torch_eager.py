"""PyTorch eager: the module itself."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.files import arguments, build, read_inputs
from benchmarks.peers.runtimes import Loaded, Prepared

COUNTS = True


def version() -> str:
    """See Runtime."""
    return metadata.version("torch")


def supports(case: Case) -> bool:
    """See Runtime."""
    return not (case.is_file or case.quantized)


def prepare(case: Case, folder: Path, threads: int) -> Prepared:
    """See Runtime. There is nothing to ship but the weights."""
    model = build(case)
    parts = [*model.module.parameters(), *model.module.buffers()]
    return Prepared(sum(part.numel() * part.element_size() for part in parts))


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    import torch

    torch.set_num_threads(threads)
    model = build(case)
    args, kwargs = arguments(model, read_inputs(folder))

    def run() -> Any:
        with torch.inference_mode():
            return model.module(*args, **kwargs)

    return Loaded(run, leaves)


def leaves(result: Any) -> list[Any]:
    """The tensors of a result as numpy arrays, in order."""
    import torch
    from torch.utils import _pytree as pytree

    return [value.numpy() for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
