"""The frontend of torch.export archives (`.pt2`): a Relax module, a description, and torch itself as reference.

Reading runs nothing that the file carries: see pt2_archive, pt2_check and pt2_weights. Then torch decomposes the
program (`graph`), and each node goes through its converter (`importer`, `ops`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from relaxc.service.errors import InvalidOption
from relaxc.service.frontend.model import ImportedModel, ModelInfo, Move, Reference, Shapes, Unsupported
from relaxc.service.frontend.pt2.double import InDouble, is_float32
from relaxc.service.frontend.pt2.graph import decompose, refuse, unsupported_nodes
from relaxc.service.frontend.pt2.moved_values import MovedValues
from relaxc.service.frontend.pt2.program import Document, Program, deserialize, parse
from relaxc.service.frontend.pt2.quantizations import (
    QUANTIZE,
    Moved,
    Unrounded,
    quantized_ranges,
    quantizes,
)
from relaxc.service.frontend.pt2.reference import TorchReference, to_numpy
from relaxc.service.frontend.pt2.signature import signature
from relaxc.service.frontend.pt2.state import state_of
from relaxc.service.request import ModelFormat
from relaxc.service.rounding import Rounding
from relaxc.service.signature import TensorSpec

__all__ = [
    "double_reference",
    "input_ranges",
    "inspect",
    "load",
    "moved_reference",
    "plain_reference",
    "reference",
    "tensors",
    "unquantized_reference",
]


def load(path: Path, *, shapes: Shapes, values: Mapping[str, int] | None = None) -> ImportedModel:
    """Return the program as Relax, symbolic dims bound or renamed by `shapes`.

    Raise a ModelError, InvalidShape for `shapes` that do not fit, or CompileFailed for a fault of ours or torch's.
    """
    if values:
        raise InvalidOption("--value is for ONNX: an export has fixed what is no tensor", option="values")
    document = parse(path)
    found, symbols = signature(document.interface, shapes)  # first: it is cheap, and refuses most wrong shapes
    program, unsupported = _decomposed(document)
    refuse(unsupported)
    from relaxc.service.frontend.pt2.importer import to_relax

    module = to_relax(program, document.interface, symbols)
    state, initial = _state(program)
    held = replace(
        found,
        conditions=(*found.conditions, *symbols.conditions.values()),
        state=state,
        initial=tuple(initial),
    )
    return ImportedModel(module, held, document.op_counts, initial)


def _state(program: Any) -> tuple[tuple[TensorSpec, ...], dict[str, Any]]:
    """Return the buffers that the program changes, and the first values of those that do not begin with 0."""
    stored = {**program.state_dict, **program.constants}
    specs, initial = [], {}
    for name in state_of(program):
        array = to_numpy(stored[name], None)
        specs.append(TensorSpec(name, str(array.dtype), array.shape))
        if array.reshape(-1).view("uint8").any():  # -0.0 is no 0
            initial[name] = array
    return tuple(specs), initial


def inspect(path: Path) -> ModelInfo:
    """Return the signature, the operators and which of them are not supported. Raise a ModelError."""
    document = parse(path)
    found, _ = signature(document.interface, {})
    program, unsupported = _decomposed(document)
    if program is not None:
        state, initial = _state(program)
        found = replace(found, state=state, initial=tuple(initial))
    return ModelInfo(ModelFormat.PT2, found, document.op_counts, unsupported, document.details)


def _decomposed(document: Document) -> tuple[Any, dict[str, Unsupported]]:
    """The program decomposed, None if torch cannot trace it, and the operators that no converter takes."""
    if document.unknown and not document.traceable:
        return None, document.unknown
    program = decompose(deserialize(document).exported)
    return program, unsupported_nodes(program)


def tensors(path: Path) -> Iterator[Any]:
    """Return the arrays of the program's parameters, buffers and constants."""
    import torch

    exported = deserialize(parse(path)).exported
    held = (value for part in (exported.state_dict, exported.constants) for value in part.values())
    return (to_numpy(value, None) for value in held if isinstance(value, torch.Tensor))


def reference(
    path: Path, *, threads: int, shapes: Shapes, fastest: bool = False, rounding: Rounding | None = None
) -> Reference:
    """Return the program as it was exported, run by torch in its own dtypes with `threads` threads; torch has no faster
    way that does not compile, so `fastest` changes nothing. With `rounding` all but lookups read rounded weights.
    """
    del fastest
    document = parse(path, writable=True)
    refuse(document.unknown)
    signature(document.interface, shapes)
    return TorchReference(document, deserialize(document), threads, rounding=rounding)


def moved_reference(
    path: Path, move: Move, *, threads: int, shapes: Shapes, seed: int, by: float, rounding: Rounding | None = None
) -> Reference | None:
    """Return `reference` with `move` of the program moved, None for a program that has none."""
    document = parse(path, writable=True)
    refuse(document.unknown)
    signature(document.interface, shapes)
    program = deserialize(document)
    if move is Move.QUANTIZATIONS:
        nodes = program.exported.graph.nodes
        if not any(quantizes(str(node.target), (*node.args[1:], *node.kwargs.values())) for node in nodes):
            return None
        moved = Moved(seed, by)
        return TorchReference(document, program, threads, quantizations=lambda: moved)
    if move is Move.VALUES:
        return TorchReference(document, program, threads, rounding=rounding, values=MovedValues(seed, by))
    _move_weights(program, seed, by)
    return TorchReference(document, program, threads)


def plain_reference(path: Path, *, threads: int, shapes: Shapes, rounding: Rounding | None = None) -> None:
    """Return None: torch runs the program as it was exported, and rewrites nothing."""


def double_reference(
    path: Path, *, shapes: Shapes, rounding: Rounding | None = None, moves: tuple[int, float] | None = None
) -> Reference | None:
    """Return `reference` in double precision, None for a program that quantizes or holds nothing in float32, and where
    its values are to be moved.
    """
    if moves is not None:
        return None
    document = parse(path, writable=True)
    if any(name.startswith(QUANTIZE) for name in document.op_counts):
        return None
    refuse(document.unknown)
    signature(document.interface, shapes)
    found = TorchReference(document, deserialize(document), 1, rounding=rounding, values=InDouble())
    return found if any(is_float32(value) for value in found.stored.values()) else None


def _move_weights(program: Program, seed: int, by: float) -> None:
    """Have other weights in the program; a number alone is no weight."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    for held in (program.exported.constants, program.exported.state_dict):
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1:
                factor = 1 + by * (2 * torch.rand(value.shape, generator=draw) - 1)
                held[name] = (value.detach() * factor).to(value.dtype)


def unquantized_reference(path: Path, *, threads: int, shapes: Shapes) -> Reference | None:
    """Return `reference` without the rounding of activations, None for a program that has none."""
    document = parse(path, writable=True)
    if not any(name.startswith(QUANTIZE) for name in document.op_counts):
        return None
    refuse(document.unknown)
    signature(document.interface, shapes)
    return TorchReference(document, deserialize(document), threads, quantizations=Unrounded)


def input_ranges(path: Path) -> dict[str, tuple[float, float]]:
    """Return input → the range that a quantized program was made for: that of what quantizes it by one scale."""
    document = parse(path)
    if not any(name.startswith(QUANTIZE) for name in document.op_counts):
        return {}
    refuse(document.unknown)
    return quantized_ranges(deserialize(document).exported)
