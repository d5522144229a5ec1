"""A CUDA text as a PrimFunc: TVM makes the host side, the tensor maps and the launch around one device function."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, Size, Var

__all__ = ["TEXT_KERNEL", "ImageMap", "TensorMap", "TextKernel", "text_of"]

TEXT_KERNEL = "relaxc.text_kernel"
"""The attribute of a PrimFunc whose device part is CUDA text; it is lowered as TIRx, not as S-TIR."""


@lru_cache
def text_of(package: str, name: str) -> str:
    """Return the CUDA text of the file `name` beside the template's module."""
    return resources.files(package).joinpath(name).read_text()


@dataclass(frozen=True)
class TensorMap:
    """An operand of 16 or 8 bits as the copy engine sees it: in boxes of 128 bytes, swizzled, by rows.

    `dims` are innermost first, and `strides` those of all but the first, in elements; without them the operand is
    contiguous. What lies outside reads as zero.
    """

    buffer: Buffer
    dims: tuple[Size, ...]
    rows: int
    strides: tuple[int, ...] = ()

    def text(self, name: str, pointer: str, written: Callable[[Any], str] = str) -> str:
        """Return the call that encodes it, `written` for the text of one known at the call alone.

        See cuTensorMapEncodeTiled in the CUDA driver API.
        """
        rank = len(self.dims)
        strides = self.strides or tuple(tir.product(self.dims[:axis]) for axis in range(1, rank))
        size = dtype_bytes(str(self.buffer.dtype))
        box = (128 // size, self.rows, *(1,) * (rank - 2))
        # Steps of one, no interleaving, 128-byte swizzle, 256-byte L2 sectors, zeros outside.
        rest = (*self.dims, *(stride * size for stride in strides), *box, *(1,) * rank, 0, 3, 3, 0)
        numbers = ", ".join(map(written, rest))
        encode = f'T.call_packed("runtime.cuTensorMapEncodeTiled", {name}, "{_mapped(self.buffer)}", {rank}'
        return f"{encode}, {pointer}.data, {numbers})\n"


@dataclass(frozen=True)
class ImageMap:
    """An operand of 16 or 8 bits and four dims as the copy engine sees it: boxes of 128 bytes of the first dim.

    `dims` are innermost first, in elements; `strides` are those of the last three, in bytes: they may overlap. A box
    has `box` elements of the last three dims, `steps` apart. What lies outside reads as zero.
    """

    buffer: Buffer
    dims: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    box: tuple[int, int, int]
    steps: tuple[int, int, int] = (1, 1, 1)

    def text(self, name: str, pointer: str, written: Callable[[Any], str] = str) -> str:
        """Return the call that encodes it; a box is given as what it spans."""
        spans = [
            128 // dtype_bytes(str(self.buffer.dtype)),
            *(count * step for count, step in zip(self.box, self.steps, strict=True)),
        ]
        numbers = ", ".join(map(str, [*self.dims, *self.strides, *spans, 1, *self.steps]))
        dtype = _mapped(self.buffer)
        return (
            f'T.call_packed("runtime.cuTensorMapEncodeTiled", {name}, "{dtype}", 4, {pointer}.data, {numbers}, '
            "0, 3, 3, 0)\n"
        )


def _mapped(buffer: Buffer) -> str:
    """The dtype that a map is encoded with: bytes are bytes to the copy engine."""
    return "uint8" if dtype_bytes(str(buffer.dtype)) == 1 else str(buffer.dtype)


@dataclass(frozen=True)
class TextKernel:
    """One launch: `source` is CUDA text with a device function called as `{name}(shared memory, maps…, pointers…)`.

    `source` has NAME where the function's name goes, so that equal texts give equal names and others do not meet.
    """

    source: str
    maps: Sequence[TensorMap | ImageMap]
    pointers: Sequence[Buffer]
    grid: int | Expr
    cluster: int
    threads: int
    shared_bytes: int
    per_sm: int = 0
    """CTAs that shall be on an SM at a time: what bounds the registers of a thread.

    0: the compiler decides. It gives small CTAs so few registers that they load and compute one value after the other.
    """
    sizes: Sequence[Expr] = ()
    """What the device function gets behind the pointers, as int64: expressions of symbols, as the grid may be."""
    overlaps: bool = True
    """Whether it may begin before the kernel before it has ended: a device since sm_90, and a text that waits."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what two launches share that do the same."""
        maps = tuple(each.text("map", "data") for each in self.maps)
        return (
            self.source,
            maps,
            str(self.grid),
            str(self.sizes),
            self.cluster,
            self.threads,
            self.shared_bytes,
            self.per_sm,
        )

    def prim_func(self, func: PrimFunc) -> PrimFunc:
        """Return the PrimFunc that launches it, with the parameters of `func`."""
        import tvm
        from tvm.script import tirx as script

        name = f"relaxc_{hashlib.sha256(self.source.encode()).hexdigest()[:16]}"
        namespace = {"T": script, "SOURCE": self.source.replace("NAME", name)}
        built = tvm.script.from_source(self._script(func, name), namespace)
        built = built.with_attr("tirx.launch_bounds_min_blocks_per_sm", 1).with_attr("tirx.noalias", True)
        built = built.with_attr("tirx.kernel_launch_params", self._launch_tags()).with_attr(TEXT_KERNEL, True)
        symbol = func.attrs.get("global_symbol") if func.attrs is not None else None
        # What comes from source is public; a PrimFunc inside of a model is private.
        return built.with_attr("global_symbol", symbol) if symbol else built.without_attr("global_symbol")

    def _symbols(self, buffers: Sequence[Buffer]) -> list[Var]:
        return list(dict.fromkeys(var for buffer in buffers for dim in buffer.shape for var in tir.variables(dim)))

    def _launch_tags(self) -> list[str]:
        cluster = ["clusterCtaIdx.x"] if self.cluster > 1 else []
        early = ["tirx.use_programtic_dependent_launch"] if self.overlaps else []  # spelled so in TVM
        return ["blockIdx.x", *cluster, "threadIdx.x", *early, "tirx.use_dyn_shared_memory"]

    def _script(self, func: PrimFunc, name: str) -> str:
        buffers = {index: param for index, param in enumerate(func.params) if tirx.is_buffer_var(param)}
        names = {buffer: f"b{index}" for index, buffer in buffers.items()}
        given = {param: tirx.Var(f"p{i}", param.ty.dtype) for i, param in enumerate(func.params) if i not in buffers}
        parameters = ", ".join(
            f"p{index}: T.handle" if index in buffers else f"p{index}: T.{param.ty.dtype}"
            for index, param in enumerate(func.params)
        )
        symbols = [var for var in self._symbols(list(buffers.values())) if var not in given]
        sizes = {var: tirx.Var(f"size{index}", var.ty.dtype) for index, var in enumerate(symbols)}
        known = {**given, **sizes}

        def text(size: Expr | int) -> str:
            return str(size) if isinstance(size, int) else str(tir.substitute(size, known))

        lines = [f"@T.prim_func\ndef main({parameters}):\n"]
        lines += [f"    {var.name} = T.{var.ty.dtype}()\n" for var in sizes.values()]
        for index, buffer in buffers.items():
            shape = ", ".join(text(dim if (size := tir.as_int(dim)) is None else size) for dim in buffer.shape) + (
                "," if buffer.shape else ""
            )
            lines.append(f'    b{index} = T.match_buffer(p{index}, ({shape}), "{buffer.dtype}", align=16)\n')
        for index in range(len(self.maps)):
            lines.append(f'    m{index}: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)\n')
        lines += [f"    {each.text(f'm{i}', names[each.buffer], text)}" for i, each in enumerate(self.maps)]
        lines.append("    T.device_entry()\n")
        if self.per_sm > 0:
            lines.append(f'    T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", {self.per_sm})\n')
        if self.cluster > 1:  # a cluster of one as a launch attribute costs more than a microsecond
            lines.append(f"    rank = T.cta_id_in_cluster([{self.cluster}])\n")
        grid = self.grid if isinstance(self.grid, int) else f'T.Cast("int32", {text(self.grid)})'
        lines.append(f"    block = T.cta_id([{grid}])\n    thread = T.thread_id([{self.threads}])\n")
        lines.append(f'    shared = T.alloc_buffer([{self.shared_bytes}], "uint8", scope="shared.dyn", align=1024)\n')
        arguments = ["shared.data", *(f"T.address_of(m{i})" for i in range(len(self.maps)))]
        arguments += [f"{names[buffer]}.data" for buffer in self.pointers]
        arguments += [f'T.Cast("int64", {text(size)})' for size in self.sizes]
        lines.append(f'    T.evaluate(T.cuda.func_call("{name}", {", ".join(arguments)}, source_code=SOURCE))\n')
        return "".join(lines)
