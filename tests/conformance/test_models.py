"""Every family of the zoo through the whole compiler, in both formats, dtypes and symbolic: `make conformance`."""

from __future__ import annotations

import pytest

import relaxc
from tests import zoo

pytestmark = pytest.mark.slow

VARIANTS = {"fp32": {}, "fp16": {"dtype": "float16"}, "bf16": {"dtype": "bfloat16"}, "symbolic": {"dynamic": True}}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize("family", zoo.names())
def test_a_listed_family_is_verified(family: str, format: str, variant: str) -> None:
    if variant == "symbolic" and zoo.build(family).dynamic is None:
        return
    made = relaxc.compile(zoo.export(family, format, **VARIANTS[variant]))
    assert made.manifest.verified is True, made.manifest.verification


@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize("family", zoo.names(others=True))
def test_a_family_that_nobody_listed_is_verified(family: str, format: str) -> None:
    made = relaxc.compile(zoo.export(family, format))
    assert made.manifest.verified is True, made.manifest.verification


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize("family", ["resnet50", "bert"])
def test_full_size(family: str, format: str) -> None:
    made = relaxc.compile(zoo.export(family, format, size="full"))
    assert made.manifest.verified is True, made.manifest.verification
