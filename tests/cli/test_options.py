"""--shape: names and dims, and what is refused."""

from __future__ import annotations

import pytest

from relaxc.service.cli.options import parse_shapes
from relaxc.service.errors import InvalidOption, InvalidShape, RelaxcError


def test_shapes_are_read_by_input_name() -> None:
    given = ["x=1,3,224,224", "mask=batch, seq", "scalar=", "a=b=2", "vector=7"]
    assert parse_shapes(given) == {
        "x": [1, 3, 224, 224],
        "mask": ["batch", "seq"],
        "scalar": [],
        "a=b": [2],
        "vector": [7],
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1,3,224,224", InvalidOption),
        ("=1,3", InvalidOption),
        ("x=1,,3", InvalidShape),
        ("x=-1,3", InvalidShape),
        ("x=1.5", InvalidShape),
        ("x=1 2", InvalidShape),
        ("x=" + "9" * 30, InvalidShape),
        ("x=2*batch", InvalidShape),
    ],
)
def test_a_malformed_shape_is_refused(text: str, error: type[RelaxcError]) -> None:
    with pytest.raises(error):
        parse_shapes([text])


def test_an_input_named_twice_is_refused() -> None:
    with pytest.raises(InvalidShape, match="twice"):
        parse_shapes(["x=1", "x=2"])
