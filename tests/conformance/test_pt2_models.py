"""The zoo as `.pt2` at length: families that nobody listed, symbolic sizes, 16-bit floats, and full size."""

from __future__ import annotations

from typing import Any

import pytest

from relaxc.service.frontend.pt2 import frontend as exported_program
from tests import zoo
from tests.frontend.pt2.support import arrays_of, check

pytestmark = pytest.mark.slow

# Integers that are the argmax of 16-bit numbers: ties are broken by rounding.
_TIES = {"unet": ["classes"]}
# ceil_mode and padding at symbolic sizes, or families without a symbolic form in the zoo.
_STATIC = {name for name in zoo.OTHERS if name in ("t5", "densenet", "unet", "wav2vec2", "torch_transformer")}
# transformers looks for infinities in 16-bit activations by reading one from the data, which torch cannot export.
_NO_EXPORT = {("bart_encoder", "float16")}


def _inputs(name: str, dtype: str = "float32", seed: int = 0) -> list[Any]:
    model = zoo.build(name, dtype=dtype, seed=seed)
    return arrays_of(*model.args, **model.kwargs)


@pytest.mark.parametrize("name", zoo.names(others=True))
def test_others(name: str) -> None:
    check(zoo.export(name, "pt2"), _inputs(name))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [*zoo.names(), *zoo.names(others=True)])
def test_half_precision(name: str, dtype: str) -> None:
    if (name, dtype) in _NO_EXPORT:
        pytest.skip("torch.export refuses it")
    check(zoo.export(name, "pt2", dtype=dtype), _inputs(name, dtype), nodes=_TIES.get(name, ()))


@pytest.mark.parametrize("name", [name for name in [*zoo.names(), *zoo.names(others=True)] if name not in _STATIC])
def test_symbolic(name: str) -> None:
    """The export's own sizes, one row of it, and for text a shorter sequence."""
    arrays = _inputs(name)
    cases = [arrays, [array[:1] for array in arrays]]
    if len(arrays) == 2 and arrays[0].ndim == 2:
        cases.append([array[:, :5] for array in arrays])
    check(zoo.export(name, "pt2", dynamic=True), *cases)


@pytest.mark.parametrize("name", ["resnet50", "bert", "gpt2", "vit", "mobilenet_v2"])
def test_full_size_imports(name: str) -> None:
    """Import alone: the numbers of full-size models are compared through the whole compiler elsewhere."""
    model = exported_program.load(zoo.export(name, "pt2", size="full"), shapes={})
    assert model.signature.inputs and model.module["main"].params
