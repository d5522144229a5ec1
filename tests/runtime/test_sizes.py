"""Sizes to try: small, different, and such that every condition holds and no output is empty."""

from __future__ import annotations

import pytest

from relaxc.service.errors import InvalidShape
from relaxc.service.runtime.dims import holds
from relaxc.service.runtime.sizes import choose_sizes
from relaxc.service.signature import Condition, DimBounds, Signature, TensorSpec


def signature(*conditions: str, gives: str = "n", **bounds: DimBounds) -> Signature:
    given = bounds or {"n": DimBounds(), "m": DimBounds()}
    x, y = TensorSpec("x", "float32", tuple(given)), TensorSpec("y", "float32", (gives,))
    return Signature((x,), (y,), tuple(given.items()), (), tuple(Condition(text, "") for text in conditions))


@pytest.mark.parametrize(
    "conditions",
    [
        ["n % 4 == 0"],
        ["n >= 100"],
        ["n - m >= 0"],
        ["n % 384 == 0"],
        ["n % 3 == 0", "m - n * 2 >= 0", "m % 2 == 0"],
        ["n % 18 == 0", "n % 8 == 0"],
        ["n % 12 == 0", "n % 18 == 0", "n % 8 == 0"],
        ["n % 1000 == 0", "n % 999 == 0"],
        ["(n - 3) // 8 - 20 >= 0"],
        ["(n + 3) // 8 >= 20"],
        ["(n - 3) // 8 == 2000"],
        ["2 * n // 3 == 1000"],
        ["n // 32 * (m // 32) >= 50"],
        ["n * m % 1001 == 0", "n - m >= 200"],
    ],
    ids=str,
)
def test_every_condition_holds(conditions: list[str]) -> None:
    taken = signature(*conditions)
    found = choose_sizes(taken)
    assert found
    for sizes in found:
        assert all(holds(condition, sizes) for condition in taken.conditions)


def test_names_of_no_condition_keep_their_sizes() -> None:
    names = {name: DimBounds() for name in "abcdefgz"}
    for sizes in choose_sizes(signature("a - z - 20 >= 0", gives="a", **names)):
        assert sizes["a"] - sizes["z"] >= 20
        assert {sizes[name] for name in "bcdefg"} <= {1, 2, 3, 7}


def test_many_names_of_one_condition() -> None:
    names = {name: DimBounds() for name in "abcd"}
    assert choose_sizes(signature("a // 32 * (b // 32) * (c // 32) * (d // 32) >= 50", gives="a", **names))


def test_sizes_stay_small_where_small_ones_do() -> None:
    assert choose_sizes(signature("n % 18 == 0", "n % 8 == 0"))[0]["n"] == 72
    assert choose_sizes(signature("(n - 3) // 8 - 20 >= 0"))[0]["n"] == 163


def test_without_conditions_they_are_as_wanted() -> None:
    assert choose_sizes(signature()) == [{"m": 2, "n": 3}, {"m": 3, "n": 7}, {"m": 7, "n": 1}]


def test_no_output_is_empty_where_that_can_be() -> None:
    assert all(sizes["n"] > 2 for sizes in choose_sizes(signature(gives="min(n, 5) - min(n, 2)")))
    assert choose_sizes(signature(gives="n - n"))


def test_what_never_holds_is_refused_by_name() -> None:
    with pytest.raises(InvalidShape, match="n % 7 == 1"):
        choose_sizes(signature("n % 7 == 1", n=DimBounds(2, 7)))
    with pytest.raises(InvalidShape, match="0 == 1"):
        choose_sizes(signature("0 == 1"))
