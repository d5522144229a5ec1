"""The ONNX frontend: load, inspect and reference for a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from relaxc.service.codes import CARRIER, FORMATS
from relaxc.service.errors import InvalidShape, ModelError, ModelMalformed, UnsupportedModel
from relaxc.service.frontend.model import ImportedModel, ModelInfo, Move, Reference, Shapes
from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx import scope as onnx_scope
from relaxc.service.frontend.onnx.file import outline
from relaxc.service.frontend.onnx.function import with_types
from relaxc.service.frontend.onnx.graph import Graph, check, read
from relaxc.service.frontend.signature import signature_of
from relaxc.service.request import ModelFormat
from relaxc.service.rounding import Rounding
from relaxc.service.signature import Dim, DimBounds, Signature, TensorSpec

__all__ = [
    "double_reference",
    "input_ranges",
    "inspect",
    "load",
    "moved_reference",
    "plain_reference",
    "reference",
    "samples",
    "tensors",
    "unquantized_reference",
]


def load(path: Path, *, shapes: Shapes, values: Mapping[str, int] | None = None) -> ImportedModel:
    """Return the model as Relax, with `shapes` in place of the inputs' symbolic dims, for these `values` alone.

    Raise a ModelError for a file that cannot be used, UnsupportedModel with every unsupported node,
    and InvalidShape for a shape that does not fit the model.
    """
    graph = read(path)
    inputs = with_shapes(input_specs(graph), shapes)
    # TVM is imported here and not before: a file that cannot be read needs none of it.
    from relaxc.service.frontend.onnx import support as onnx_support

    missing = onnx_support.unsupported(graph)
    if missing:
        raise onnx_support.unsupported_error(missing)
    check(graph)
    return _imported(graph, inputs, values or {})


def _imported(graph: Graph, inputs: list[TensorSpec], values: Mapping[str, int]) -> ImportedModel:
    """The import, begun anew where a size turns out to be another, and with each branch that sizes decide on: the first
    by which outputs have the axes that the file says, else the first that is a model at all.
    """
    from relaxc.service.frontend.onnx import importer

    open_: list[tuple[dict[str, bool], list[TensorSpec]]] = []
    choices: dict[str, bool] = {}
    fits: dict[tuple[str, bool], dict[str, list[str]]] = {}
    barred: dict[tuple[str, bool], str] = {}
    found: ImportedModel | None = None
    failed: ModelError | None = None
    for _ in range(_MOST_IMPORTS):
        scope = onnx_scope.Scope(choices, fits, barred)
        try:
            module, outputs = importer.build(graph, inputs, scope, values)
        except onnx_scope.Equal as equal:
            # One name less each time, so this ends.
            inputs = _renamed(inputs, {equal.name: equal.dim})
            continue
        except onnx_scope.Fit as fit:
            fits.setdefault(fit.key, {}).setdefault(fit.name, []).append(fit.text)
            continue
        except onnx_scope.Barred as bar:
            barred[bar.key] = bar.why
            continue
        except onnx_scope.Choice as choice:
            # That a condition of sizes does not hold leaves more of them.
            open_.append(({**choices, choice.name: True}, inputs))
            choices = {**choices, choice.name: False}
            continue
        except ModelError as error:
            failed = failed or error
        else:
            found = found or ImportedModel(module, signature_of(inputs, outputs, scope), graph.op_counts)
            if _has_declared_axes(graph, outputs):
                return ImportedModel(module, signature_of(inputs, outputs, scope), graph.op_counts)
        if not open_:
            break
        choices, inputs = open_.pop()
    if found is not None:
        return found
    raise failed or UnsupportedModel(f"sizes decide on branches in more than {_MOST_IMPORTS} ways")


_MOST_IMPORTS = 256


def _has_declared_axes(graph: Graph, outputs: list[TensorSpec]) -> bool:
    """Whether outputs have as many axes as the file declares, where it does."""
    kinds = {value.name: value.type.tensor_type for value in graph.model.graph.output}
    return all(
        not kinds[spec.name].HasField("shape") or len(kinds[spec.name].shape.dim) == len(spec.shape) for spec in outputs
    )


def inspect(path: Path) -> ModelInfo:
    """Return what the file holds: signature as declared, operators, unsupported nodes."""
    from relaxc.service.frontend.onnx import support as onnx_support

    graph = read(path)
    missing = onnx_support.unsupported(graph)
    if not missing:
        check(graph)
    inputs = input_specs(graph)
    declared = _values(with_types(graph.model).graph.output, graph.outputs)
    taken = _names(graph)
    outputs = tuple(_spec(value, f"output {value.name!r}", taken) for value in declared)
    names = sorted({name for spec in (*inputs, *outputs) for dim in spec.shape for name in onnx_dims.names_in(dim)})
    signature = Signature(tuple(inputs), outputs, tuple((name, DimBounds()) for name in names))
    return ModelInfo(ModelFormat.ONNX, signature, graph.op_counts, missing, graph.details)


def tensors(path: Path) -> Iterator[Any]:
    """Return the arrays of the file's tensors."""
    from relaxc.service.frontend.onnx import file

    model, outside = file.mapped(path)
    file.check_tensors(model, path, outside)
    return (file.array(tensor, path.parent, outside) for tensor in file.tensors(model))


def reference(
    path: Path, *, threads: int, shapes: Shapes, fastest: bool = False, rounding: Rounding | None = None
) -> Reference:
    """Return the model in ONNX Runtime on the CPU; `shapes` needs nothing, as the session takes the shapes it is
    given.
    """
    from relaxc.service.frontend.onnx.reference import reference as build

    return build(path, threads, fastest=fastest, rounding=rounding)


def moved_reference(
    path: Path, move: Move, *, threads: int, shapes: Shapes, seed: int, by: float, rounding: Rounding | None = None
) -> Reference | None:
    """Return `reference` with `move` of the model moved, None for a model that has none."""
    from relaxc.service.frontend.onnx.reference import moved_reference as build

    return build(path, threads, move, seed, by, rounding)


def plain_reference(path: Path, *, threads: int, shapes: Shapes, rounding: Rounding | None = None) -> Reference | None:
    """Return `reference` without ONNX Runtime's optimizations."""
    from relaxc.service.frontend.onnx.reference import plain_reference as build

    return build(path, threads, rounding)


def double_reference(
    path: Path, *, shapes: Shapes, rounding: Rounding | None = None, moves: tuple[int, float] | None = None
) -> Reference | None:
    """Return `reference` in double precision, None for a model that quantizes or does not run so."""
    from relaxc.service.frontend.onnx.reference import double_reference as build

    return build(path, rounding, moves)


def unquantized_reference(path: Path, *, threads: int, shapes: Shapes) -> Reference | None:
    """Return `reference` without the rounding of activations, None for a model that has none."""
    from relaxc.service.frontend.onnx.reference import unquantized_reference as build

    return build(path, threads)


def input_ranges(path: Path) -> dict[str, tuple[float, float]]:
    """Return input → the range that a quantized model was made for, or of the places that it has in a table."""
    from relaxc.service.frontend.onnx.ranges import has_codes, index_ranges
    from relaxc.service.frontend.onnx.ranges import input_ranges as ranges

    model = outline(path)
    return index_ranges(model) | (ranges(read(path).model) if has_codes(model) else {})


def samples(path: Path, file: Path) -> list[dict[str, Any]]:
    """Return the samples of the model's inputs that an `.npz` has."""
    from relaxc.service.frontend.onnx.samples import read_samples

    return read_samples(file, input_specs(read(path)))


def _values(values: Iterable[Any], names: Iterable[str]) -> list[Any]:
    by_name = {value.name: value for value in values}
    return [by_name[name] for name in names]


def input_specs(graph: Graph) -> list[TensorSpec]:
    """Return the inputs as the file declares them, an unnamed dim called `<input>_<axis>`.

    An expression in a dim stays one when its names are sizes of their own elsewhere; otherwise it is a name.
    """
    taken = _names(graph)
    specs = [_spec(value, f"input {value.name!r}", taken) for value in _values(graph.model.graph.input, graph.inputs)]
    bare = {dim for spec in specs for dim in spec.shape if isinstance(dim, str) and dim.isidentifier()}

    def settled(dim: Dim) -> Dim:
        if isinstance(dim, int) or onnx_dims.names_in(dim) <= bare:
            return dim
        return onnx_dims.identifier(dim)

    return [replace(spec, shape=tuple(map(settled, spec.shape))) for spec in specs]


def _names(graph: Graph) -> set[str]:
    """The words in dims, of which none is another's name."""
    values = [*graph.model.graph.input, *graph.model.graph.output]
    texts = [dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim]
    return {name for text in texts for name in re.findall(r"\w+", text)}


def _spec(value: Any, what: str, taken: Collection[str]) -> TensorSpec:
    from relaxc.service.frontend.onnx.node import DTYPES, dtype_name

    tensor = value.type.tensor_type
    try:
        dtype = dtype_name(tensor.elem_type)
    except KeyError as error:
        raise ModelMalformed(f"{what} has the undefined dtype {tensor.elem_type}", tensor=value.name) from error
    if dtype not in DTYPES and dtype not in FORMATS:
        raise UnsupportedModel(f"{what} has the dtype {dtype}", tensor=value.name, dtype=dtype)
    shape = tuple(_dim(value.name, axis, dim, taken) for axis, dim in enumerate(tensor.shape.dim))
    codes = dtype if dtype in FORMATS else None
    return TensorSpec(value.name, CARRIER if codes else dtype, shape, codes)


def _dim(name: str, axis: int, dim: Any, taken: Collection[str]) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    # Paddle writes '?' for each size that it does not know.
    is_named = re.search(r"[^\W_]", dim.dim_param)
    return onnx_dims.dim_of_text(dim.dim_param, taken) if is_named else onnx_dims.identifier(f"{name}_{axis}")


def with_shapes(specs: list[TensorSpec], shapes: Shapes) -> list[TensorSpec]:
    """Return the inputs with the user's shapes: a symbolic dim fixed or renamed, everywhere it occurs.

    Raise InvalidShape for an unknown input, another rank, or a size that the model fixes otherwise.
    """
    swap: dict[str, Dim] = {}
    by_name = {spec.name: spec for spec in specs}
    for name, wanted in shapes.items():
        if name not in by_name:
            raise InvalidShape(f"the model has no input {name!r}; it has {', '.join(by_name)}", name=name)
        _match(by_name[name], wanted, swap)
    return _renamed(specs, swap)


def _renamed(specs: list[TensorSpec], swap: dict[str, Dim]) -> list[TensorSpec]:
    return [replace(s, shape=tuple(onnx_dims.replaced(dim, swap) for dim in s.shape)) for s in specs]


def _match(spec: TensorSpec, wanted: tuple[Dim, ...], swap: dict[str, Dim]) -> None:
    if len(wanted) != len(spec.shape):
        raise InvalidShape(f"input {spec.name!r} has rank {len(spec.shape)}, not {len(wanted)}", name=spec.name)
    for have, want in zip(spec.shape, wanted, strict=True):
        if isinstance(want, str) and (not want.isidentifier() or onnx_dims.is_word(want)):
            raise InvalidShape(f"{want!r} is neither a size nor a name", name=spec.name)
        if isinstance(have, int):
            if want != have:
                raise InvalidShape(f"input {spec.name!r} has the fixed size {have}, not {want}", name=spec.name)
        elif have.isidentifier():
            if swap.setdefault(have, want) != want:
                raise InvalidShape(f"dim {have!r} cannot be both {swap[have]} and {want}", name=spec.name)
        elif want != have:
            raise InvalidShape(f"dim {have!r} of {spec.name!r} follows from others; fix these", name=spec.name)
