"""What is found of a sum of products: its operands' types, and the type of the sum."""

from __future__ import annotations

import pytest
from tvm import te

from relaxc.schedules.ir.contraction import Contraction, find
from relaxc.schedules.template import Declined


def product(left: str, right: str, summed: str):
    """`C[i, j] += summed(A[i, k]) * summed(B[k, j])`"""
    a, b = te.placeholder((5, 7), left, "a"), te.placeholder((7, 9), right, "b")
    k = te.reduce_axis((0, 7), "k")
    result = te.compute((5, 9), lambda i, j: te.sum(a[i, k].astype(summed) * b[k, j].astype(summed), axis=k))
    return te.create_prim_func([a, b, result])


@pytest.mark.parametrize(
    ("left", "right", "stored", "summed"),
    [
        ("float32", "float32", "float32", "float32"),
        ("float64", "float64", "float64", "float64"),
        ("float16", "float16", "float16", "float32"),
        ("bfloat16", "bfloat16", "float32", "float32"),
        ("float16", "float32", "float32", "float32"),
        ("int8", "int8", "int32", "int32"),
        ("uint8", "int8", "int32", "int32"),
    ],
)
def test_types_of_the_operands_and_of_the_sum(left: str, right: str, stored: str, summed: str) -> None:
    found = find(product(left, right, stored))
    assert isinstance(found, Contraction)
    assert found.operands == (left, right)
    assert found.dtype == summed
    assert str(found.left.ty.dtype) == str(found.right.ty.dtype) == summed


def test_the_operands_are_of_the_roles_and_not_of_the_order() -> None:
    a, b = te.placeholder((7, 9), "int8", "a"), te.placeholder((5, 7), "uint8", "b")
    k = te.reduce_axis((0, 7), "k")
    result = te.compute((5, 9), lambda i, j: te.sum(a[k, j].astype("int32") * b[i, k].astype("int32"), axis=k))
    found = find(te.create_prim_func([a, b, result]))
    assert isinstance(found, Contraction)
    assert found.operands == ("uint8", "int8")


def test_a_product_that_may_wrap_before_it_is_summed_is_none() -> None:
    a, b = te.placeholder((5, 7), "int8", "a"), te.placeholder((7, 9), "int8", "b")
    k = te.reduce_axis((0, 7), "k")
    result = te.compute((5, 9), lambda i, j: te.sum((a[i, k] * b[k, j]).astype("int32"), axis=k))
    assert isinstance(find(te.create_prim_func([a, b, result])), Declined)
