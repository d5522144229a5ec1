"""Plugins with Triton kernels for tests: files in a folder, and the mark of tests that compile them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tvm.relax import op

from relaxc.schedules.cuda.triton_call import Argument, Launch, TritonCall
from relaxc.service.machine import version_of
from tests.passes.graphs import graph

__all__ = ["EXAMPLE", "call", "disassembled", "gelu_add", "needs_triton", "plugin"]

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugins" / "fused_gelu_add.py"

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or shutil.which("nvcc") is None,
    reason="Triton (pip install 'relaxc[triton]') or nvcc is not installed",
)

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def scaled(x_ptr, y_ptr, count, one, scale, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    x = tl.load(x_ptr + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, x * scale + one, mask=at < count)
"""

PLUGIN = """
from tvm.relax.dpl import is_op, wildcard

from relaxc import TritonKernel

x = wildcard()
TRITON = {{
    "scaled": TritonKernel(
        "{file}:scaled",
        arguments=lambda x, y: [x, y, y.size, 1, 0.5],
        grid=lambda constants, x, y: -(-y.size // constants["WIDTH"]),
        constexprs={{"WIDTH": 256}},
    )
}}
PATTERNS = [(is_op("relax.negative")(x), lambda matched, parts, ops: ops("scaled", [parts[x]]))]
"""


def plugin(folder: Path, text: str = PLUGIN, kernels: str = KERNELS) -> Path:
    """Write a plugin that has `scaled` for `negative`, or the given texts, and return its path."""
    (folder / "kernels.py").write_text(kernels)
    path = folder / "mine.py"
    path.write_text(text.format(file="kernels.py") if "{file}" in text else text)
    return path


def call(source: str = KERNELS, function: str = "scaled", **fields: Any) -> TritonCall:
    """Return a call of a kernel on a tensor and a result of 1000 elements."""
    values = (Argument(tensor=0), Argument(tensor=1), Argument(value=1000), Argument(value=1), Argument(value=0.5))
    launches = (Launch((4, 1, 1), {"WIDTH": 256}, {"num_warps": 4, "num_stages": 3}),)
    given = {"arguments": values, "launches": launches, **fields}
    return TritonCall("mine", "kernels.py", function, source, version_of("triton") or "none", **given)


def disassembled(image: bytes, folder: Path) -> str:
    """Return what the cuobjdump that comes with Triton shows of machine code."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.origin is not None
    tool = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"
    (folder / "kernel.cubin").write_bytes(image)
    return subprocess.run([tool, "-sass", folder / "kernel.cubin"], capture_output=True, text=True, check=True).stdout


def gelu_add(dtype: str, *shape: int | str) -> Any:
    """Return a module of `gelu(x) + y`."""
    return graph(lambda x, y: op.add(op.nn.gelu(x), y), x=(dtype, shape), y=(dtype, shape))
