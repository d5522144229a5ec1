"""A signature checks itself, and its JSON loses nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relaxc.service.errors import InvalidOption, InvalidShape
from relaxc.service.request import canonical_json
from relaxc.service.signature import Condition, DimBounds, Signature, TensorSpec


def test_a_signature_survives_json() -> None:
    signature = Signature(
        inputs=(
            TensorSpec("x", "float32", ("batch", 3)),
            TensorSpec("n", "int64", ()),
            TensorSpec("c", "uint8", (), "int4"),
        ),
        outputs=(TensorSpec("y.0", "bfloat16", ("2*batch + 1",)),),
        dims=(("batch", DimBounds(1, None)),),
        constants=(("use_cache", False), ("scale", 0.5)),  # their order means nothing
        conditions=(Condition("batch % 2 == 0", "node 'r' (Reshape)"),),
    )
    assert Signature.from_dict(json.loads(canonical_json(signature.to_dict()))) == signature
    assert str(signature.inputs[0]) == "x: float32[batch, 3]"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: TensorSpec("", "float32", ()), InvalidOption),
        (lambda: TensorSpec("x", "float31", ()), InvalidOption),
        (lambda: TensorSpec("x", "uint8", (), "int3"), InvalidOption),
        (lambda: TensorSpec("x", "int8", (), "int4"), InvalidOption),
        (lambda: TensorSpec("x", "float32", (-1,)), InvalidShape),
        (lambda: DimBounds(5, 4), InvalidShape),
        (lambda: DimBounds(-1), InvalidShape),
        (lambda: Signature((TensorSpec("x", "int8", ()),) * 2, ()), InvalidOption),
    ],
)
def test_wrong_values_are_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        wrong()


def test_bounds_hold_both_ends() -> None:
    bounds = DimBounds(2, 4)
    assert [size in bounds for size in (1, 2, 4, 5)] == [False, True, True, False]
    assert 10**9 in DimBounds()
