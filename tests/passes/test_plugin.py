"""Plugins: the worked examples end to end, and what a broken file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from relaxc.service.errors import CompileFailed, PluginError
from relaxc.service.passes import Plugin, load_plugin, optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, compute, graph, random, run, weights

pytestmark = pytest.mark.sampled

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


def squared_by_product(x: Any) -> Any:
    return op.multiply(*[op.nn.relu(op.matmul(x, weights(4, 8)))] * 2)


def squared_by_power(x: Any) -> Any:
    return op.power(op.nn.relu(op.matmul(x, weights(4, 8))), constant(np.float32(2)))


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("rows", [3, "n"])
@pytest.mark.parametrize("net", [squared_by_product, squared_by_power])
def test_squared_relu(net: Any, rows: int | str, level: int) -> None:
    if net is squared_by_product and level == 0:
        pytest.skip("two calls of relu are one only after common subexpressions are")
    module = graph(net, x=(2, rows, 4))
    plugin = load_plugin(EXAMPLES / "squared_relu.py")
    optimized = optimize(module, TARGET, CompileOptions(opt_level=level), plugins=[plugin])
    assert optimized.report.plugins == ("squared_relu.py",)
    assert any("squared_relu" in str(gvar.name_hint) for gvar in optimized.module.get_global_vars())
    x = random(2, 3, 4)
    np.testing.assert_allclose(run(optimized, x)[0], compute(module, x)[0], rtol=1e-5, atol=1e-6)


def test_squared_relu_joins_the_matmul_before_it() -> None:
    module = graph(squared_by_power, x=("n", 3, 4))
    optimized = optimize(
        module, TARGET, CompileOptions(opt_level=1), plugins=[load_plugin(EXAMPLES / "squared_relu.py")]
    )
    assert optimized.report.fusions == {"matmul + squared_relu": 1}


def test_squared_relu_leaves_other_exponents() -> None:
    module = graph(lambda x: op.power(op.nn.relu(x), constant(np.float32(3))), x=(2, 4))
    plugin = load_plugin(EXAMPLES / "squared_relu.py")
    optimized = optimize(module, TARGET, CompileOptions(), plugins=[plugin])
    assert not any("squared_relu" in name for name in optimized.report.fusions)


@pytest.mark.parametrize("shape", [(8,), (2, 3, 4), ("n", 4)])
@pytest.mark.parametrize("swapped", [False, True])
def test_fused_gelu_add(shape: tuple[Any, ...], swapped: bool) -> None:
    def net(x: Any, y: Any) -> Any:
        return op.add(y, op.nn.gelu(x)) if swapped else op.add(op.nn.gelu(x), y)

    module = graph(net, x=shape, y=shape)
    optimized = optimize(module, TARGET, CompileOptions(), plugins=[load_plugin(EXAMPLES / "fused_gelu_add.py")])
    assert any("gelu_add" in name for name in optimized.report.fusions)
    sizes = [5 if size == "n" else size for size in shape]
    x, y = random(*sizes), random(*sizes, seed=1)
    np.testing.assert_allclose(run(optimized, x, y)[0], compute(module, x, y)[0], rtol=1e-5, atol=1e-6)


def test_fused_gelu_add_leaves_what_it_cannot_take() -> None:
    module = graph(lambda x, y: op.add(op.nn.gelu(x), y), x=(2, 4), y=(4,))
    optimized = optimize(module, TARGET, CompileOptions(), plugins=[load_plugin(EXAMPLES / "fused_gelu_add.py")])
    assert optimized.report.fusions == {"gelu + add": 1}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plugin.py"
    path.write_text(text)
    return path


BROKEN = {
    "no such file": (None, r"is not a Python file"),
    "syntax": ("x = 1\ndef f(:\n", r"plugin\.py:2: SyntaxError"),
    "raises": ("import os\n\nraise KeyError('no')\n", r"plugin\.py:3: KeyError"),
    "import": ("import no_such_module_here\n", r"plugin\.py:1: ModuleNotFoundError"),
    "nothing": ("x = 1\n", "defines none of PASSES, PATTERNS, PRIM_FUNCS"),
    "phase": ("PASSES = {'nowhere': []}\n", "phase 'nowhere'; there are prepare"),
    "not passes": ("PASSES = {'simplify': [1]}\n", r"PASSES\['simplify'\] must be a list of tvm passes"),
    "not a dict": ("PASSES = []\nPRIM_FUNCS = {}\n", "must be dicts"),
    "not pairs": ("PATTERNS = [1]\n", r"PATTERNS\[0\] must be a pair"),
    "not a function": ("PRIM_FUNCS = {'f': 1}\n", r"PRIM_FUNCS\['f'\] must be a PrimFunc"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_names_itself_and_the_line(name: str, tmp_path: Path) -> None:
    text, message = BROKEN[name]
    path = tmp_path / "missing.py" if text is None else write(tmp_path, text)
    with pytest.raises(PluginError, match=message) as caught:
        load_plugin(path)
    assert caught.value.fields["path"] == str(path)


REPLACES = """
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

x = wildcard()


def replace(matched, parts, ops):
    {body}


PATTERNS = [(is_op("relax.exp")(x), replace)]
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return parts[x].no_such_thing", r"plugin\.py:9: AttributeError"),
        ("return ops('missing', [parts[x]])", r"plugin\.py:9: KeyError: .*neither PRIM_FUNCS nor TRITON has 'missing'"),
        (
            "return relax.op.reshape(parts[x], [3, 2])",
            r"phase plugins \(.*plugin\.py\) left a module that is not well-formed",
        ),
        (
            "return relax.op.astype(parts[x], 'int32')",
            r"phase plugins \(.*plugin\.py\) left a module that is not well-formed",
        ),
    ],
)
def test_a_replacement_that_breaks_the_module(body: str, message: str, tmp_path: Path) -> None:
    plugin = load_plugin(write(tmp_path, REPLACES.format(body=body)))
    with pytest.raises(PluginError, match=message):
        optimize(graph(op.exp, x=(2, 3)), TARGET, CompileOptions(), plugins=[plugin])


PASSES = """
import tvm
from tvm import relax


@tvm.transform.module_pass(opt_level=0, name="Mine")
class Mine:
    def transform_module(self, module, context):
        {body}


PASSES = {{"simplify": [Mine(), relax.transform.DeadCodeElimination()]}}
"""


def test_passes_run_at_the_end_of_their_phase(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    plugin = load_plugin(write(tmp_path, PASSES.format(body=f"open({str(marker)!r}, 'w').close(); return module")))
    optimize(graph(op.exp, x=(2, 3)), TARGET, CompileOptions(opt_level=0), plugins=[plugin])
    assert not marker.exists()  # -O0 has no such phase
    optimize(graph(op.exp, x=(2, 3)), TARGET, CompileOptions(), plugins=[plugin])
    assert marker.exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('mine')", "pass Mine of phase simplify raised .*mine"),
        ("return tvm.IRModule()", "removed the function main"),
    ],
)
def test_a_pass_that_breaks_the_module(body: str, message: str, tmp_path: Path) -> None:
    plugin = load_plugin(write(tmp_path, PASSES.format(body=body)))
    with pytest.raises(PluginError, match=message):
        optimize(graph(op.exp, x=(2, 3)), TARGET, CompileOptions(), plugins=[plugin])


def test_a_plugin_is_a_value_too() -> None:
    plugin = Plugin(Path("inline.py"))
    assert not issubclass(PluginError, CompileFailed)
    assert optimize(graph(op.exp, x=(2,)), TARGET, CompileOptions(), plugins=[plugin]).report.kernel_calls == 1
