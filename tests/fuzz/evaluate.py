"""A graph node by node: by ONNX Runtime, or where it has no kernel by ONNX's own evaluator; with roundings moved."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from tests.fuzz.case import Array, Case, Env, elem_type, opsets_of

__all__ = ["EXACT", "Evaluator", "NotEvaluated", "Opinion", "is_float"]

BF16 = np.dtype(ml_dtypes.bfloat16)
_LOW = (BF16, np.dtype(np.float16))

EXACT = frozenset(
    [
        "Abs",
        "BitCast",
        "Cast",
        "CastLike",
        "Ceil",
        "Clip",
        "Compress",
        "Concat",
        "ConstantOfShape",
        "DepthToSpace",
        "Dropout",
        "Expand",
        "EyeLike",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "GlobalMaxPool",
        "Identity",
        "Max",
        "MaxPool",
        "Min",
        "Neg",
        "OneHot",
        "Pad",
        "ReduceMax",
        "ReduceMin",
        "Relu",
        "Reshape",
        "ReverseSequence",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Sign",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "TensorScatter",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unique",
        "Unsqueeze",
        "Where",
    ]
)
"""Operators whose results are not rounded: every right program gives the same bits."""

_STEPS = 4.0
"""By how many units in the last place a rounding is moved."""


class NotEvaluated(Exception):
    """No reference evaluates this node on these inputs."""


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether it is a floating dtype, bfloat16 too."""
    return dtype == BF16 or np.issubdtype(dtype, np.floating)


class Opinion:
    """Which evaluator goes first."""

    RUNTIME, NUMPY = "runtime", "numpy"


class Evaluator:
    """Evaluates nodes of one opset; a node's session is made once."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._sessions: dict[tuple[bytes, tuple[int, ...], str], Callable[[Env], list[Array]]] = {}

    def node(self, node: Any, inputs: Sequence[Array | None], opinion: str = Opinion.RUNTIME) -> list[Array]:
        """Return the node's outputs. Raise NotEvaluated."""
        order = [self._runtime, self._numpy] if opinion == Opinion.RUNTIME else [self._numpy, self._runtime]
        failed = ""
        for evaluate in order:
            try:
                found = evaluate(node, inputs)
            except Exception as error:  # noqa: BLE001  # evaluators refuse by any exception
                failed = failed or f"{type(error).__name__}: {str(error)[:200]}"
                continue
            if all(isinstance(each, np.ndarray) for each in found):
                return found
        raise NotEvaluated(failed)

    def checked(self, node: Any, inputs: Sequence[Array | None], *, has_runtime: bool) -> list[Array]:
        """Return the node's outputs. Raise NotEvaluated also where they have not the shape that the standard says,
        where ONNX's checker refuses the node, or with `has_runtime` ONNX Runtime, and where the references contradict
        each other on NaN and infinities: no standard says what is right.
        """
        given = {name: array for name, array in zip(node.input, inputs, strict=True) if array is not None}
        try:
            inferred = onnx.shape_inference.infer_shapes(_model(node, given, self.opset, shaped=True), True, True)
            if has_runtime:
                self._session(node, given, "runtime")
        except Exception as error:
            raise NotEvaluated(str(error)) from error
        found = self.node(node, inputs)
        for info, array in zip(inferred.graph.output, found, strict=True):
            dims = [each.dim_value if each.HasField("dim_value") else None for each in info.type.tensor_type.shape.dim]
            if info.type.tensor_type.HasField("shape") and not _has_shape(array, dims):
                raise NotEvaluated(f"{node.op_type}: {array.shape} for {dims}")
        if any(map(_is_special, (*given.values(), *found))) and not self._agree(node, inputs, found):
            raise NotEvaluated(f"{node.op_type}: the references differ")
        return found

    def _agree(self, node: Any, inputs: Sequence[Array | None], found: Sequence[Array]) -> bool:
        """Whether ONNX's own evaluator has NaN and infinities where ONNX Runtime has; so where one alone takes it."""
        try:
            other = self._numpy(node, inputs)
        except Exception:  # noqa: BLE001  # evaluators refuse by any exception
            return True
        return all(np.array_equal(_specials(a), _specials(b)) for a, b in zip(found, other, strict=False))

    def values(
        self,
        case: Case,
        env: Env,
        *,
        opinion: str = Opinion.RUNTIME,
        noise: Noise | None = None,
        like: Env | None = None,
    ) -> Env:
        """Return every value of the graph by name. Raise NotEvaluated, also where one has another shape than in `like`:
        what comes behind it might end the process. With `noise` what moved so far from `like` that no digit is left is
        NaN.
        """
        known: Env = {**case.constants, **env}
        for node in case.nodes:
            inputs = [known[name] if name else None for name in node.input]
            found = self.node(node, noise.inputs(node, inputs) if noise else inputs, opinion)
            for name, array in zip(node.output, found, strict=False):
                if like is not None and name and array.shape != like[name].shape:
                    raise NotEvaluated(f"{node.op_type}: {array.shape} for {like[name].shape}")
                if name:
                    known[name] = noise.moved(node, array, like[name] if like else None) if noise else array
        return known

    def _runtime(self, node: Any, inputs: Sequence[Array | None]) -> list[Array]:
        """ONNX Runtime's; of bfloat16, and of float16 that it has no kernel for, in float32 and then rounded once."""
        given = {name: array for name, array in zip(node.input, inputs, strict=True) if array is not None}
        if not any(array.dtype == BF16 for array in given.values()) and not _makes(node, onnx.TensorProto.BFLOAT16):
            try:
                return self._session(node, given, "runtime")(given)
            except Exception:
                if not any(array.dtype == np.float16 for array in given.values()):
                    raise
        return self._widened(node, given)

    def _widened(self, node: Any, given: Env) -> list[Array]:
        if _makes(node, onnx.TensorProto.BFLOAT16):  # a cast
            return [next(iter(given.values())).astype(np.float32).astype(BF16)]
        types = _types(node, given, self.opset)
        wide = {name: array.astype(np.float32) if array.dtype in _LOW else array for name, array in given.items()}
        found = self._session(node, wide, "runtime")(wide)
        dtypes = [helper.tensor_dtype_to_np_dtype(each) for each in types]
        return [array.astype(dtype) for array, dtype in zip(found, dtypes, strict=True)]

    def _numpy(self, node: Any, inputs: Sequence[Array | None]) -> list[Array]:
        given = {name: array for name, array in zip(node.input, inputs, strict=True) if array is not None}
        return self._session(node, given, "numpy")(given)

    def _session(self, node: Any, given: Env, kind: str) -> Callable[[Env], list[Array]]:
        key = (node.SerializeToString(), tuple(map(elem_type, given.values())), kind)
        if key not in self._sessions:
            model = _model(node, given, self.opset)
            self._sessions[key] = _runtime_session(model) if kind == "runtime" else _numpy_session(model)
        return self._sessions[key]


class Noise:
    """Moves each result that is rounded by some units in the last place, and by as much of its tensor's size."""

    def __init__(self, seed: int, unit: float | None = None, steps: float = _STEPS) -> None:
        self._rng, self._unit, self._steps = np.random.default_rng(seed), unit, steps
        self._overflows, self._sign = False, (-1.0) ** seed

    def inputs(self, node: Any, inputs: Sequence[Array | None]) -> list[Array | None]:
        """Return what a sum is of, moved: what a good algorithm gives is right for numbers as near as that."""
        if node.op_type not in _SUMS | _QUANTIZED:
            return list(inputs)
        self._overflows = any(each is not None and _is_huge(each) for each in inputs)
        scales = [at for at, each in enumerate(inputs) if each is not None and each.size == 1 and is_float(each.dtype)]
        return [
            each if each is None else self._shaken(each, self._sign if [at] == scales[-1:] else -self._sign)
            for at, each in enumerate(inputs)
        ]

    def _shaken(self, array: Array, sign: float) -> Array:
        """Moved by random; a scale one way and the result's the other, or they would make up for each other."""
        if not is_float(array.dtype):
            return array
        unit = float(ml_dtypes.finfo(array.dtype).eps) * self._steps
        by = self._rng.uniform(-1, 1, array.shape) if array.size > 1 else sign
        with np.errstate(all="ignore"):
            return np.asarray(array * (1 + unit * by)).astype(array.dtype)

    def moved(self, node: Any, array: Array, like: Array | None = None) -> Array:
        """Return a node's result as another right program might give it: what 16 bits do not hold may be a number
        there, as it is not rounded yet.
        """
        if array.dtype in _LOW and node.op_type not in EXACT - {"Cast", "CastLike"}:
            array = np.where(np.isinf(array.astype(np.float32)), np.nan, array).astype(array.dtype)
        if like is not None:
            array = (
                np.where(_is_lost(array, like), np.nan, array).astype(array.dtype) if is_float(array.dtype) else array
            )
        if (node.op_type in EXACT and self._unit is None) or not is_float(array.dtype) or not array.size:
            return array
        unit = float(ml_dtypes.finfo(array.dtype).eps)
        unit = max(unit, _SINGLE_EPS) if node.op_type in _SINGLE or _has_float(node) else unit
        unit = max(unit, self._unit or 0.0) * self._steps * (8 if node.op_type in ("LSTM", "GRU", "RNN") else 1)
        with np.errstate(all="ignore"):
            values = array.astype(np.float64)
            finite = values[np.isfinite(values)]
            size = np.sqrt(np.mean(np.square(finite))) if finite.size else 0.0
            size = min(size, np.median(np.abs(finite)) * 8) if finite.size else 0.0
            drawn = self._rng.uniform(-1, 1, (2, *array.shape))
            rounded = node.op_type in _SUMS
            moved = values * (1 + unit * drawn[0]) + (unit * size * drawn[1] if rounded else 0.0)
            # denormals may be zeros
            moved += self._sign * self._steps * float(ml_dtypes.finfo(array.dtype).tiny) * np.abs(drawn[1])
            moved = np.where(np.isfinite(values), moved, values)
            if rounded and self._overflows:  # in another order it does, or does not
                moved = np.where(np.abs(values) > _huge(array.dtype), np.nan, moved)
            return moved.astype(array.dtype)


_SUMS = frozenset(
    [
        "MatMul",
        *("Attention", "MultiHeadAttention", "GroupQueryAttention", "EmbedLayerNormalization", "RotaryEmbedding"),
        *("FusedConv", "FusedGemm", "MatMulIntegerToFloat", "Col2Im", "DeformConv", "Det", "DFT", "STFT"),
        *("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "Mish", "Elu", "Celu", "Selu", "Asinh", "Acosh", "Atanh"),
        *("Softplus", "Swish", "HardSwish", "Sinh"),
        "Gemm",
        "Conv",
        "ConvTranspose",
        "Einsum",
        "FusedMatMul",
        "ReduceSum",
        "ReduceMean",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceProd",
        "CumProd",
        "CumSum",
        "LSTM",
        "GRU",
        "RNN",
        "LayerNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "BatchNormalization",
        "Sum",
        "Mean",
        "MeanVarianceNormalization",
        "AveragePool",
        "GlobalAveragePool",
        "SkipLayerNormalization",
        "GridSample",
        "Resize",
        "AffineGrid",
        "RoiAlign",
        "SimplifiedLayerNormalization",
        "Upsample",
        "LpNormalization",
        "LRN",
    ]
)
"""Operators that add numbers of either sign, within too: their error is one of the terms, not of the sum."""


_QUANTIZED = frozenset(
    [
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "QGemm",
        "QLinearAdd",
        "QLinearMul",
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearLeakyRelu",
    ]
)
"""Operators that round to a step: what lies between two of them may fall to either."""


_SINGLE = frozenset(
    ["Erf", "Gelu", "HardSwish", "HardSigmoid", "InstanceNormalization", "SimplifiedLayerNormalization", "Selu", "Elu"]
)
"""Operators of which ONNX Runtime computes float64 with constants of float32."""

_SINGLE_EPS = 2.0**-23


def _has_float(node: Any) -> bool:
    return any(attribute.type == onnx.AttributeProto.FLOAT for attribute in node.attribute)


def _huge(dtype: np.dtype[Any]) -> float:
    return float(np.sqrt(float(ml_dtypes.finfo(dtype).max)))


def _is_huge(array: Array) -> bool:
    """Whether a product of its numbers, or a sum of them, may be too large for the dtype."""
    if not is_float(array.dtype) or not array.size:
        return False
    return not bool((np.abs(array.astype(np.float64)) <= _huge(array.dtype)).all())


def _is_special(array: Array) -> bool:
    return is_float(array.dtype) and not bool(np.isfinite(array.astype(np.float64)).all())


def _is_lost(array: Array, like: Array) -> Array:
    """Where a value has moved by more than it is, and than values of its tensor are: a tangent of 1e9, say."""
    one, other = array.astype(np.float64), like.astype(np.float64)
    sizes = np.abs(other[np.isfinite(other) & (other != 0)])
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(one - other) > np.abs(other) + (np.median(sizes) if sizes.size else 0.0))


def _specials(array: Array) -> Array:
    """What of an array has to be equal: NaN as 2, an infinity as its sign, a float as 0, and any integer."""
    if not is_float(array.dtype):
        return array
    wide = array.astype(np.float64)
    return np.where(np.isnan(wide), 2.0, np.where(np.isinf(wide), np.sign(wide), 0.0))


def _makes(node: Any, elem: int) -> bool:
    return any(attribute.name == "to" and attribute.i == elem for attribute in node.attribute)


def _has_shape(array: Array, dims: Sequence[int | None]) -> bool:
    return array.ndim == len(dims) and all(d in (None, size) for d, size in zip(dims, array.shape, strict=True))


def _model(node: Any, given: Env, opset: int, *, shaped: bool = False) -> Any:
    inputs = [
        helper.make_tensor_value_info(name, elem_type(array), array.shape if shaped else None)
        for name, array in given.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets_of(opset), ir_version=10)


def _types(node: Any, given: Env, opset: int) -> list[int]:
    """The element types of a node's outputs."""
    inferred = onnx.shape_inference.infer_shapes(_model(node, given, opset))
    return [each.type.tensor_type.elem_type for each in inferred.graph.output]


def _runtime_session(model: Any) -> Callable[[Env], list[Array]]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda env: list(session.run(None, env))


def _numpy_session(model: Any) -> Callable[[Env], list[Array]]:
    from relaxc.service.frontend.onnx.evaluator import evaluator

    session = evaluator(model)  # with right operators for those that ONNX's own computes wrongly

    def run(env: Env) -> list[Array]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(each) for each in session.run(None, env)]

    return run
