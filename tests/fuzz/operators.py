"""How a node of each operator is drawn: generically from its schema, and by a rule where most such draws would fail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx

from tests.fuzz import fused, uncommon  # noqa: F401  # their rules
from tests.fuzz.case import Array
from tests.fuzz.evaluate import is_float
from tests.fuzz.pool import Pool
from tests.fuzz.rules import RULES, Drawn, NoDraw, Rule, rule
from tests.fuzz.values import DTYPES

__all__ = ["Drawn", "NoDraw", "is_undefined", "node_of", "operators"]

_FLOATS = ("float32", "float32", "float16", "bfloat16", "float64")
_NOT_TENSORS = frozenset(
    [
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
        "ConcatFromSequence",
        "Constant",
    ]
)
_REFUSED = frozenset({"Unique"})
"""What every compile refuses by name: a graph with it shows nothing of its other nodes."""


@cache
def operators() -> tuple[str, ...]:
    """Return the operators that relaxc converts, but those of sequences."""
    import importlib
    import pkgutil

    from relaxc.service.frontend.onnx import ops
    from relaxc.service.frontend.onnx.ops.registry import CONVERTERS

    for module in pkgutil.iter_modules(ops.__path__):
        importlib.import_module(f"{ops.__name__}.{module.name}")
    return tuple(sorted({*CONVERTERS, "Attention", "RotaryEmbedding", "Shape", "Size"} - _NOT_TENSORS - _REFUSED))


def node_of(op: str, pool: Pool) -> Drawn:
    """Return inputs and attributes for a node of `op`. Raise NoDraw."""
    if "::" not in op and not _is_in(op, pool.opset):
        raise NoDraw(f"opset {pool.opset} has no {op}")
    return RULES[op](pool) if op in RULES else _generic(op, pool)


@cache
def _is_in(op: str, opset: int) -> bool:
    if op == "SimplifiedLayerNormalization":  # ONNX Runtime's own
        return True
    return onnx.defs.has(op, opset) and not onnx.defs.get_schema(op, opset).deprecated


# From the schema


def _generic(op: str, pool: Pool) -> Drawn:
    domain, _, name = op.rpartition("::")
    if domain or not onnx.defs.has(name, pool.opset):
        raise NoDraw(f"there is no schema of {op}")
    schema = onnx.defs.get_schema(name, pool.opset)
    dtypes: dict[str, np.dtype[Any]] = {}
    inputs: list[str] = []
    for formal in schema.inputs:
        count = pool.integer(1, 4) if formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic else 1
        if formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional and pool.chance(0.5):
            inputs.append("")
            continue
        for _ in range(count):
            allowed = _allowed(schema, formal.type_str)
            if formal.type_str in dtypes:
                allowed = [dtypes[formal.type_str]]
            name = pool.value(allowed) if not inputs else pool.beside(next(filter(None, inputs)), allowed)
            dtypes[formal.type_str] = pool.dtype(name)
            inputs.append(name)
    while inputs and not inputs[-1]:
        inputs.pop()
    rank = len(pool.shape(inputs[0])) if inputs and inputs[0] else 2
    return inputs, {
        each.name: _attribute(each, rank, pool)
        for each in schema.attributes.values()
        if each.required or pool.chance(0.5)
    }


def _allowed(schema: Any, text: str) -> list[np.dtype[Any]]:
    constraint = next((each for each in schema.type_constraints if each.type_param_str == text), None)
    texts = constraint.allowed_type_strs if constraint is not None else [text]
    found = [DTYPES[each] for each in map(_dtype_name, texts) if each in DTYPES]
    if not found:
        raise NoDraw(f"{schema.name} takes {text}")
    return found


def _dtype_name(text: str) -> str:
    name = text.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


def _attribute(attribute: Any, rank: int, pool: Pool) -> Any:
    kinds = onnx.defs.OpSchema.AttrType
    if attribute.name == "axis":
        return pool.axis(rank)
    if attribute.name == "axes":
        return pool.axes(rank)
    if attribute.type == kinds.INT:
        return pool.integer(0, 1)
    if attribute.type == kinds.FLOAT:
        return pool.choice((0.5, 1.0, 2.0, 0.01, 1e-5, -0.5, 0.0))
    if attribute.type == kinds.INTS:
        return [pool.integer(1, 2) for _ in range(2)]
    if attribute.type == kinds.STRING and attribute.name in ("mode", "approximate", "direction", "reduction"):
        return pool.choice(_WORDS[attribute.name])
    raise NoDraw(f"an attribute {attribute.name}")


_WORDS = {
    "mode": ("DCR", "CRD", "linear", "nearest"),
    "approximate": ("none", "tanh"),
    "direction": ("LEFT", "RIGHT"),
    "reduction": ("none", "add", "mul", "max", "min"),
}


# By rule


@rule("Gelu")
def _gelu(pool: Pool) -> Drawn:
    return [pool.value(_FLOATS)], {"approximate": pool.choice(("none", "tanh"))}


@rule("Shrink")
def _shrink(pool: Pool) -> Drawn:
    return [pool.value(_FLOATS)], {"lambd": pool.choice((0.5, 1.0)), "bias": pool.choice((0.0, 0.5, -1.0))}


@rule("BitShift")
def _shift(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "uint16", "uint32", "uint64"))
    amounts = pool.constant(pool.rng.integers(0, 8, pool.shaped_beside(value)).astype(pool.dtype(value)))
    return [value, amounts], {"direction": pool.choice(("LEFT", "RIGHT"))}


@rule("Pow")
def _pow(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float32", "float64", "float16", "int32", "int64"))
    if not is_float(pool.dtype(value)) or pool.chance(0.5):
        exponents = pool.rng.integers(0, 4, pool.shaped_beside(value))
        return [value, pool.constant(exponents.astype(pool.dtype(value)))], {}
    return [value, pool.beside(value, [pool.dtype(value)])], {}


@rule("Clip")
def _clip(pool: Pool) -> Drawn:
    value = pool.value(None)
    dtype = pool.dtype(value)
    low, high = (0, 3) if not is_float(dtype) and dtype.kind == "u" else (-1, 2)
    bounds = [pool.constant(np.asarray(each, dtype)) if pool.chance(0.7) else "" for each in (low, high)]
    return [value, *bounds], {}


@rule("Cast")
def _cast(pool: Pool) -> Drawn:
    to = pool.choice(list(DTYPES.values()))
    return [pool.value(None)], {"to": int(onnx.helper.np_dtype_to_tensor_dtype(to))}


@rule("CastLike")
def _cast_like(pool: Pool) -> Drawn:
    return [pool.value(None), pool.value(None)], {}


@rule("Where")
def _where(pool: Pool) -> Drawn:
    value = pool.value(None)
    return [pool.beside(value, ["bool"]), value, pool.beside(value, [pool.dtype(value)])], {}


def _one_of(dtypes: Sequence[str] | None) -> Rule:
    return lambda pool: ([pool.value(dtypes)], {})


for _name, _dtypes in {
    "Identity": None, "Shape": None, "Size": None, "NonZero": None, "IsNaN": _FLOATS, "IsInf": ("float32", "float64"),
    "Not": ("bool",), "BitwiseNot": ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
}.items():  # fmt: skip
    RULES[_name] = _one_of(_dtypes)


@rule("MatMul")
def _matmul(pool: Pool) -> Drawn:
    value = pool.value((*_FLOATS, "int32", "int64"), ranks=(1, 2, 3, 4))
    k, n = pool.shape(value)[-1], pool.size()
    shape = pool.choice(((k, n), (k, n), (k,), (1, k, n)))
    return [value, pool.made(shape, pool.dtype(value), value)], {}


@rule("Gemm")
def _gemm(pool: Pool) -> Drawn:
    value = pool.value(_FLOATS, ranks=(2,))
    across, along = pool.integer(0, 1), pool.integer(0, 1)
    k = pool.shape(value)[0 if across else 1]
    n, dtype = pool.size(), pool.dtype(value)
    inputs = [value, pool.made((n, k) if along else (k, n), dtype, value)]
    if pool.chance(0.7):
        inputs.append(pool.constant_of(pool.choice(((n,), (1, n), (1,), ())), dtype))
    return inputs, {
        "transA": across,
        "transB": along,
        "alpha": pool.choice((1.0, 0.5)),
        "beta": pool.choice((1.0, 2.0)),
    }


@rule("com.microsoft::FusedMatMul")
def _fused_matmul(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(2, 3))
    shape = (*pool.shape(value)[:-2], pool.shape(value)[-1], pool.size())
    return [value, pool.made(shape, pool.dtype(value), value)], {"alpha": pool.choice((1.0, 0.25))}


_SATURATE = ("int8",)
"""Weights whose products ONNX Runtime adds up in 16 bits where the CPU has no VNNI: wide ones saturate there."""


def _matmul_integer(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"), ranks=(2, 3))
    other = pool.choice(("uint8", "int8"))
    weight = pool.constant_of((pool.shape(value)[-1], pool.size()), DTYPES[other], wide=other not in _SATURATE)
    inputs = [value, weight]
    if pool.chance(0.5):
        inputs += [pool.constant_of((), pool.dtype(value)), pool.constant_of((), DTYPES[other])]
    return inputs, {}


RULES["MatMulInteger"] = _matmul_integer


def _windows(pool: Pool, spatial: Sequence[int], *, dilated: bool = True) -> dict[str, Any]:
    kernel = [pool.integer(1, min(3, size)) for size in spatial]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if pool.chance(0.5):
        found["strides"] = [pool.integer(1, 2) for _ in spatial]
    if pool.chance(0.5):
        found["pads"] = [pool.integer(0, size - 1) for size in kernel * 2]
    elif pool.chance(0.3):
        found["auto_pad"] = pool.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
        if any(a < b for a, b in zip(kernel, found.get("strides", ()), strict=False)):
            found["strides"] = kernel  # between windows ONNX Runtime's MaxPool cuts where others do not pad
    if dilated and pool.chance(0.2):
        found["dilations"] = [pool.integer(1, 2) for _ in spatial]
    return found


@rule("Conv", "ConvInteger")
def _conv(pool: Pool) -> Drawn:
    value = pool.value(_FLOATS, ranks=(3, 4, 4, 4, 5))
    _, channels, *spatial = pool.shape(value)
    found = _windows(pool, spatial)
    group = pool.choice([each for each in (1, 1, 2, 4, channels) if channels % each == 0])
    filters = group * pool.choice((1, 2, 3, 8, 16))
    weight = pool.constant_of((filters, channels // group, *found["kernel_shape"]), pool.dtype(value))
    bias = [pool.constant_of((filters,), pool.dtype(value))] if pool.chance(0.6) else []
    return [value, weight, *bias], {**found, "group": group}


def _conv_integer(pool: Pool) -> Drawn:
    value = pool.value(("uint8",), ranks=(4,))
    _, channels, *spatial = pool.shape(value)
    found = _windows(pool, spatial)
    weight = pool.constant_of((pool.size(), channels, *found["kernel_shape"]), DTYPES["uint8"], wide=True)
    zero = [pool.constant_of((), DTYPES["uint8"])] if pool.chance(0.5) else []
    return [value, weight, *zero], found


RULES["ConvInteger"] = _conv_integer


@rule("ConvTranspose")
def _conv_transpose(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float32", "float64", "float16"), ranks=(3, 4))
    _, channels, *spatial = pool.shape(value)
    found = _windows(pool, spatial)
    group = pool.choice([each for each in (1, 1, 2) if channels % each == 0])
    weight = pool.constant_of((channels, pool.choice((1, 2, 5)), *found["kernel_shape"]), pool.dtype(value))
    if "strides" in found and pool.chance(0.4):
        found["output_padding"] = [pool.integer(0, each - 1) for each in found["strides"]]
    return [value, weight], {**found, "group": group}


def _pooling(op: str) -> Rule:
    def rule(pool: Pool) -> Drawn:
        dtypes = {"MaxPool": (*_FLOATS, "int8", "uint8")}.get(op, ("float32", "float32", "float64", "float16"))
        value = pool.value(dtypes, ranks=(3, 4, 4, 5))
        found = _windows(pool, pool.shape(value)[2:], dilated=op == "MaxPool" or pool.opset >= 19)
        if pool.chance(0.3) and not (op == "LpPool" and pool.opset < 18):
            found["ceil_mode"] = 1
        if op == "AveragePool" and pool.chance(0.5):
            found["count_include_pad"] = 1
        return [value], found

    return rule


RULES.update({name: _pooling(name) for name in ("MaxPool", "AveragePool", "LpPool")})


def _imaged(op: str) -> Rule:
    def rule(pool: Pool) -> Drawn:
        value = pool.value(("float32", "float32", "float64", "float16", "bfloat16"), ranks=(3, 4, 4))
        channels, dtype = pool.shape(value)[1], pool.dtype(value)
        per_channel = [pool.constant_of((channels,), dtype) for _ in range(3)]
        if op == "LRN":
            return [value], {"size": pool.choice((1, 3, 5)), "alpha": 0.1}
        if op == "InstanceNormalization":
            return [value, *per_channel[:2]], {}
        if op == "BatchNormalization":
            variance = pool.constant(pool.rng.uniform(0.5, 2, channels).astype(dtype))
            return [value, *per_channel, variance], {"epsilon": pool.choice((1e-5, 1e-3))}
        return [value], {}

    return rule


RULES.update({
    name: _imaged(name)
    for name in (
        "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "LRN", "InstanceNormalization", "BatchNormalization",
    )
})  # fmt: skip


@rule("GroupNormalization")
def _group_norm(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float16", "bfloat16"), ranks=(3, 4))
    channels = pool.shape(value)[1]
    groups = pool.choice([each for each in (1, 2, 4, channels) if channels % each == 0])
    each = (channels,)
    return [value, *(pool.constant_of(each, pool.dtype(value)) for _ in "ab")], {"num_groups": groups}


def _norm(op: str) -> Rule:
    def rule(pool: Pool) -> Drawn:
        value = pool.value(("float32", "float32", "float16", "bfloat16", "float64"), ranks=(2, 3, 4))
        axis = pool.axis(len(pool.shape(value))) if op == "LayerNormalization" else -1
        last = pool.shape(value)[axis if axis < 0 else axis - len(pool.shape(value)) :]
        count = pool.integer(1, 2) if op == "LayerNormalization" else 1
        scales = [pool.constant_of(last, pool.dtype(value)) for _ in range(count)]
        return [value, *scales], {"axis": axis, "epsilon": pool.choice((1e-5, 1e-2))}

    return rule


RULES.update({
    name: _norm(name)
    for name in ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
                 "com.microsoft::SimplifiedLayerNormalization")
})  # fmt: skip


@rule("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization")
def _skip_norm(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float16"), ranks=(3,))
    dtype = pool.dtype(value)
    return [value, pool.made(pool.shape(value), dtype, value), pool.constant_of(pool.shape(value)[-1:], dtype)], {
        "epsilon": 1e-5
    }


@rule("com.microsoft::BiasGelu")
def _bias_gelu(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(2, 3, 4))
    return [value, pool.constant_of(pool.shape(value)[-1:], pool.dtype(value))], {}


for _name in ("com.microsoft::FastGelu", "com.microsoft::Gelu", "com.microsoft::QuickGelu"):
    RULES[_name] = _one_of(("float32",))


@rule("Reshape")
def _reshape(pool: Pool) -> Drawn:
    value = pool.value(None)
    sizes = list(pool.shape(value))
    at = pool.integer(0, max(0, len(sizes) - 1))
    kind = pool.integer(0, 3)
    if kind == 0:
        wanted = [-1]
    elif kind == 1 and len(sizes) > 1:
        wanted = [0] * at + [-1]
    elif kind == 2 and sizes:
        wanted = [0 if i != at else -1 for i in range(len(sizes))] + [1]
    else:
        factors = [each for each in (2, 3, 4) if sizes and sizes[-1] % each == 0]
        wanted = [*[0] * (len(sizes) - 1), *((-1, pool.choice(factors)) if factors else (-1,))]
    return [value, pool.constant(np.array(wanted, np.int64))], {}


@rule("Transpose")
def _transpose(pool: Pool) -> Drawn:
    value = pool.value(None)
    return [value], {"perm": [int(each) for each in pool.rng.permutation(len(pool.shape(value)))]}


@rule("Concat")
def _concat(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3, 4))
    axis = pool.axis(len(pool.shape(value)))
    others = [pool.resized(value, axis) for _ in range(pool.integer(1, 3))]
    return pool.shuffled([value, *others]), {"axis": axis}


@rule("Split")
def _split(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3, 4))
    axis = pool.axis(len(pool.shape(value)))
    size = pool.shape(value)[axis]
    if size < 2:
        raise NoDraw
    first = pool.integer(1, size - 1)
    return [value, pool.constant(np.array([first, size - first], np.int64))], {"axis": axis, "outputs": 2}


@rule("Slice")
def _slice(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3, 4))
    rank = len(pool.shape(value))
    axes = pool.axes(rank)
    sizes = [pool.shape(value)[axis] for axis in axes]
    steps = [pool.choice((1, 1, 1, 2, -1, -2)) for _ in axes]
    starts = [pool.integer(0 if step > 0 else -size, size) for size, step in zip(sizes, steps, strict=True)]
    far = (10**9, 2**31 - 1, 2**63 - 1)
    ends = [
        pool.choice((size, -1, pool.integer(-size, size), *far)) if step > 0 else pool.choice((-(2**31), -size - 1, 0))
        for size, step in zip(sizes, steps, strict=True)
    ]
    return [value, *(pool.constant(np.array(each, np.int64)) for each in (starts, ends, axes, steps))], {}


def _unsqueeze(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(0, 1, 2, 3))
    axes = pool.axes(len(pool.shape(value)) + 1)[:1]
    return ([value, pool.constant(np.array(axes, np.int64))], {}) if pool.opset >= 13 else ([value], {"axes": axes})


def _squeezed(pool: Pool) -> Drawn:
    value = pool.value(None)
    ones = [axis for axis, size in enumerate(pool.shape(value)) if size == 1]
    if not ones:
        raise NoDraw
    axes = [pool.choice(ones)]
    return ([value, pool.constant(np.array(axes, np.int64))], {}) if pool.opset >= 13 else ([value], {"axes": axes})


RULES.update({"Unsqueeze": _unsqueeze, "Squeeze": _squeezed})


@rule("Expand")
def _expand(pool: Pool) -> Drawn:
    value = pool.value(None)
    wanted = [size if size > 1 else pool.integer(1, 3) for size in pool.static_ones(value)]
    return [value, pool.constant(np.array([2] * pool.integer(0, 1) + wanted, np.int64))], {}


@rule("Tile")
def _tile(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3, 4))
    return [value, pool.constant(pool.rng.integers(1, 3, len(pool.shape(value))))], {}


@rule("Pad")
def _pad(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3, 4))
    shape, mode = pool.shape(value), pool.choice(("constant", "constant", "reflect", "edge", "wrap"))
    least = 0 if mode != "constant" else -1
    pads = [min(pool.integer(least, 2), max(0, size - 1)) for size in shape * 2]
    inputs = [value, pool.constant(np.array(pads, np.int64))]
    if mode == "constant" and pool.chance(0.5):
        inputs.append(pool.constant_of((), pool.dtype(value)))
    return inputs, {"mode": mode}


@rule("Gather")
def _gather(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3, 4))
    axis = pool.axis(len(pool.shape(value)))
    return [value, pool.places(pool.shape_drawn(2), pool.shape(value)[axis])], {"axis": axis}


@rule("GatherElements")
def _gather_elements(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3))
    axis = pool.axis(len(pool.shape(value)))
    return [value, pool.places(pool.shape(value), pool.shape(value)[axis])], {"axis": axis}


@rule("GatherND")
def _gather_nd(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3))
    depth = pool.integer(1, len(pool.shape(value)))
    return [value, pool.places((pool.size(), depth), min(pool.shape(value)[:depth]))], {}


@rule("ScatterElements", "Scatter")
def _scatter_elements(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3))
    shape = pool.shape(value)
    axis = pool.axis(len(shape))
    updates = pool.made(shape, pool.dtype(value), value)
    # along the axis each place once, or the result would depend on the order
    order = np.argsort(pool.rng.random(shape), axis).astype(np.int64)
    reduction = pool.choice(("none", "add", "max")) if pool.opset >= 18 else "none"
    return [value, pool.constant(order), updates], {
        "axis": axis,
        **({"reduction": reduction} if pool.opset >= 16 else {}),
    }


@rule("ScatterND")
def _scatter_nd(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3))
    shape = pool.shape(value)
    places = pool.rng.permutation(shape[0])[: pool.integer(1, shape[0])].reshape(-1, 1).astype(np.int64)
    updates = pool.made((len(places), *shape[1:]), pool.dtype(value), value)
    return [value, pool.constant(places), updates], {}


@rule("OneHot")
def _one_hot(pool: Pool) -> Drawn:
    places = pool.places(pool.shape_drawn(2), 5)
    values = pool.constant(np.array([0, 1]).astype(pool.choice([DTYPES["float32"], DTYPES["int64"], DTYPES["int32"]])))
    return [places, pool.constant(np.array(5, np.int64)), values], {"axis": pool.choice((-1, 0))}


@rule("TopK")
def _top_k(pool: Pool) -> Drawn:
    value = pool.value((*_FLOATS, "int32", "int64"), ranks=(1, 2, 3))
    axis = pool.axis(len(pool.shape(value)))
    k = pool.integer(1, pool.shape(value)[axis])
    largest = {"largest": pool.integer(0, 1)} if pool.opset >= 11 else {}
    return [value, pool.constant(np.array([k], np.int64))], {"axis": axis, **largest, "outputs": 2}


@rule("CumSum", "CumProd")
def _cumulated(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float64", "int32", "int64"), ranks=(1, 2, 3))
    axis = pool.constant(np.array(pool.axis(len(pool.shape(value))), np.int64))
    return [value, axis], {"exclusive": pool.integer(0, 1), "reverse": pool.integer(0, 1)}


@rule("Trilu")
def _trilu(pool: Pool) -> Drawn:
    return [pool.value(None, ranks=(2, 3)), pool.constant(np.array(pool.integer(-2, 2), np.int64))], {
        "upper": pool.integer(0, 1)
    }


@rule("Compress")
def _compress(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(1, 2, 3))
    axis = pool.axis(len(pool.shape(value)))
    return [value, pool.constant(pool.rng.random(pool.shape(value)[axis]) < 0.6)], {"axis": axis}


@rule("DepthToSpace", "SpaceToDepth")
def _depth(pool: Pool) -> Drawn:
    return [pool.value(("float32", "float16", "float64", "int32"), ranks=(4,))], {"blocksize": pool.choice((1, 2))}


@rule("Upsample")
def _upsample(pool: Pool) -> Drawn:
    if pool.opset != 9:
        raise NoDraw
    value = pool.value(("float32",), ranks=(4,))
    scales = np.array([1, 1, pool.choice((1, 2)), pool.choice((2, 3))], np.float32)
    return [value, pool.constant(scales)], {"mode": pool.choice(("nearest", "linear"))}


@rule("Resize")
def _resize(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float32", "float16", "uint8", "int32"), ranks=(3, 4))
    mode = pool.choice(("nearest", "linear", "cubic"))
    spatial = pool.shape(value)[2:]
    scales = [1.0, 1.0, *(pool.choice((0.5, 0.7, 1.0, 1.5, 2.0, 3.0)) for _ in spatial)]
    ways = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    found: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": pool.choice(ways)}
    if mode == "nearest":
        found["nearest_mode"] = pool.choice(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode != "nearest" and pool.opset >= 18 and pool.chance(0.3):
        found["antialias"] = 1
    return [value, "", pool.constant(np.array(scales, np.float32))], found


@rule("GridSample")
def _grid_sample(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(4,))
    grid = pool.constant(pool.rng.uniform(-1.3, 1.3, (pool.shape(value)[0], 3, 4, 2)).astype(np.float32))
    modes = ("linear", "nearest", "cubic") if pool.opset >= 20 else ("bilinear", "nearest", "bicubic")
    return [value, grid], {
        "mode": pool.choice(modes), "padding_mode": pool.choice(("zeros", "border", "reflection")),
        "align_corners": pool.integer(0, 1),
    }  # fmt: skip


@rule("AffineGrid")
def _affine_grid(pool: Pool) -> Drawn:
    theta = pool.constant(pool.rng.uniform(-1, 1, (2, 2, 3)).astype(np.float32))
    return [theta, pool.constant(np.array([2, 3, 4, 5], np.int64))], {"align_corners": pool.integer(0, 1)}


def _max_roi_pool(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(4,))
    corners = np.sort(pool.rng.integers(0, 8, (3, 2, 2)), 1).reshape(3, 4)
    batch = pool.rng.integers(0, pool.shape(value)[0], (3, 1))
    regions = pool.constant(np.concatenate([batch, corners], 1).astype(np.float32))
    return [value, regions], {"pooled_shape": [2, pool.integer(1, 3)], "spatial_scale": pool.choice((1.0, 0.5))}


def _roi_align(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(4,))
    corners = np.sort(pool.rng.uniform(0, 8, (3, 2, 2)), 1).reshape(3, 4).astype(np.float32)
    batch = pool.rng.integers(0, pool.shape(value)[0], 3)
    return [value, pool.constant(corners), pool.constant(batch)], {
        "output_height": 2, "output_width": pool.integer(1, 3), "sampling_ratio": pool.choice((1, 2)),
    }  # fmt: skip


RULES.update({"MaxRoiPool": _max_roi_pool, "RoiAlign": _roi_align})


@rule("MaxUnpool")
def _max_unpool(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(4,))
    n, c, h, w = pool.shape(value)
    rows, columns = np.meshgrid(np.arange(h) * 2, np.arange(w) * 2, indexing="ij")
    at = (rows * 2 * w + columns) + 4 * h * w * np.arange(n * c).reshape(n, c, 1, 1)
    return [value, pool.constant(at.astype(np.int64))], {"kernel_shape": [2, 2], "strides": [2, 2]}


@rule("ReverseSequence")
def _reverse(pool: Pool) -> Drawn:
    value = pool.value(None, ranks=(2, 3))
    steps, batch = pool.shape(value)[:2]
    return [value, pool.constant(pool.rng.integers(1, steps + 1, batch))], {"time_axis": 0, "batch_axis": 1}


@rule("Range")
def _range(pool: Pool) -> Drawn:
    dtype = pool.choice((np.float32, np.int32, np.int64))
    step = pool.choice((1, 2, -1))
    return [pool.constant(np.array(each, dtype)) for each in ((0, 7, step) if step > 0 else (7, 0, step))], {}


@rule("ConstantOfShape")
def _constant_of_shape(pool: Pool) -> Drawn:
    value = onnx.numpy_helper.from_array(np.array([2], pool.choice((np.float32, np.int64, np.bool_))))
    return [pool.constant(np.array(pool.shape_drawn(3), np.int64))], {"value": value}


@rule("EyeLike")
def _eye(pool: Pool) -> Drawn:
    return [pool.value(("float32", "int32", "int64", "float64"), ranks=(2,))], {"k": pool.integer(-1, 1)}


@rule("Einsum")
def _einsum(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float64"), ranks=(2, 3))
    shape = pool.shape(value)
    letters = "bij"[-len(shape) :]
    equation, other = pool.choice((
        (f"{letters},jk->{letters[:-1]}k", (shape[-1], pool.size())),
        (f"{letters},{letters}->{letters[:-1]}", shape),
        (f"{letters},j->{letters[::-1]}", shape[-1:]),
        ("...j,kj->k...", (pool.size(), shape[-1])),
    ))  # fmt: skip
    return [value, pool.made(other, pool.dtype(value), value)], {"equation": equation}


def _scale(pool: Pool, shape: Sequence[int] = ()) -> str:
    return pool.constant(pool.rng.choice([0.03, 0.1, 0.25], shape).astype(np.float32))


def _quantize_linear(pool: Pool) -> Drawn:
    value, kind = pool.value(("float32",)), pool.choice(("uint8", "int8"))
    return [value, _scale(pool), pool.constant_of((), DTYPES[kind])], {}


def _dequantize_linear(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8", "int32"))
    zero = [] if pool.dtype(value) == np.int32 else [pool.constant_of((), pool.dtype(value))]
    shape = pool.shape(value)
    if len(shape) > 1 and not zero and pool.chance(0.5):
        axis = pool.axis(len(shape))
        return [value, _scale(pool, (shape[axis],))], {"axis": axis}
    return [value, _scale(pool), *zero], {}


RULES.update({"QuantizeLinear": _quantize_linear, "DequantizeLinear": _dequantize_linear})


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(pool: Pool) -> Drawn:
    return [pool.value(("float32",))], {"outputs": 3}


@rule("com.microsoft::QGemm")
def _qgemm(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"), ranks=(2,))
    kind = DTYPES[pool.choice(("int8", "uint8"))]
    n, along = pool.size(), pool.integer(0, 1)
    k = pool.shape(value)[1]
    weight = pool.constant_of((n, k) if along else (k, n), kind, wide=kind.name not in _SATURATE)
    bias = pool.constant(pool.rng.integers(-999, 999, n).astype(np.int32)) if pool.chance(0.5) else ""
    scale = pool.constant(np.array(0.1, np.float32))
    result = [_scale(pool), pool.constant_of((), pool.dtype(value))]
    zeros = [pool.constant_of((), each) for each in (pool.dtype(value), kind)]
    return [value, scale, zeros[0], weight, scale, zeros[1], bias, *result], {
        "transB": along, "alpha": pool.choice((1.0, 0.5)),
    }  # fmt: skip


@rule("com.microsoft::QLinearConcat")
def _qlinear_concat(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"), ranks=(1, 2, 3, 4))
    axis, dtype = pool.axis(len(pool.shape(value))), pool.dtype(value)
    parts = [value, pool.resized(value, axis)]
    inputs = [_scale(pool), pool.constant_of((), dtype)]
    for part in parts:
        inputs += [part, _scale(pool), pool.constant_of((), dtype)]
    return inputs, {"axis": axis}


@rule("com.microsoft::QLinearGlobalAveragePool")
def _qlinear_average(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"), ranks=(4,))
    zeros = [pool.constant_of((), pool.dtype(value)) for _ in range(2)]
    return [value, _scale(pool), zeros[0], _scale(pool), zeros[1]], {"channels_last": pool.integer(0, 1)}


@rule("com.microsoft::QLinearSoftmax")
def _qlinear_softmax(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"), ranks=(1, 2, 3))
    most = np.iinfo(pool.dtype(value)).max  # ONNX Runtime wraps what is larger
    scale, zero = pool.constant(np.array(1 / most, np.float32)), pool.constant(np.array(0, pool.dtype(value)))
    return [value, _scale(pool), pool.constant_of((), pool.dtype(value)), scale, zero], {
        "axis": pool.axis(len(pool.shape(value))), "opset": 13,
    }  # fmt: skip


@rule("com.microsoft::MatMulNBits")
def _matmul_nbits(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(2, 3))
    k, n, block = pool.shape(value)[-1], pool.size(), pool.choice((16, 32))
    blocks = -(-k // block)
    packed = pool.constant(pool.rng.integers(0, 256, (n, blocks, block // 2)).astype(np.uint8))
    scales = pool.constant(pool.rng.uniform(0.1, 0.5, (n * blocks,)).astype(np.float32))
    zeros = [pool.constant(pool.rng.integers(0, 256, (n * -(-blocks // 2),)).astype(np.uint8))] * pool.integer(0, 1)
    return [value, packed, scales, *zeros], {"K": k, "N": n, "bits": 4, "block_size": block}


@rule("QLinearMatMul")
def _qlinear_matmul(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"), ranks=(2, 3))
    dtype, kind = pool.dtype(value), DTYPES[pool.choice(("int8", "uint8"))]
    weight = pool.constant_of((pool.shape(value)[-1], pool.size()), kind, wide=kind.name not in _SATURATE)
    return [
        value, _scale(pool), pool.constant_of((), dtype), weight, _scale(pool), pool.constant_of((), kind),
        _scale(pool), pool.constant_of((), dtype),
    ], {}  # fmt: skip


@rule("QLinearConv")
def _qlinear_conv(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"), ranks=(4,))
    _, channels, *spatial = pool.shape(value)
    found, dtype, filters = _windows(pool, spatial), pool.dtype(value), pool.size()
    weight = pool.constant_of((filters, channels, *found["kernel_shape"]), DTYPES["int8"])
    zero = pool.constant(np.array(0, np.int8))
    return [
        value, _scale(pool), pool.constant_of((), dtype), weight, _scale(pool), zero, _scale(pool),
        pool.constant_of((), dtype),
    ], found  # fmt: skip


@rule("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul")
def _qlinear_binary(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"))
    dtype = pool.dtype(value)
    quantized = [value, _scale(pool), pool.constant_of((), dtype)]
    return [*quantized, pool.beside(value, [dtype]), *quantized[1:], _scale(pool), pool.constant_of((), dtype)], {}


@rule("com.microsoft::QLinearSigmoid", "com.microsoft::QLinearLeakyRelu")
def _qlinear_unary(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"))
    dtype = pool.dtype(value)
    return [value, _scale(pool), pool.constant_of((), dtype), _scale(pool), pool.constant_of((), dtype)], {}


def _recurrence(gates: int, outputs: int) -> Rule:
    def rule(pool: Pool) -> Drawn:
        value = pool.value(("float32",), ranks=(3,))
        hidden, width = pool.choice((1, 3, 8)), pool.shape(value)[-1]
        both = pool.chance(0.3)
        count = 2 if both else 1
        shapes = [(count, gates * hidden, width), (count, gates * hidden, hidden), (count, 2 * gates * hidden)]
        direction = "bidirectional" if both else pool.choice(("forward", "reverse"))
        weights = [pool.constant((pool.rng.standard_normal(each) / 2).astype(np.float32)) for each in shapes]
        found = {"hidden_size": hidden, "direction": direction, "outputs": pool.integer(1, outputs)}
        if gates == 3 and pool.chance(0.5):
            found["linear_before_reset"] = 1
        return [value, *weights[: pool.integer(2, 3)]], found

    return rule


RULES.update({"LSTM": _recurrence(4, 3), "GRU": _recurrence(3, 2), "RNN": _recurrence(1, 2)})


@rule("MeanVarianceNormalization")
def _mean_variance(pool: Pool) -> Drawn:
    return [pool.value(("float32",), ranks=(4,))], {}


@rule("Dropout")
def _dropout(pool: Pool) -> Drawn:
    return [pool.value(("float32", "float16", "float64"))], {}


@rule("Unique")
def _unique(pool: Pool) -> Drawn:
    return [pool.value(("float32", "int64", "int8"), ranks=(1, 2))], {"outputs": pool.integer(1, 4)}


@rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(pool: Pool) -> Drawn:
    value = pool.value(("float32", "float32", "float64", "float16", "bfloat16"), ranks=(1, 2, 3, 4))
    return [value], {"axis": pool.axis(len(pool.shape(value)))}


def _reduce(op: str) -> Rule:
    def rule(pool: Pool) -> Drawn:
        more = ("int8", "uint8") if op in ("ReduceMax", "ReduceMin") else ()
        value = pool.value((*_FLOATS, "int32", "int64", *more), ranks=(1, 2, 3, 4))
        axes, kept = pool.axes(len(pool.shape(value))), {"keepdims": pool.integer(0, 1)}
        if pool.chance(0.1):
            return [value], kept
        if pool.opset >= (13 if op == "ReduceSum" else 18):
            return [value, pool.constant(np.array(axes, np.int64))], kept
        return [value], {**kept, "axes": axes}

    return rule


RULES.update({
    f"Reduce{kind}": _reduce(f"Reduce{kind}")
    for kind in ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
})  # fmt: skip


# What no standard says


_WITHOUT_NAN = (
    *("MaxPool", "GlobalMaxPool", "MaxRoiPool", "AveragePool", "LpPool"),
    *("ArgMax", "ArgMin", "Hardmax", "Sign"),
)
"""Operators of which each reference makes something else of NaN; relaxc does what torch does."""


def is_undefined(op: str, attributes: dict[str, Any], inputs: Sequence[Array | None]) -> bool:
    """Return whether the operator's result on these inputs is nowhere defined, or ends the process."""
    first, second = [*inputs, None, None][:2]
    if op in ("Cast", "CastLike") and first is not None and is_float(first.dtype):
        to = second.dtype if op == "CastLike" and second is not None else None
        to = to or onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])
        return to.kind in "iu" and not _fits(first, to)
    if first is None:
        return False
    if op in ("Div", "Mod") and not is_float(first.dtype) and second is not None:
        least = np.iinfo(first.dtype).min
        return bool((second == 0).any()) or (first.dtype.kind == "i" and bool((first == least).any()))
    if op == "Mod" and not attributes.get("fmod"):
        return is_float(first.dtype)
    if op == "Pow" and not is_float(first.dtype):
        exponents = second if second is not None else np.zeros(1)
        return bool((exponents < 0).any()) or bool((np.abs(first.astype(np.float64)) > 100).any())
    # A sum or product that wraps, or in ONNX Runtime does not.
    if op in ("ReduceLogSum", "ReduceL2", "ReduceMean", "ReduceProd") and not is_float(first.dtype):
        terms = np.abs(first.astype(np.float64)) ** (2 if op == "ReduceL2" else 1)
        most = np.maximum(terms, 1).prod() if op == "ReduceProd" else terms.sum()
        return bool(most > np.iinfo(first.dtype).max)
    if op == "ScatterElements" and attributes.get("reduction") == "max" and is_float(first.dtype):
        return any(bool(np.isnan(each).any()) for each in (first, inputs[2]) if each is not None)
    if op in ("Softmax", "LogSoftmax", "ReduceLogSumExp"):  # of inf and numbers: each has an order of its own
        return is_float(first.dtype) and not bool(np.isfinite(first.astype(np.float64)).all())
    if op in ("ReduceMax", "ReduceMin") and first.dtype == np.float16:  # ONNX Runtime loses some, and keeps others
        return bool(np.isnan(first).any())
    if op in _WITHOUT_NAN:
        return is_float(first.dtype) and bool(np.isnan(first).any())
    if op in ("QuantizeLinear", "DynamicQuantizeLinear", "TopK", "Unique", "Resize", "Upsample", "GridSample"):
        return is_float(first.dtype) and not bool(np.isfinite(first.astype(np.float64)).all())
    return False


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    info, values = np.iinfo(dtype), array.astype(np.float64)
    return bool(np.isfinite(values).all()) and bool(((values > info.min - 1.0) & (values < info.max)).all())
