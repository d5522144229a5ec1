"""The CUDA text of a kernel that reduces one operand: constants, types, what is fused, the algorithm, an entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from relaxc.schedules.cuda.common.expression import C_TYPES
from relaxc.schedules.cuda.common.kernel import text_of
from relaxc.schedules.ir.types import Buffer, Expr

__all__ = ["source"]


class _Reduced(Protocol):
    """What `Rows` and `Groups` have."""

    @property
    def x(self) -> Buffer: ...
    @property
    def out(self) -> Buffer: ...
    @property
    def text(self) -> str: ...
    @property
    def operands(self) -> Sequence[Buffer]: ...
    @property
    def sizes(self) -> Sequence[Expr]: ...


def source(form: _Reduced, numbers: Mapping[str, int], name: str, *more: str) -> str:
    """Return the text around `<name>.cuh`, and `more`, of the package `relaxc.schedules.cuda.<name>`.

    They define the function `name`.
    """
    algorithm = "".join(text_of(f"relaxc.schedules.cuda.{name}", f"{each}.cuh") for each in (name, *more))
    operands = [f"p{i}" for i in range(len(form.operands))]
    parameters = ["void* shared", "const void* x", "void* out", *(f"const void* {each}" for each in operands)]
    sizes = [f"s{i}" for i in range(len(form.sizes))]
    parameters, operands = [*parameters, *(f"long long {each}" for each in sizes)], [*operands, *sizes]
    constants = "".join(f"constexpr int {each} = {value};\n" for each, value in numbers.items())
    types = f"typedef {C_TYPES[str(form.x.dtype)]} In;\ntypedef {C_TYPES[str(form.out.dtype)]} Out;\n"
    call = f"(float*)shared, (const NAME_::In*)x, (NAME_::Out*)out, NAME_::Operands{{{', '.join(operands)}}}"
    common = "".join(text_of("relaxc.schedules.cuda.common", each) for each in ("hopper.cuh", "vectors.cuh"))
    return (
        f"{common}namespace NAME_ {{\n{constants}{types}"
        f"using namespace hopper;\n{form.text}{algorithm}}}\n"
        f"__device__ __forceinline__ void NAME({', '.join(parameters)}) {{\n"
        f"  NAME_::{name}({call});\n}}\n"
    )
