"""ONNX Runtime as the reference; where it has no kernel, the model in fp32, or the ONNX project's own evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from relaxc.service.codes import FORMATS
from relaxc.service.errors import ModelMalformed, ModelTooLarge
from relaxc.service.frontend.model import Move, Reference
from relaxc.service.frontend.onnx.apart import may_die
from relaxc.service.frontend.onnx.double import in_double
from relaxc.service.frontend.onnx.evaluator import evaluated
from relaxc.service.frontend.onnx.file import array, check_tensors, mapped, one_line, outline, parse, tensors
from relaxc.service.frontend.onnx.light import light
from relaxc.service.frontend.onnx.moved import graphs, moved
from relaxc.service.frontend.onnx.moved_values import move_values, moves_inputs
from relaxc.service.frontend.onnx.noise import shapes_of
from relaxc.service.frontend.onnx.rounded import round_weights
from relaxc.service.frontend.onnx.sessions import (
    bare_session,
    open_session,
    reference_of,
    runtime_errors,
)
from relaxc.service.frontend.onnx.unquantized import quantizes, unquantized
from relaxc.service.frontend.onnx.widen import uses_bfloat16, widened
from relaxc.service.rounding import Rounding

__all__ = [
    "MOST_BYTES",
    "double_reference",
    "moved_reference",
    "own_data",
    "plain_reference",
    "plain_session",
    "reference",
    "unquantized_reference",
]

_ACCURACY = "accuracy_level"

MOST_BYTES = 1 << 31
"""Of a message of protobuf."""


def reference(path: Path, threads: int, *, fastest: bool = False, rounding: Rounding | None = None) -> Reference:
    """Run the model at `path` on arrays by name; one thread makes it repeatable.

    Only basic graph optimizations are on, since the extended ones trade digits for speed, and `fastest` turns them
    on: ONNX Runtime's own default. ONNX Runtime has no CPU kernels for most of bfloat16, and takes no array of numpy's
    for it: such a model runs with every bfloat16 as a float32, and its outputs are rounded. What it still does not
    take runs in onnx.reference, which is slow. With `rounding` products have the weights that this rounded.
    Raise ModelMalformed when none of them takes the model.
    """
    rounds = _rounds_activations(outline(path))
    given = _as_we_compute(path, rounding) if rounding is not None or rounds else None
    if _gives_causal_scores(outline(path)):
        return evaluated(given or _with_data(path), TypeError("it gives the lowest number for -inf"))
    try:
        session = (
            _of_file(path, threads, fastest)
            if given is None
            else open_session(given.SerializeToString(), threads, fastest, apart=_apart(path))
        )
        return _supported(reference_of(session), lambda error: evaluated(given or _with_data(path), error))
    except runtime_errors() as error:
        cause: Exception = error
    model = given or _with_data(path)
    if uses_bfloat16(model):
        try:
            return _rounded(model, threads)
        except runtime_errors():
            pass
    return evaluated(model, cause)


def _supported(run: Reference, otherwise: Callable[[Exception], Reference]) -> Reference:
    """What runs a model, or what `otherwise` makes: some kernels say only when they run that they have no float64."""
    made: list[Reference] = [run]

    def first(inputs: Mapping[str, Any], /) -> dict[str, Any]:
        try:
            return made[-1](inputs)
        except ModelMalformed as error:
            if len(made) > 1 or "not support" not in str(error.__cause__):  # ours is cut short
                raise
            made.append(otherwise(error))
            return made[-1](inputs)

    return first


def plain_reference(path: Path, threads: int, rounding: Rounding | None = None) -> Reference | None:
    """Run the model as `reference` does, without any optimization; None where ONNX Runtime does not take it so."""
    rounds = _rounds_activations(outline(path))
    given = _as_we_compute(path, rounding) if rounding is not None or rounds else None
    try:
        session = bare_session(given.SerializeToString() if given else str(path), threads, apart=_apart(path))
        return reference_of(session)
    except runtime_errors():
        return None


def double_reference(
    path: Path, rounding: Rounding | None = None, moves: tuple[int, float] | None = None
) -> Reference | None:
    """Run the model as `reference` does, in double precision (`relaxc.service.frontend.onnx.double`), with each value
    moved by a share of itself where `moves` gives a seed and that.

    None where it quantizes, has 2 GB of weights, is run apart, or is nothing that runs so.
    """
    if quantizes(outline(path)) or _apart(path) or _takes_codes(path):
        return None
    try:
        given = _as_we_compute(path, rounding)
        if moves is None:
            return in_double(given)
        model = move_values(given, *moves)
        run = None if model is None else in_double(model)
        return None if run is None else moves_inputs(run, *moves)
    except ModelTooLarge:
        return None


def moved_reference(
    path: Path, threads: int, move: Move, seed: int, by: float, rounding: Rounding | None = None
) -> Reference | None:
    """Run the model, with the weights that `rounding` rounded, and `move` of it moved (`onnx.moved`, `moved_values`).

    None where it has none, or where ONNX Runtime does not take it so: scales in 16 bits, 2 GB of weights.
    """
    if move is Move.QUANTIZATIONS and rounding is None:
        run = _of_light(path, threads, lambda model: moved(model, move, seed, by, shapes_of(model)))
        if run is not None:
            return run
    try:
        given = _as_we_compute(path, rounding)
    except ModelTooLarge:
        return None
    model = move_values(given, seed, by) if move is Move.VALUES else moved(given, move, seed, by)
    if model is None or model.ByteSize() >= MOST_BYTES:
        return None
    try:
        if uses_bfloat16(model):
            run = _rounded(model, threads)
        else:
            run = reference_of(open_session(model.SerializeToString(), threads, folds=True, apart=_apart(path)))
    except runtime_errors():
        return None
    return moves_inputs(run, seed, by) if move is Move.VALUES else run


def unquantized_reference(path: Path, threads: int) -> Reference | None:
    """Run the model without the rounding of its activations (`relaxc.service.frontend.onnx.unquantized`).

    None where it has none, or where ONNX Runtime does not take it so.
    """
    if not quantizes(outline(path)):
        return None
    if (run := _of_light(path, threads, unquantized)) is not None:
        return run
    model = unquantized(_without_rounding(_with_data(path)))
    if model is None or model.ByteSize() >= MOST_BYTES:
        return None
    try:
        if uses_bfloat16(model):
            return _rounded(model, threads)
        return reference_of(open_session(model.SerializeToString(), threads, folds=True))
    except runtime_errors():
        return None


def _of_file(path: Path, threads: int, fastest: bool) -> Any:
    """A session of the model as it is, whose initializers stay where they lie in the file: mapped, and not copied."""
    try:
        light_model = light(path).SerializeToString()
        return open_session(light_model, threads, fastest, folder=path.parent, apart=_apart(path))
    except runtime_errors():  # such as of a file that is a link out of its folder, where it takes no data from
        return open_session(str(path), threads, fastest, apart=_apart(path))


def _takes_codes(path: Path) -> bool:
    """Whether an input or output has an element type that ONNX Runtime takes and gives no arrays of."""
    import onnx

    model = outline(path)
    kinds = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)} - {0}
    return any(str(onnx.helper.tensor_dtype_to_np_dtype(kind)) in FORMATS for kind in kinds)


def _apart(path: Path) -> bool:
    """Whether ONNX Runtime may die in the model."""
    return may_die(outline(path))


def _of_light(path: Path, threads: int, change: Callable[[Any], Any | None]) -> Reference | None:
    """The model as `change` makes it, its data not copied; None where it makes none, or is not taken so."""
    if not quantizes(outline(path)) or uses_bfloat16(outline(path)):
        return None
    model = change(_without_rounding(light(path)))
    if model is None:
        return None
    try:
        return reference_of(open_session(model.SerializeToString(), threads, folds=True, folder=path.parent))
    except runtime_errors():
        return None


def _as_we_compute(path: Path, rounding: Rounding | None) -> Any:
    """The model with its data inside, with our weights and without quantized activations. Raise ModelTooLarge."""
    model = _without_rounding(_with_data(path))
    if rounding is not None:
        round_weights(model, rounding)
    if (size := model.ByteSize()) >= MOST_BYTES:
        raise ModelTooLarge(
            f"{path.name} has {size} bytes; a reference with other weights is of less than {MOST_BYTES}"
        )
    return model


def _gives_causal_scores(model: Any) -> bool:
    """Whether an Attention gives its masked scores, in which ONNX Runtime has the lowest number for -inf."""
    nodes = [node for holder in (*graphs(model.graph), *model.functions) for node in holder.node]
    return any(
        node.op_type == "Attention" and not node.domain and len(node.output) > _SCORES and node.output[_SCORES]
        and any(each.name == "is_causal" and each.i for each in node.attribute)
        for node in nodes
    )  # fmt: skip


_SCORES = 3
"""The place of that output."""


def _rounds_activations(model: Any) -> bool:
    """Whether a MatMulNBits lets ONNX Runtime quantize what it multiplies with the weights, which we do not."""
    return any(_ACCURACY in (each.name for each in node.attribute) for node in _n_bits(model))


def _without_rounding(model: Any) -> Any:
    for node in _n_bits(model):
        kept = [each for each in node.attribute if each.name != _ACCURACY]
        del node.attribute[:]
        node.attribute.extend(kept)
    return model


def _n_bits(model: Any) -> list[Any]:
    holders = [*graphs(model.graph), *model.functions]
    return [node for holder in holders for node in holder.node if node.op_type == "MatMulNBits"]


def own_data(path: Path) -> Any:
    """Return the model at `path` with its external data inside."""
    model, outside = mapped(path)
    check_tensors(model, path, outside)
    return _with_data(path)


def plain_session(model: bytes, optimized: Path | None = None) -> Reference:
    """Return what runs a model with basic optimizations, and leave it as they make it at `optimized`. Raise
    ModelMalformed where ONNX Runtime does not take it.
    """
    try:
        return reference_of(open_session(model, 1, optimized=optimized))
    except runtime_errors() as error:
        raise ModelMalformed(f"ONNX Runtime refuses the model: {one_line(error)}") from error


def _with_data(path: Path) -> Any:
    """The model with its external data inside."""
    import onnx

    model = parse(path)
    for tensor in tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array(tensor, path.parent), tensor.name))
    return model


def _rounded(model: Any, threads: int) -> Reference:
    """The model with float32 for every bfloat16; its outputs are rounded to what the model declares."""
    import ml_dtypes
    import numpy as np

    short = [value.name for value in model.graph.output if value.type.tensor_type.elem_type == 16]
    wide = widened(type(model).FromString(model.SerializeToString()))
    run = reference_of(open_session(wide.SerializeToString(), threads))

    def rounded(inputs: Mapping[str, Any]) -> dict[str, Any]:
        bfloat16 = np.dtype(ml_dtypes.bfloat16)
        given = {name: data.astype("float32") if data.dtype == bfloat16 else data for name, data in inputs.items()}
        return {name: data.astype(bfloat16) if name in short else data for name, data in run(given).items()}

    return rounded
