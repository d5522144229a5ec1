"""A small shared library, and manifests with every field set."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from relaxc.service.artifact.manifest import Manifest, Requires
from relaxc.service.request import TargetSpec
from relaxc.service.signature import Condition, DimBounds, Signature, TensorSpec

SOURCE = 'extern "C" int answer() { static int calls; return 42 + 0 * ++calls; }'


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with one function, `answer() -> 42`."""
    out = tmp_path_factory.mktemp("library") / "library.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", out], input=SOURCE, text=True, check=True)
    return out


@pytest.fixture
def manifest() -> Manifest:
    """A manifest with a value in every field."""
    host = TargetSpec("x86-64-v3", "llvm", features=("avx2", "fma"), cores=2, vector_bits=256)
    target = TargetSpec("cuda-sm90", "cuda", arch="sm_90", host=host)
    return Manifest(
        signature=Signature(
            (TensorSpec("x", "float32", ("batch", 3, "2*seq + 1")), TensorSpec("mask", "int64", ("batch",))),
            (TensorSpec("y", "bfloat16", ("batch", 4)),),
            (("seq", DimBounds(1, 64)), ("batch", DimBounds(1, None))),
            (("use_cache", False), ("alpha", 0.5)),
            (Condition("seq % 2 == 0", "node 'r' (Reshape)"),),
        ),
        target=target,
        requires=Requires.of(target, "0.27.0.post1"),
        digests={"model": "a" * 64, "options": "b" * 64, "tuning": "c" * 64},
        versions={"tvm": "0.27.0.post1", "relaxc": "0.1.0"},
        options={"precision": None, "opt_level": 2, "shapes": {"x": [1, "batch"]}},
        command="relaxc compile model.onnx -o model.so --target '{\"ä\": 1}'",
        schedule=({"name": "matmul", "rule": "fallback", "flops": 12, "parameters": {"tile": [8, 32]}},),
        passes={"fusions": {"conv+relu": 3}, "peak_bytes": 4096},
        verification={"passed": True, "outputs": [{"name": "y", "max_abs_error": 1e-6}]},
    )
