"""The files of a case: its model as ONNX, its inputs, and what each runtime compiled of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cases import Case
from benchmarks.peers.quantize import quantize
from tests import zoo

__all__ = [
    "Array",
    "arguments",
    "build",
    "code_digest",
    "export",
    "named_tensors",
    "onnx_path",
    "plain_path",
    "read_inputs",
]

Array = np.ndarray[Any, Any]


def onnx_path(case: Case, folder: Path) -> Path:
    """Where the case's model is, as ONNX."""
    return Path(case.model) if case.is_file else folder / "model.onnx"


def plain_path(case: Case, folder: Path) -> Path:
    """Where the case's model in fp32 is, as ONNX: what a quantized one was made of."""
    return folder / "fp32.onnx" if case.quantized else onnx_path(case, folder)


def code_digest(artifact: Path) -> str:
    """Return a digest of what an artifact executes: its code and its constants, without manifest and weights.

    Equal digests are equal kernels, however the two were made.
    """
    from elftools.elf.elffile import ELFFile

    total = hashlib.sha256()
    with artifact.open("rb") as file:
        elf = ELFFile(file)
        for name in (".text", ".rodata", ".data.rel.ro"):
            section = elf.get_section_by_name(name)
            total.update(f"{name}\0".encode() + (section.data() if section is not None else b""))
    return total.hexdigest()


def read_inputs(folder: Path) -> dict[str, Array]:
    """The case's inputs by name, the same for every runtime."""
    with np.load(folder / "inputs.npz") as file:
        return dict(file)


def build(case: Case) -> zoo.ZooModel:
    """The case's module with its inputs; equal cases give equal numbers."""
    return zoo.sized(zoo.build(case.model, size=case.size), batch=case.batch, tokens=case.tokens)


def export(case: Case, folder: Path) -> None:
    """Writes the model and its inputs, if they are not there. Inputs of a file are random."""
    if (folder / "inputs.npz").exists():
        return
    if case.is_file:
        inputs = _random_inputs(Path(case.model))
    else:
        model = build(case)
        zoo.write_onnx(model, folder / "exported.onnx")
        inputs = {name: value.numpy() for name, value in named_tensors(model).items()}
        (folder / "exported.onnx").rename(plain_path(case, folder))
        if case.quantized:
            quantize(plain_path(case, folder), onnx_path(case, folder), inputs)
    np.savez(folder / "unnamed.npz", **inputs)  # type: ignore[arg-type]  # its **kwds are arrays
    (folder / "unnamed.npz").rename(folder / "inputs.npz")


def _random_inputs(path: Path) -> dict[str, Array]:
    from relaxc.service import frontend
    from relaxc.service.runtime.inputs import random_inputs

    return random_inputs(frontend.inspect(path, frontend.identify(path)).signature)


def named_tensors(model: zoo.ZooModel) -> dict[str, Any]:
    """The model's tensors by the names of its forward's parameters, which are those of the ONNX file."""
    import inspect

    import torch

    bound = inspect.signature(model.module.forward).bind(*model.args, **model.kwargs)
    return {name: value for name, value in bound.arguments.items() if isinstance(value, torch.Tensor)}


def arguments(model: zoo.ZooModel, inputs: Mapping[str, Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of the torch module, its tensors replaced by `inputs`."""
    import torch

    names = {id(value): name for name, value in named_tensors(model).items()}

    def given(value: Any) -> Any:
        return torch.from_numpy(inputs[names[id(value)]]) if id(value) in names else value

    return tuple(map(given, model.args)), {name: given(value) for name, value in model.kwargs.items()}
