"""Small artifacts made with TVM's own pipeline, independent of our other stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.script import relax as R

from relaxc.service import machine
from relaxc.service.artifact import pack
from relaxc.service.artifact.manifest import Manifest, Requires
from relaxc.service.request import TargetSpec
from relaxc.service.signature import DimBounds, Signature, TensorSpec

VERSION = metadata.version("apache-tvm")


@tvm.script.ir_module
class Linear:
    """y = x @ w + b over a symbolic batch, the same in bfloat16, the row numbers, and x itself."""

    @R.function
    def main(
        x: R.Tensor(("batch", 64), "float32"),
        ids: R.Tensor(("batch",), "int64"),
        weights: R.Tuple(R.Tensor((64, 64), "float32"), R.Tensor((64,), "bfloat16"), R.Tensor((3,), "float32")),
    ):
        with R.dataflow():
            product = R.matmul(x, weights[0])
            y = R.add(product, R.astype(weights[1], "float32"))
            half = R.astype(y, "bfloat16")
            doubled = R.add(ids, ids)
            out = (y, half, doubled, x, weights[2])
            R.output(out)
        return out


@tvm.script.ir_module
class Twice:
    """Linear, of which y is twice what it is there."""

    @R.function
    def main(
        x: R.Tensor(("batch", 64), "float32"),
        ids: R.Tensor(("batch",), "int64"),
        weights: R.Tuple(R.Tensor((64, 64), "float32"), R.Tensor((64,), "bfloat16"), R.Tensor((3,), "float32")),
    ):
        with R.dataflow():
            product = R.matmul(x, weights[0])
            once = R.add(product, R.astype(weights[1], "float32"))
            y = R.add(once, once)
            half = R.astype(y, "bfloat16")
            doubled = R.add(ids, ids)
            out = (y, half, doubled, x, weights[2])
            R.output(out)
        return out


def linear_signature() -> Signature:
    """The signature of Linear, batch in 1..1024, with one input that the export fixed."""
    return Signature(
        (TensorSpec("x", "float32", ("batch", 64)), TensorSpec("ids", "int64", ("batch",))),
        (
            TensorSpec("y", "float32", ("batch", 64)),
            TensorSpec("half", "bfloat16", ("batch", 64)),
            TensorSpec("doubled", "int64", ("batch",)),
            TensorSpec("same", "float32", ("batch", 64)),
            TensorSpec("constant", "float32", (3,)),
        ),
        (("batch", DimBounds(1, 1024)),),
        (("use_cache", False),),
    )


def manifest_of(signature: Signature, **fields: Any) -> Manifest:
    """A manifest for this machine."""
    target = TargetSpec("here", "llvm", triple=f"{machine.cpu().arch}-linux-gnu")
    return replace(
        Manifest(signature, target, Requires.of(target, VERSION), {}, {"tvm": VERSION}, {}, "relaxc compile"), **fields
    )


def build(module: Any, out: Path) -> Path:
    """The module as a shared library, unscheduled."""
    tvm.compile(module, target=tvm.target.Target({"kind": "llvm"})).export_library(str(out))
    return out


@dataclass(frozen=True)
class Linears:
    """The library of Linear and its weights."""

    library: Path
    weights: dict[str, Any]
    signature: Signature

    def expected(self, x: Any, ids: Any) -> dict[str, Any]:
        """What numpy computes."""
        y = x @ self.weights["w"] + self.weights["b"].astype(np.float32)
        half = y.astype(ml_dtypes.bfloat16)
        return {"y": y, "half": half, "doubled": ids * 2, "same": x, "constant": self.weights["odd"]}


@pytest.fixture(scope="session")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Linears:
    """Linear, built once."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((64, 64)).astype(np.float32),
        "b": rng.standard_normal(64).astype(ml_dtypes.bfloat16),
        "odd": np.array([1, 2, 3], np.float32),
    }
    return Linears(build(Linear, tmp_path_factory.mktemp("linear") / "library.so"), weights, linear_signature())


@pytest.fixture(scope="session")
def twice(linear: Linears, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of Twice, with the weights of Linear."""
    folder = tmp_path_factory.mktemp("twice")
    out = folder / "twice.so"
    pack(
        build(Twice, folder / "library.so"), linear.weights, manifest_of(linear.signature), out, embed_max_bytes=1 << 30
    )
    return out


@pytest.fixture(scope="session")
def artifact(linear: Linears, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes an artifact of Linear whose manifest has these fields, by default with its weights inside."""

    def make(embed_max_bytes: int = 1 << 30, **fields: Any) -> Path:
        out = tmp_path_factory.mktemp("artifact") / "linear.so"
        manifest = manifest_of(fields.pop("signature", linear.signature), **fields)
        pack(linear.library, linear.weights, manifest, out, embed_max_bytes=embed_max_bytes)
        return out

    return make


def aligned(array: Any, align: int = 64, shift: int = 0) -> Any:
    """A copy of the array that starts `shift` bytes after a multiple of `align`."""
    memory = np.empty(array.nbytes + align + shift, np.uint8)
    start = -memory.ctypes.data % align + shift
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
