"""Matrix products: MatMul, Gemm, Einsum and the integer ones. Products of fp16 and bf16 are summed in fp32."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import (
    aligned,
    cast,
    full_precision,
    is_integer,
    is_low_precision,
    permuted,
    require_shape,
    reshaped,
    scalar,
)
from relaxc.service.frontend.onnx.ops.registry import op

__all__ = ["matmul"]


def matmul(node: Node, left: Any, right: Any) -> Any:
    """Return `C[…, i, j] = Σ_k A[…, i, k] · B[…, k, j]`, the sum of low-precision floats in fp32."""
    left, right = _joined(node, left, right)
    dtype = dtype_of(left)
    if not is_low_precision(dtype):
        return node.emit(relax.op.matmul(left, right))
    return node.emit(cast(node.emit(relax.op.matmul(left, right, "float32")), dtype))


def _joined(node: Node, left: Any, right: Any) -> tuple[Any, Any]:
    """Both operands, with K and the batch axes of the right one made equal to the left's where they are symbolic."""
    a, b = node.shape_of(left), node.shape_of(right)
    if not a or not b:
        raise ModelMalformed(f"node {node.name!r} ({node.op}) multiplies a scalar", node=node.name)
    wanted = list(b)
    wanted[-2 if len(b) > 1 else -1] = a[-1] if isinstance(a[-1], int) else b[-2 if len(b) > 1 else -1]
    inner = wanted[-2 if len(b) > 1 else -1]
    for back in range(3, min(len(a), len(b)) + 1):
        if not _is_one(a[-back]) and not _is_one(b[-back]):
            wanted[-back] = a[-back]
    left = require_shape(node, left, a, [*a[:-1], inner])
    return left, require_shape(node, right, b, wanted)


def _is_one(dim: Any) -> bool:
    return isinstance(dim, int) and dim == 1


@op("MatMul")
def _matmul(node: Node) -> Any:
    if is_integer(node.dtype(0)) and node.dtype(0) not in ("int32", "int64", "uint32", "uint64"):
        raise Refused(f"a product of {node.dtype(0)}")
    return matmul(node, node.tensor(0), node.tensor(1))


@op("Gemm")
def _gemm(node: Node) -> Any:
    """`alpha · A' · B' + beta · C`. A transposed constant weight is folded by a pass."""
    left, right = node.tensor(0), node.tensor(1)
    if node.attr("transA", 0):
        left = permuted(node, left, [1, 0])
    if node.attr("transB", 0):
        right = permuted(node, right, [1, 0])
    result = _scaled(node, matmul(node, left, right), node.attr("alpha", 1.0))
    if node.has(2):
        addend = _scaled(node, node.tensor(2), node.attr("beta", 1.0))
        result = relax.op.add(*aligned(node, result, addend))
    return result


def _scaled(node: Node, x: Any, factor: float) -> Any:
    if factor == 1.0:
        return x
    dtype = dtype_of(x)
    if not is_integer(dtype):
        return node.emit(relax.op.multiply(x, scalar(factor, x)))
    if not float(factor).is_integer():
        raise Refused(f"a factor of {factor} for integers")
    return node.emit(relax.op.multiply(x, relax.const(int(factor), dtype)))


@op("MatMulInteger")
def _matmul_integer(node: Node) -> Any:
    """`(A - a_zero) · (B - b_zero)` in int32; a's zero point is for rows, b's for columns."""
    left = _without_zero_point(node, 0, 2, row=True)
    right = _without_zero_point(node, 1, 3, row=False)
    return relax.op.matmul(*_joined(node, left, right))


def _without_zero_point(node: Node, index: int, zero: int, *, row: bool) -> Any:
    x = node.emit(cast(node.tensor(index), "int32"))
    if not node.has(zero):
        return x
    point = node.emit(cast(node.tensor(zero), "int32"))
    if row and node.rank(zero) == 1 and node.shape(zero) != [1]:
        point = reshaped(node, point, [*node.shape(zero), 1])
    return node.emit(relax.op.subtract(*aligned(node, x, point)))


@op("Einsum")
def _einsum(node: Node) -> Any:
    """Two operands at a time as one batched product: labels in both and in the result are batch axes."""
    terms, result = _parse_einsum(node)
    operands = [(node.tensor(index), term) for index, term in enumerate(terms)]
    operands = [_diagonal_free(node, x, term) for x, term in operands]
    while len(operands) > 1:
        (a, left), (b, right), rest = operands[0], operands[1], operands[2:]
        needed = set(result) | {label for _, term in rest for label in term}
        operands = [_contract(node, a, left, b, right, needed), *rest]
    x, term = operands[0]
    gone = [axis for axis, label in enumerate(term) if label not in result]
    if gone:
        x = node.emit(relax.op.sum(x, gone))
        term = [label for label in term if label in result]
    return permuted(node, x, [term.index(label) for label in result])


def _parse_einsum(node: Node) -> tuple[list[list[str]], list[str]]:
    equation = node.attr("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(node.inputs):
        raise ModelMalformed(f"the equation {equation!r} has {len(terms)} terms for {len(node.inputs)} inputs")
    dots = max((node.rank(i) - len(t.replace("...", "")) for i, t in enumerate(terms) if "..." in t), default=0)

    def labels(term: str, count: int) -> list[str]:
        head, found, tail = term.partition("...")
        middle = [f"…{number}" for number in range(dots - count, dots)] if found else []
        return [*head, *middle, *tail]

    parsed = [labels(t, node.rank(i) - len(t.replace("...", ""))) for i, t in enumerate(terms)]
    if any(len(term) != node.rank(i) for i, term in enumerate(parsed)):
        raise ModelMalformed(f"the equation {equation!r} does not fit the ranks of its inputs")
    if arrow:
        return parsed, labels(right, dots)
    flat = [label for term in parsed for label in term]
    return parsed, [f"…{n}" for n in range(dots)] + sorted({x for x in flat if flat.count(x) == 1 and len(x) == 1})


def _diagonal_free(node: Node, x: Any, term: list[str]) -> tuple[Any, list[str]]:
    """A label that a term repeats takes the diagonal."""
    from tvm import te

    if len(set(term)) == len(term):
        return x, term
    labels = list(dict.fromkeys(term))
    shape = node.shape_of(x)
    sizes = [shape[term.index(label)] for label in labels]
    for label, size in zip(term, shape, strict=True):
        node.require(size, "==", sizes[labels.index(label)], "takes the diagonal of axes of sizes {left} and {right}")

    def kernel(data: te.Tensor) -> te.Tensor:
        own = [data.shape[term.index(label)] for label in labels]
        return te.compute(own, lambda *i: data(*(i[labels.index(label)] for label in term)), name="diagonal")

    assert len(sizes) == len(labels)
    return node.te(kernel, x), labels


def _contract(node: Node, a: Any, left: list[str], b: Any, right: list[str], needed: set[str]) -> tuple[Any, list[str]]:
    a, left = _sum_away(node, a, left, needed | set(right))
    b, right = _sum_away(node, b, right, needed | set(left))
    batch = [label for label in left if label in right and label in needed]
    inner = [label for label in left if label in right and label not in needed]
    rows = [label for label in left if label not in right]
    columns = [label for label in right if label not in left]
    size = dict(zip(left, node.shape_of(a), strict=True)) | {
        label: dim for label, dim in zip(right, node.shape_of(b), strict=True) if not (label in left and _is_one(dim))
    }
    a = _grouped(node, a, left, (batch, rows, inner), size)
    b = _grouped(node, b, right, (batch, inner, columns), size)
    product = matmul(node, a, b)
    return reshaped(node, product, [size[label] for label in (*batch, *rows, *columns)]), [*batch, *rows, *columns]


def _sum_away(node: Node, x: Any, term: list[str], needed: set[str]) -> tuple[Any, list[str]]:
    gone = [axis for axis, label in enumerate(term) if label not in needed]
    if not gone:
        return x, term
    return node.emit(relax.op.sum(x, gone)), [label for label in term if label in needed]


def _grouped(node: Node, x: Any, term: list[str], groups: tuple[list[str], ...], size: dict[str, Any]) -> Any:
    """The axes in the order of the groups, each group as one axis; a size of 1 that the other widens is spread."""
    order = [label for group in groups for label in group]
    shape = node.shape_of(x)
    wide = [size[label] for label in term]
    if not all(onnx_dims.same(have, want, node.scope) for have, want in zip(shape, wide, strict=True)):
        if all(_is_one(h) or onnx_dims.same(h, w, node.scope) for h, w in zip(shape, wide, strict=True)):
            x = node.emit(relax.op.broadcast_to(x, relax.ShapeExpr(wide)))
        else:
            x = require_shape(node, x, shape, wide)
    x = permuted(node, x, [term.index(label) for label in order])
    return reshaped(node, x, [onnx_dims.product(size[label] for label in group) for group in groups])


@op("Det")
def _det(node: Node) -> Any:
    """The determinant, by elimination with the largest of each column."""
    *_, rows, size = node.shape(0)
    if not isinstance(size, int) or rows != size or not 0 < size <= _LARGEST:
        raise Refused(f"a matrix of {rows} rows and {size} columns")
    batch = node.shape(0)[:-2]

    def run(x: Any) -> Any:
        left, result = reshaped(node, x, [onnx_dims.product(batch), size, size]), None
        for _ in range(size - 1):
            both = node.te(_eliminated, left, primfunc_name_hint="eliminated")
            left, pivot = (node.emit(relax.TupleGetItem(both, at)) for at in (0, 1))
            result = pivot if result is None else node.emit(relax.op.multiply(result, pivot))
        last = reshaped(node, left, batch)
        return last if result is None else relax.op.multiply(reshaped(node, result, batch), last)

    return full_precision(node, run, node.tensor(0))


_LARGEST = 32


def _eliminated(x: te.Tensor) -> list[te.Tensor]:
    """A matrix without its first column and the row that has its largest number, and that number with its sign."""
    batch, size, _ = x.shape
    row = te.reduce_axis((0, size), name="row")

    def larger(a: Any, b: Any) -> Any:
        first = tirx.Or(a[1] > b[1], tirx.And(a[1] == b[1], a[0] <= b[0]))
        return tirx.Select(first, a[0], b[0]), tirx.Select(first, a[1], b[1])

    largest = te.comm_reducer(larger, lambda i, v: (tirx.const(1 << 62, i), tirx.const(-1, v)), name="largest")
    at = te.compute((batch,), lambda n: largest((row.var, tirx.abs(x(n, row, 0))), axis=row), name="at")[0]
    sign = tirx.const(1, x.dtype)
    pivot = te.compute(
        (batch,), lambda n: tirx.Select(at(n) == 0, sign, -sign) * x(n, tirx.min(at(n), size - 1), 0), name="pivot"
    )

    def element(n: Any, i: Any, j: Any) -> Any:
        first = tirx.min(at(n), size - 1)
        own = tirx.Select(i + 1 == first, tirx.const(0, "int64"), i + 1)
        top = x(n, first, 0)
        factor = x(n, own, 0) / tirx.Select(top == 0, sign, top)
        return x(n, own, j + 1) - factor * x(n, first, j + 1)

    return [te.compute((batch, size - 1, size - 1), element, name="rest"), pivot]
