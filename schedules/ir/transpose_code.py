"""LLVM IR of a square transposed in registers, which LLVM lowers to the shuffles of any vector instruction set."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["transpose_code", "transpose_name"]


def transpose_name(lanes: int, bits: int, source_step: int, target_step: int) -> str:
    """Return the symbol of `transpose_code` with the same arguments."""
    return f"relaxc_transpose_{lanes}x{bits}_{source_step}_{target_step}"


def transpose_code(lanes: int, bits: int, source_step: int, target_step: int) -> str:
    """Return the code of `f(ptr x, ptr y)`: `y[i * target_step + j] = x[j * source_step + i]`, i and j below `lanes`.

    Elements are of `bits`, steps in elements. `lanes`, a power of two, vectors are read, exchanged in log2(lanes)
    rounds, and written: in the round of size s, the odd blocks of s lanes of vector i with the even ones of i + s
    (J. O. Eklundh, 'A fast computer method for matrix transposing', 1972).
    """
    kind = f"<{lanes} x i{bits}>"
    lines = []
    rows = [f"%x{i}" for i in range(lanes)]
    for i, row in enumerate(rows):
        lines.append(f"  %p{i} = getelementptr i{bits}, ptr %x, i64 {i * source_step}")
        lines.append(f"  {row} = load {kind}, ptr %p{i}, align {bits // 8}")
    size = lanes // 2
    while size:
        for i in (i for i in range(lanes) if not i & size):
            pair = rows[i], rows[i + size]
            for at, pick in ((i, _even(size, lanes)), (i + size, _odd(size, lanes))):
                rows[at] = f"%s{size}_{at}"
                mask = ", ".join(f"i32 {pick(lane)}" for lane in range(lanes))
                operands = f"{kind} {pair[0]}, {kind} {pair[1]}"
                lines.append(f"  {rows[at]} = shufflevector {operands}, <{lanes} x i32> <{mask}>")
        size //= 2
    for i, row in enumerate(rows):
        lines.append(f"  %q{i} = getelementptr i{bits}, ptr %y, i64 {i * target_step}")
        lines.append(f"  store {kind} {row}, ptr %q{i}, align {bits // 8}")
    name = transpose_name(lanes, bits, source_step, target_step)
    return "\n".join([f"define i32 @{name}(ptr %x, ptr noalias %y) {{", *lines, "  ret i32 0", "}", ""])


def _even(size: int, lanes: int) -> Callable[[int], int]:
    """From a lane to its source: the even blocks of `size` lanes of the first vector, then of the second."""
    return lambda lane: lane if not lane & size else lanes + lane - size


def _odd(size: int, lanes: int) -> Callable[[int], int]:
    return lambda lane: lane + size if not lane & size else lanes + lane
