"""The vector functions against numpy in float64, over the whole range of float32, in vectors and in tails."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from relaxc.service.lowering import pipeline, schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.lowering.vector_math import FUNCTIONS, llvm_module

pytestmark = pytest.mark.sampled

pipeline.register()

COUNT = 1 << 19
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 88.72283, 88.72284, 88.73, -87.3, -103.9, -104.1, 1e-45]

REFERENCES = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "sigmoid": lambda x: np.where(x < 0, np.exp(x), 1) / (1 + np.exp(-np.abs(x))),
}
ULPS = {"erf": 6.0, "log1p": 4.0}


def samples() -> np.ndarray:
    """Bit patterns spread over all floats, the usual ranges more densely, and the special values."""
    rng = np.random.default_rng(0)
    patterns = np.arange(0, 2**32, 2**32 // 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = [rng.uniform(-bound, bound, 70_000).astype("float32") for bound in (110, 5, 1, 1e-3)]
    return np.resize(np.concatenate([np.asarray(SPECIAL, "float32"), *usual, patterns]), COUNT)


def compiled(name: str, shape: tuple[int, ...], dtype: str, target: str, opt_level: int = 2):
    """A library whose `main` is `name` of each element, through the schedule and the pipeline."""
    spec = resolve(target)
    a = te.placeholder(shape, dtype, name="a")
    b = te.compute(shape, lambda i: getattr(tirx, name)(a[i]), name="b")
    module = tvm.IRModule({"main": te.create_prim_func([a, b]).with_attr("global_symbol", "main")})
    return tvm.tirx.build(schedule(module, spec, opt_level=opt_level).module, to_tvm(spec), pipeline=pipeline.NAME)


def evaluate(name: str, x: np.ndarray, target: str, opt_level: int = 2) -> tuple[np.ndarray, str]:
    """`name` of each of x, and the assembly."""
    library = compiled(name, x.shape, str(x.dtype), target, opt_level)
    out = tvm.runtime.tensor(np.zeros_like(x))
    library["main"](tvm.runtime.tensor(x), out)
    return out.numpy(), library.inspect_source("asm")


@pytest.mark.parametrize("target", ["auto", "x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_whole_range(name, target):
    x = samples()
    got, assembly = evaluate(name, x, target)
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype("float64"))
        want = exact.astype("float32")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.isinf(got)[number], np.isinf(want)[number])
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])
    finite = np.isfinite(want)
    spacing = np.maximum(np.spacing(np.abs(want[finite])).astype("float64"), 2.0**-149)
    error = np.abs(got[finite].astype("float64") - exact[finite]) / spacing
    if name in ("exp", "sigmoid"):  # subnormal results are 0
        error[(np.abs(exact[finite]) < 2.0**-126) & (got[finite] == 0)] = 0
    assert error.max() <= ULPS.get(name, 3.0), (error.max(), x[finite][error.argmax()])
    assert f"{name}f" not in assembly  # no libm


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [1, 5, 210])
def test_tails_give_the_values_of_vectors(name, size):
    x = np.linspace(0.01, 3, 1024).astype("float32")
    whole, _ = evaluate(name, x, "auto")
    part, _ = evaluate(name, x[:size].copy(), "auto")
    np.testing.assert_array_equal(part, whole[:size])


@pytest.mark.parametrize("name", ["exp", "tanh", "erf"])
def test_float16_goes_through_float32(name):
    x = np.linspace(-4, 4, 777).astype("float16")
    got, _ = evaluate(name, x, "auto")
    np.testing.assert_allclose(got, REFERENCES[name](x.astype("float64")), rtol=1e-3, atol=1e-4)


def test_float64_and_low_opt_levels_stay_with_libm():
    x = np.linspace(-4, 4, 777)
    got, assembly = evaluate("exp", x, "auto")
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-15)
    got, assembly = evaluate("exp", x.astype("float32"), "auto", opt_level=1)
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-6)
    assert "expf" in assembly


@pytest.mark.parametrize(("dtype", "opt_level"), [("float64", 2), ("float64", 0), ("float32", 0), ("float32", 2)])
def test_a_small_number_is_its_own_tanh(dtype: str, opt_level: int):
    x = (10.0 ** -np.arange(1, 30) * (-1) ** np.arange(29)).astype(dtype)
    got, _ = evaluate("tanh", x, "x86-64-v3", opt_level=opt_level)
    np.testing.assert_allclose(got, np.tanh(x.astype("float64")), rtol={"float32": 4e-7, "float64": 1e-15}[dtype])


def test_powers_of_functions_compile_in_time():
    """Nested functions: TVM's code generator takes exponential time when they are lets."""
    spec = resolve("auto")
    a = te.placeholder((210,), "float32", name="a")
    b = te.compute((210,), lambda i: tirx.sigmoid(tirx.tanh(tirx.exp(tirx.erf(tirx.sigmoid(tirx.tanh(a[i])))))))
    module = tvm.IRModule({"main": te.create_prim_func([a, b]).with_attr("global_symbol", "main")})
    tvm.tirx.build(schedule(module, spec).module, to_tvm(spec), pipeline=pipeline.NAME)


def test_the_module_is_text_and_always_the_same():
    wanted = [("exp", 16), ("tanh", 1)]
    assert llvm_module(wanted) == llvm_module(wanted)
    assert "define <16 x float> @relaxc_exp_16(<16 x float> %x)" in llvm_module(wanted)


@pytest.mark.parametrize(("target", "scales"), [("x86-64-v4", True), ("x86-64-v3", False)])
@pytest.mark.usefixtures("code_to_be_read")
def test_avx512_scales_by_powers_of_two_in_one_instruction(target, scales):
    assert ("vscalefps" in compiled("exp", (64,), "float32", target).inspect_source("asm")) == scales
