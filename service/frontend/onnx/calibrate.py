"""`--precision int8`: a model in floats becomes a QDQ model, with scales out of samples of its inputs.

ONNX Runtime's quantizer chooses the scales and writes the pairs: weights in int8 with a scale a channel, activations in
uint8. Around it here: SmoothQuant, what is left in floats and why, and how far the result is from the model as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaxc.service.errors import InvalidOption, ModelTooLarge, UnsupportedModel
from relaxc.service.frontend.onnx.accuracy import LAYERS, Error, layers_of, measured, output_errors, probe
from relaxc.service.frontend.onnx.frontend import input_specs
from relaxc.service.frontend.onnx.graph import read
from relaxc.service.frontend.onnx.reference import MOST_BYTES, own_data, plain_session
from relaxc.service.frontend.onnx.samples import read_samples
from relaxc.service.frontend.onnx.smooth import smooth
from relaxc.service.request import Calibration

__all__ = ["calibrate"]

Array = np.ndarray[Any, Any]
Samples = Sequence[Mapping[str, Array]]

_ATTENTION = frozenset({"Softmax", "LayerNormalization"})
"""In a network with one of these only products by weights are quantized: what lies between loses most."""

_RANGES = "ranges.json"
"""What the quantizer keeps of the samples, for when it runs again with fewer layers."""

NO_WEIGHTS = "a product of two computed values"

_METHODS = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}


@dataclass
class _Work:
    """The folder that files are made in, the model as it is to be quantized, and what it is compared with."""

    folder: Path
    plain: Path
    samples: Samples
    reference: Callable[[Mapping[str, Array]], dict[str, Array]]
    transformer: bool
    calibration: Calibration


def calibrate(path: Path, samples: Path, calibration: Calibration, folder: Path, out: Path) -> dict[str, Any]:
    """Write the ONNX model at `path`, quantized, to `out`, and return the report; `folder` is for files in between.

    Raise InvalidOption for samples or names that do not fit, ModelTooLarge, UnsupportedModel where nothing can be
    quantized, and what reading the model raises.
    """
    graph = read(path)
    given = read_samples(samples, input_specs(graph))
    model = own_data(path)
    _named(model)
    if model.ByteSize() >= MOST_BYTES:
        raise ModelTooLarge(
            f"{path.name} has {model.ByteSize()} bytes; models of less than {MOST_BYTES} are calibrated"
        )
    transformer = bool(_ATTENTION & {node.op_type for node in model.graph.node})
    reference = plain_session(model.SerializeToString())
    plain, smoothed = _prepared(model, given, folder / "plain.onnx", calibration.smooth and transformer)
    work = _Work(folder, plain, given, reference, transformer, calibration)
    loaded = _load(plain)
    names = {node.name for node in loaded.graph.node if node.op_type in LAYERS}
    unknown = sorted(set(calibration.keep) - names)
    if unknown:
        raise InvalidOption(
            f"no layer is called {unknown[0][:100]!r}; there are {', '.join(sorted(names)[:20])}", option="keep"
        )
    kept = dict.fromkeys(_of_two_values(loaded), NO_WEIGHTS) if transformer else {}
    kept |= dict.fromkeys(calibration.keep, "asked for")
    (folder / _RANGES).unlink(missing_ok=True)
    errors = _quantized(work, kept, out)
    layers = _layer_errors(work, out)
    first = {name: error.relative for name, error in errors.items()}
    errors = _kept_until(work, kept, layers, errors, out)
    return _report(work, kept, layers, errors, first, smoothed)


def _of_two_values(model: Any) -> list[str]:
    """The products of two computed values, as attention has."""
    held = {tensor.name for tensor in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type in LAYERS]
    return [node.name for node in layers if not held & set(node.input[:2])]


def _kept_until(
    work: _Work, kept: dict[str, str], layers: Mapping[str, Error], errors: dict[str, Error], out: Path
) -> dict[str, Error]:
    """Leave in floats what costs most, twice as many layers each time, until no output is off by more than was said;
    return the outputs' errors.

    Raise InvalidOption where it stays so, or where no output has floats that could be bounded.
    """
    most = work.calibration.max_error
    if most is not None and not errors:
        raise InvalidOption("no output of the model has floats whose error could be bounded", option="max_error")
    costly = sorted((name for name in layers if name not in kept), key=lambda name: -layers[name].relative)
    step = 1
    while most is not None and costly and max((each.relative for each in errors.values()), default=0.0) > most:
        for name in costly[:step]:
            kept[name] = f"costs most: {layers[name].relative:.3g} of itself; --max-error {most:g}"
        costly, step = costly[step:], 2 * step
        errors = _quantized(work, kept, out)
    worst = max((each.relative for each in errors.values()), default=0.0)
    if most is not None and worst > most:
        raise InvalidOption(
            f"with every layer in floats that may be, the outputs are off by {worst:.3g}", option="max_error"
        )
    return errors


def _named(model: Any) -> None:
    """Give every node a name of its own: reports, and what is to be left in floats, go by it."""
    taken: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}" if f"{node.op_type}_{index}" not in taken else f"relaxc_{index}"
        taken.add(node.name)


def _prepared(model: Any, samples: Samples, out: Path, smoothing: bool) -> tuple[Path, int]:
    """Write the model with its BatchNorms folded, and smoothed; return where, and how many norms were."""
    import onnx
    from onnxruntime.quantization import quant_utils

    plain_session(model.SerializeToString(), optimized=out)
    folded = _load(out)
    _named(folded)
    quant_utils.add_pre_process_metadata(folded)
    count = smooth(folded, lambda names: _maxima(folded, names, samples)) if smoothing else 0
    onnx.save(folded, out)
    return out, count


def _load(path: Path) -> Any:
    import onnx

    return onnx.load(path)


def _session(path: Path) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    return plain_session(path.read_bytes())


def _maxima(model: Any, names: Sequence[str], samples: Samples) -> dict[str, Array]:
    from onnx import ValueInfoProto

    copy = type(model).FromString(model.SerializeToString())
    there = {value.name for value in copy.graph.output}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in there)
    run, found = plain_session(copy.SerializeToString()), dict[str, Array]()
    for sample in samples:
        values = run(sample)
        for name in names:
            size = np.abs(values[name]).reshape(-1, values[name].shape[-1]).max(axis=0)
            found[name] = np.maximum(found.get(name, size), size)
    return found


def _quantized(work: _Work, kept: Mapping[str, str], out: Path) -> dict[str, Error]:
    """Write the model quantized but for what is kept; return the outputs' errors. Raise UnsupportedModel."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
        def __init__(self) -> None:
            self.left: Iterator[Mapping[str, Array]] = iter(work.samples)

        def __len__(self) -> int:
            return len(work.samples)

        def set_range(self, start_index: int, end_index: int) -> None:
            self.left = iter(work.samples[start_index:end_index])

        def get_next(self) -> dict[str, Any] | None:
            sample = next(self.left, None)
            return None if sample is None else dict(sample)

    extra: dict[str, Any] = {"CalibStridedMinMax": 1}
    if work.transformer:
        extra |= {"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": list(LAYERS)}
    try:
        quantize_static(
            str(work.plain),
            str(out),
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(LAYERS) if work.transformer else None,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=list(kept),
            calibrate_method=getattr(CalibrationMethod, _METHODS[work.calibration.method]),
            calibration_cache_path=work.folder / _RANGES,
            extra_options=extra,
        )
    except (AssertionError, ValueError, RuntimeError) as error:
        raise UnsupportedModel(f"ONNX Runtime's quantizer stops in the model: {str(error)[:200]}") from error
    if not layers_of(_load(out)) and all(why in (NO_WEIGHTS, "asked for") for why in kept.values()):
        raise UnsupportedModel("the model has no convolution or product by weights that could be quantized")
    return output_errors(_session(out), work.reference, work.samples)


def _layer_errors(work: _Work, out: Path) -> dict[str, Error]:
    model, pairs = probe(_load(work.plain), _load(out))
    return measured(plain_session(model.SerializeToString()), pairs, work.samples) if pairs else {}


def _report(
    work: _Work,
    kept: Mapping[str, str],
    layers: Mapping[str, Error],
    errors: Mapping[str, Error],
    first: Mapping[str, float],
    smoothed: int,
) -> dict[str, Any]:
    model = _load(work.plain)
    kinds = {node.name: node.op_type for node in model.graph.node if node.op_type in LAYERS}
    reached = _layers_before(model)
    outputs = []
    for name, error in errors.items():
        before = [layer for layer in layers if layer in reached.get(name, ()) and layer not in kept]
        worst = max(before, key=lambda layer: layers[layer].relative, default=None)
        row = {"name": name, "error": _digits(error.relative), "sqnr_db": error.sqnr_db, "cosine": error.cosine}
        outputs.append({**row, "error_of_all_int8": _digits(first[name]), "worst_layer": worst})
    rows = [
        {
            "name": name,
            "operator": kind,
            "precision": "float32" if name in kept or name not in layers else "int8",
            "why": kept.get(name, "calibrated" if name in layers else NO_WEIGHTS),
            "error": _digits(layers[name].relative) if name in layers else None,
            "sqnr_db": layers[name].sqnr_db if name in layers else None,
        }
        for name, kind in kinds.items()
    ]
    method, count = work.calibration.method, len(work.samples)
    return {"method": method, "samples": count, "smoothed": smoothed, "outputs": outputs, "layers": rows}


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def _layers_before(model: Any) -> dict[str, set[str]]:
    """Output → the layers that it depends on."""
    before: dict[str, set[str]] = {}
    for node in model.graph.node:
        found = set().union(*(before.get(name, set()) for name in node.input))
        found |= {node.name} if node.op_type in LAYERS else set()
        before.update((name, found) for name in node.output)
    return before
