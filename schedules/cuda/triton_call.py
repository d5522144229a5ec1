"""A call of a Triton kernel as a PrimFunc: all that compiling and launching it needs is in an attribute."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from relaxc.schedules.ir.types import PrimFunc

__all__ = ["CONFIGURATION", "TRITON", "Argument", "Launch", "TritonCall", "call_of"]

TRITON = "relaxc.triton"
"""The attribute of a PrimFunc that a Triton kernel computes: a TritonCall as JSON."""

CONFIGURATION = "relaxc.triton_configuration"
"""The attribute that a schedule adds: the number of the launch that was chosen."""

Constexpr = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Argument:
    """What a parameter of the kernel gets: the tensor at `tensor` among the PrimFunc's, or the number `value`."""

    tensor: int | None = None
    value: int | float | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to compile and launch the kernel: `options` are Triton's, `num_warps` among them."""

    grid: tuple[int, int, int]
    constexprs: Mapping[str, Constexpr] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TritonCall:
    """A kernel, its arguments, and the launches to choose from, the first of them untuned.

    The kernel comes as its file's text, so that a PrimFunc, and with it a workload's digest, depends on what the text
    says and not on where it lies; a tuning task carries it to another machine. `triton` is the version that compiles.
    """

    plugin: str
    file: str
    function: str
    source: str
    triton: str
    arguments: tuple[Argument, ...]
    launches: tuple[Launch, ...]

    @property
    def name(self) -> str:
        """Return what reports and errors call the kernel: `PLUGIN.FUNCTION`."""
        return f"{self.plugin}.{self.function}"

    def to_json(self) -> str:
        """Return it as text; equal calls give equal text."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> TritonCall:
        """Return what `to_json` wrote."""
        data = json.loads(text)
        arguments = tuple(Argument(**each) for each in data.pop("arguments"))
        launches = tuple(Launch(**{**each, "grid": tuple(each["grid"])}) for each in data.pop("launches"))
        return TritonCall(**data, arguments=arguments, launches=launches)

    def prim_func(self, types: Sequence[tuple[Sequence[int], str]]) -> PrimFunc:
        """Return the PrimFunc over tensors of these shapes and dtypes, the last of them its result.

        Its body calls a function that is nowhere: whoever would take it for a computation fails to link.
        """
        import tvm
        from tvm.script import tirx

        shape, dtype = types[-1]
        numbered = list(enumerate(types))
        result, axes = f"b{len(types) - 1}", [f"i{axis}" for axis in range(len(shape))]
        place = ", ".join(f"v{axis}" for axis in axes)
        reads = ", ".join(f"b{index}[{_all(each)}]" for index, (each, _) in numbered[:-1])
        lines = [
            "@T.prim_func(private=True, s_tir=True)",
            f"def main({', '.join(f'p{index}: T.handle' for index, _ in numbered)}):",
            *(f"    b{at} = T.match_buffer(p{at}, ({_listed(sizes)},), '{kind}')" for at, (sizes, kind) in numbered),
            f"    for {', '.join(axes)} in T.grid({_listed(shape)}):",
            "        with T.sblock('triton'):",
            *(
                f"            v{name} = T.axis.spatial(T.int64({size}), {name})"
                for name, size in zip(axes, shape, strict=True)
            ),
            f"            T.reads({reads})",
            f"            T.writes({result}[{place}])",
            f"            {result}[{place}] = T.call_extern('{dtype}', 'relaxc_triton')",
        ]
        func = tvm.script.from_source("\n".join(lines), {"T": tirx})
        return func.with_attr("tirx.noalias", True).with_attr(TRITON, self.to_json())


def _all(sizes: Sequence[int]) -> str:
    return ", ".join(f"0:T.int64({size})" for size in sizes)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(f"T.int64({size})" for size in sizes)


def call_of(func: PrimFunc) -> TritonCall | None:
    """Return the call that a PrimFunc stands for, or None."""
    text: Any = func.attrs.get(TRITON) if func.attrs is not None else None
    return None if text is None else TritonCall.from_json(str(text))
