"""A block keeps what it is to its template through other names, and no other block is taken for it."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, te

from relaxc.schedules.ir.blocks import block_names, block_realizes
from relaxc.schedules.ir.extremes import is_shift
from relaxc.schedules.ir.roles import SHIFT, called_by_roles, with_roles


def steps(*names: str, shift: bool = False) -> Any:
    """A PrimFunc of one block a name."""
    first = last = te.placeholder((4,), "float32", "x")
    for name in names:
        last = _twice(last, name, SHIFT if shift else {})
    return te.create_prim_func([first, last])


def _twice(x: Any, name: str, attrs: Any) -> Any:
    return te.compute((4,), lambda i: x[i] * 2.0, name, attrs=attrs)


def renamed(func: Any, names: dict[str, str]) -> Any:
    def rename(block: Any) -> Any:
        name = names.get(block.name_hint, block.name_hint)
        return s_tir.SBlock(
            block.iter_vars, block.reads, block.writes, name, block.body, init=block.init,
            alloc_buffers=block.alloc_buffers, match_buffers=block.match_buffers, annotations=block.annotations,
        )  # fmt: skip

    return tvm_ffi.structural_map(func, (s_tir.SBlock, rename))


def test_blocks_are_called_by_their_roles_again() -> None:
    func = steps("pad", "conv2d", "crop")
    other = renamed(with_roles(func), {"pad": "a", "conv2d": "pad", "crop": "b"})
    found = called_by_roles(other)
    assert [str(each.block.name_hint) for each in block_realizes(found)] == ["pad", "conv2d", "crop"]
    assert tvm_ffi.structural_equal(found, func) and not any(e.block.annotations for e in block_realizes(found))


def test_without_roles_it_stays_as_it_is() -> None:
    func = steps("pad", "out")
    assert called_by_roles(func) is func and block_names(func) == {"pad", "out"}


def test_a_buffer_is_a_shift_by_its_blocks_annotation_and_not_by_its_name() -> None:
    (by_annotation,) = [each.block.body.buffer for each in block_realizes(called_by_roles(steps("m", shift=True)))]
    (by_name,) = [each.block.body.buffer for each in block_realizes(called_by_roles(steps("softmax_maxelem")))]
    assert is_shift(by_annotation) and not is_shift(by_name)
