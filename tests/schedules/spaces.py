"""The PrimFuncs on which every template's whole space is tried, and the trial: built, run, compared with numpy."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from relaxc.schedules import cpu
from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.attention.form import MASKED
from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.operators import Attention
from relaxc.schedules.template import Declined, Rule, Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.passes.kernels.attention_compute import AttentionSpec, attention
from relaxc.service.request import CompileOptions
from tests.guarded import guarded_tensor
from tests.schedules.harness import assert_close, legalized
from tests.schedules.numpy_tir import computed, numpy_dtype, random_inputs

__all__ = [
    *(
        "BYTES",
        "CASES",
        "FLOATS",
        "PAIRS",
        "WIDTHS",
        "Case",
        "agree",
        "constant",
        "first_rule",
        "functions",
        "in_layouts",
        "network_of",
    ),
    *("points", "rule"),
]

pipeline.register()
R = relax.op

WIDTHS = {128: "x86-64-v2", 256: "x86-64-v3", 512: "x86-64-v4"}
PAIRS, BYTES = (
    json.dumps({"kind": "llvm", "mcpu": "x86-64-v4", "features": [feature], "cores": 2})
    for feature in ("avx512bf16", "avx512vnni")
)
"""CPUs that multiply pairs of bfloat16, and bytes, and have no tile registers, whose plans would come first."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
NUMBERS = (*FLOATS, "int32")
PACKED = tuple(left for left, _, _ in MatmulPacked.dtypes)

Point = Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """PrimFuncs for one rule: `make(dtype, target name)` gives them, in each of `dtypes`."""

    name: str
    rule: str
    make: Callable[[str, str], list[Any]]
    dtypes: tuple[str, ...]


def rule(name: str) -> Rule:
    """Return the rule of this name."""
    return next(each for each in cpu.RULES if each.name == name)


def _plain(build: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[str, str], list[Any]]:
    """The kernels of an expression as they are without layouts: one fused PrimFunc, mostly."""

    def make(dtype: str, target: str) -> list[Any]:
        del target
        return _primfuncs(legalized(build, shapes, [dtype] * len(shapes)))

    return make


def in_layouts(build: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[str, str], list[Any]]:
    """Return what gives the kernels of a network in the layouts that the graph passes choose.

    What it reads beside inputs of these shapes are constants.
    """

    def make(dtype: str, target: str) -> list[Any]:
        inputs = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
        block = relax.BlockBuilder()
        with block.function("main", inputs):
            with block.dataflow():
                result = block.emit_output(relax.Tuple([block.normalize(build(*inputs))]))
            block.emit_func_output(result)
        return _primfuncs(optimize(block.get(), to_tvm(resolve(target)), CompileOptions()).module)

    return make


def _primfuncs(module: Any) -> list[Any]:
    found = [func for func in module.functions.values() if isinstance(func, tirx.PrimFunc)]
    return [func.with_attr("global_symbol", "main") for func in found]


def constant(*shape: int, dtype: str = "float32", seed: int = 0) -> relax.Constant:
    """Return random weights: floats about 0, integers over all of a byte."""
    values = np.random.default_rng(seed).standard_normal(shape)
    if not is_float(dtype):
        values = np.clip(values * 50, -128, 127)
    return relax.const(tvm.runtime.tensor(values.astype(numpy_dtype(dtype))))


def _conv(x: Any, out: int, channels: int, kernel: int = 3, dtype: str = "float32", **geometry: Any) -> Any:
    weight = constant(out, channels // geometry.get("groups", 1), kernel, kernel, dtype=dtype)
    return R.nn.relu(R.nn.conv2d(x, weight, padding=kernel // 2, **geometry))


def _network(x: Any, dtype: str = "float32") -> Any:
    """First layer, 3x3 and 1x1 convolutions with tails, a depthwise one, and both kinds of pools."""
    conv = partial(_conv, dtype=dtype)
    x = R.nn.max_pool2d(conv(x, 20, 3, strides=2), (3, 3), strides=(2, 2), padding=1)
    x = conv(conv(x, 33, 20, 1), 33, 33, groups=33)
    x = R.add(x, conv(x, 33, 33))
    return R.mean(conv(x, 40, 33, 3, strides=(2, 1), dilation=(1, 2)), [2, 3])


def network_of(dtype: str, target: str) -> list[Any]:
    """Return the kernels of a network of convolutions and pools, as the graph passes leave them in this dtype."""
    return in_layouts(partial(_network, dtype=dtype), (1, 3, 29, 23))(dtype, target)


def _gated(x: Any) -> Any:
    """A mean over the image, as squeeze and excite has it."""
    x = _conv(x, 24, int(x.ty.shape[1]), 1)
    return R.multiply(x, R.sigmoid(R.mean(x, [2, 3], keepdims=True)))


def _bytes(x: Any) -> Any:
    """A convolution of bytes with tails, summed in int32."""
    weight = constant(36, int(x.ty.shape[1]), 3, 2, dtype="int8")
    return R.nn.relu(R.nn.conv2d(x, weight, padding=(1, 0, 1, 1), strides=(2, 1), out_dtype="int32"))


def _strided(x: Any) -> Any:
    return _conv(_conv(x, 20, 3, strides=2), 36, 20, strides=(1, 2), groups=2)


def _deep(x: Any) -> Any:
    """Channels enough for Winograd's convolution."""
    return R.nn.avg_pool2d(_conv(_conv(x, 64, 64, 1), 64, 64), (2, 2), strides=(2, 2))


def _attention(queries: int, keys: int, depth: int, width: int) -> Callable[[str, str], list[Any]]:
    """One batch and two heads, `[heads, rows, columns]`, summed in fp32 where the operands have 16 bits."""

    def make(dtype: str, target: str) -> list[Any]:
        summed = dtype if dtype == "float64" else "float32"
        operator = Attention(
            batch=1, heads=2, queries=queries, keys=keys, depth=depth, width=width,
            operands=(dtype,) * 3, accumulate=summed, out=summed,
        )  # fmt: skip
        plan = planning.default(operator, cpu_of(to_tvm(resolve(target))))
        shapes = ((2, queries, depth), (2, keys, depth), (2, keys, width))
        tensors = [te.placeholder(shape, dtype, name) for shape, name in zip(shapes, "qkv", strict=True)]

        def load(index: int) -> Callable[..., Any]:
            return lambda t, b, i, j: t[index][b[0], i, j].astype(summed)

        spec = AttentionSpec(
            (2,), queries, keys, depth, width, "nan",
            load(0), load(1), load(2), None, (2, queries, width), lambda h, m, e: ([h], m, e), plan=plan,
        )  # fmt: skip
        return [te.create_prim_func([*tensors, attention(*tensors, spec=spec)]).with_attr(MASKED, "nan")]

    return make


def _linear(a: Any, b: Any, c: Any) -> Any:
    return R.nn.relu(R.add(R.matmul(a, b), c))


def _dense(depth: int, columns: int) -> Callable[[Any], Any]:
    """A product with a constant, bias and relu: bytes are summed in int32 and floats in fp32."""

    def build(a: Any) -> Any:
        dtype = str(a.ty.dtype)
        summed = "float32" if is_float(dtype) else "int32"
        weight = constant(depth, columns, dtype="int8" if dtype == "uint8" else dtype)
        return R.nn.relu(R.add(R.matmul(a, weight, out_dtype=summed), constant(columns, dtype=summed)))

    return build


def _quantized(depth: int, columns: int, *, few: bool, zeros: bool) -> Callable[[Any], Any]:
    """A product with weights of 4 bits (`few`) or 8 in blocks of 32, bias and relu."""

    def build(a: Any) -> Any:
        count = depth * columns // 32
        rng = np.random.default_rng(depth)
        codes = rng.integers(0, 16 if few else 256, (count, 32)).astype("uint8")
        scales = rng.uniform(0.01, 0.02, count).astype("float32")
        zero = rng.integers(0, 16, count).astype("uint8") if zeros else np.uint8(8 if few else 128)
        weight = R.dequantize(*(relax.const(part) for part in (codes, scales, zero)), axis=0)
        product = R.matmul(a, R.permute_dims(R.reshape(weight, (columns, depth)), [1, 0]))
        return R.nn.relu(R.add(product, constant(columns)))

    return build


def _conv2d(**geometry: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: R.nn.relu(R.nn.conv2d(a, b, **geometry))


_ONE, _SOME = ("float32",), ("float16", "float32", "float64")

CASES = [
    Case("39x256 by 330", "cpu.matmul_packed", in_layouts(_dense(256, 330), (39, 256)), PACKED),
    Case("1x70 by 257", "cpu.matmul_packed", in_layouts(_dense(70, 257), (1, 70)), PACKED),
    Case("3x5x13 by 31", "cpu.matmul_packed", in_layouts(_dense(13, 31), (3, 5, 13)), PACKED),
    Case("1x96 by 330", "cpu.matmul_blocks", in_layouts(_quantized(96, 330, few=True, zeros=False), (1, 96)), _ONE),
    Case("7x64 by 40", "cpu.matmul_blocks", in_layouts(_quantized(64, 40, few=True, zeros=True), (7, 64)), _ONE),
    Case("2x64 of bytes", "cpu.matmul_blocks", in_layouts(_quantized(64, 70, few=False, zeros=True), (2, 64)), _ONE),
    Case("network", "cpu.conv2d_blocked", in_layouts(_network, (1, 3, 45, 37)), _ONE),
    Case("bytes", "cpu.conv2d_blocked", in_layouts(_bytes, (2, 33, 9, 14)), ("uint8",)),
    Case("bytes of few channels", "cpu.conv2d_blocked", in_layouts(_bytes, (1, 6, 15, 14)), ("uint8",)),
    Case("two images", "cpu.conv2d_blocked", in_layouts(_strided, (2, 3, 17, 14)), _ONE),
    Case("network", "cpu.depthwise_blocked", in_layouts(_network, (1, 3, 45, 37)), _ONE),
    Case("network", "cpu.pooling", in_layouts(_network, (1, 3, 45, 37)), _ONE),
    Case("deep", "cpu.pooling", in_layouts(_deep, (1, 64, 14, 15)), _ONE),
    Case("mean", "cpu.pooling_image", in_layouts(_gated, (1, 20, 12, 7)), _ONE),
    Case("mean of two", "cpu.pooling_image", in_layouts(_gated, (2, 33, 9, 13)), _ONE),
    Case("deep", "cpu.winograd", in_layouts(_deep, (1, 64, 27, 29)), _ONE),
    Case("17x50", "cpu.attention", _attention(17, 50, 20, 24), FLOATS),
    Case("1x7", "cpu.attention", _attention(1, 7, 16, 16), FLOATS),
    Case("37x40 by 50", "cpu.matmul", _plain(_linear, (37, 40), (40, 50), (50,)), NUMBERS),
    Case("1x7 by 257", "cpu.matmul", _plain(_linear, (1, 7), (7, 257), (257,)), NUMBERS),
    Case("6x13x31 by 33", "cpu.matmul", _plain(R.matmul, (6, 13, 31), (6, 31, 33)), NUMBERS),
    Case("3x3", "cpu.conv2d", _plain(_conv2d(padding=1), (1, 6, 9, 14), (10, 6, 3, 3)), NUMBERS),
    Case("groups", "cpu.conv2d", _plain(_conv2d(strides=(2, 1), groups=2), (2, 6, 7, 13), (4, 3, 3, 2)), FLOATS),
    Case("9x20", "cpu.depthwise", _plain(_conv2d(padding=1, groups=6), (1, 6, 9, 20), (6, 1, 3, 3)), NUMBERS),
    Case("13x31", "cpu.depthwise", _plain(_conv2d(strides=2, groups=3), (2, 3, 13, 31), (3, 1, 5, 3)), FLOATS),
    Case("softmax", "cpu.rows", _plain(lambda a: R.nn.softmax(a, -1), (5, 100)), _SOME),
    Case("layer norm", "cpu.rows", _plain(lambda *x: R.nn.layer_norm(*x, [-1]), (7, 131), (131,), (131,)), _ONE),
    Case("sum of 31", "cpu.rows", _plain(lambda a: R.sum(a, -1), (13, 31)), ("float32", "float64", "int32")),
    Case("softmax", "cpu.reduction", _plain(lambda a: R.nn.softmax(a, -1), (7, 100)), _SOME),
    Case("max of 1000", "cpu.reduction", _plain(lambda a: R.max(a, -1), (3, 1000)), NUMBERS),
    Case("chain", "cpu.injective", _plain(lambda a, b: R.add(R.tanh(a), b), (7, 100), (100,)), FLOATS),
    Case("transposed", "cpu.injective", _plain(lambda a: R.permute_dims(a, (0, 2, 1)), (3, 37, 61)), NUMBERS),
    Case("softmax over columns", "cpu.fallback", _plain(lambda a: R.nn.softmax(a, 1), (2, 7, 33)), _SOME),
]
"""At least one of every rule."""


@cache
def functions(case: Case, dtype: str, target: str) -> list[Any]:
    """Return the PrimFuncs of a case that its rule takes, or the one that a plain case is."""
    asked, aim = rule(case.rule), to_tvm(resolve(target))
    made = case.make(dtype, target)
    taken = [func for func in made if not isinstance(asked.points(func, aim), Declined)]
    own = [func for func in taken if first_rule(func, target) is asked] if len(made) > 1 else taken
    assert own, f"{case.rule} takes nothing of {case.name} in {dtype}"
    return own


def first_rule(func: Any, target: str) -> Rule:
    """Return the rule that schedules `func` where it is untuned."""
    aim = to_tvm(resolve(target))
    return next(each for each in cpu.RULES if not isinstance(each.points(func, aim), Declined))


def points(func: Any, asked: Rule, target: str, most: int, seed: int = 0) -> list[Point]:
    """Return all points of a rule's space, or `most` of them drawn with a seed; the default is the first."""
    aim = to_tvm(resolve(target))
    space, default = asked.points(func, aim), asked.apply(func, aim)
    assert not isinstance(space, Declined)
    assert isinstance(default, Schedule)
    drawn = random.Random(seed).sample(range(space.size), min(most, space.size))
    found = [dict(default.parameters)]
    for number in drawn:
        point = dict(space.listed[number]) if space.listed else _combination(space.values, number)
        found += [point] if point not in found else []
    return found if len(drawn) < most else found[:most]


def _combination(values: Mapping[str, tuple[int, ...]], number: int) -> dict[str, int]:
    """The combination of this number."""
    point = {}
    for name, choices in values.items():
        number, at = divmod(number, len(choices))
        point[name] = choices[at]
    return point


def agree(func: Any, asked: Rule, target: str, tried: Iterable[Point]) -> None:
    """Fail unless every point builds and computes what numpy does."""
    aim = to_tvm(resolve(target))
    arrays = random_inputs(func)
    want = computed(func, arrays)[-1]
    kernels = {}
    for index, point in enumerate(tried):
        made = asked.apply(func, aim, point)
        assert isinstance(made, Schedule), (point, made)
        name = f"kernel{index}"
        kernels[name] = made.func.with_attr({"global_symbol": name, "tirx.is_scheduled": True}), point
    module = tvm.IRModule({name: kernel for name, (kernel, _) in kernels.items()})
    built = tirx.build(module, aim, pipeline=pipeline.NAME)
    for name, (_, point) in kernels.items():
        tensors = [guarded_tensor(array, "end") for array in arrays]
        built[name](*tensors)
        try:
            assert_close(tensors[-1].numpy(), want)
        except AssertionError as error:
            raise AssertionError(f"{asked.name} {point}: {error}") from error
