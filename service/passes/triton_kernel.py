"""`TritonKernel`: what a plugin says of a Triton kernel of its own, and the call of it on tensors of known shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from relaxc.schedules.cuda.triton_call import Argument, Constexpr, Launch, TritonCall
from relaxc.service.errors import ToolMissing
from relaxc.service.input_files import KERNEL_NAME, kernel_files
from relaxc.service.machine import version_of

__all__ = ["TritonKernel", "TritonTensor", "reason_against", "triton_call"]

_DTYPES = ("float16", "bfloat16", "float32", "int32", "int64")
_OPTIONS = ("num_warps", "num_stages")
_SPECIFIC_SINCE = 90
"""From this compute capability on Triton compiles for one device, with the instructions that no later one has."""
_MOST_PROGRAMS = (2**31 - 1, 65535, 65535)
"""Of a grid, along each axis; CUDA Programming Guide, table of compute capabilities."""


@dataclass(frozen=True, eq=False)
class TritonTensor:
    """An argument as the functions of a TritonKernel see it: its shape and dtype, never its values."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """The number of its elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class TritonKernel:
    """An operator of a plugin that a Triton kernel computes on CUDA, where all sizes are known.

    `kernel` is `FILE.py:FUNCTION`, a `@triton.jit` function in a file beside the plugin. In `arguments`, `grid` and
    `constexprs` the tensors are the operator's and then its result, as TritonTensors. `arguments(*tensors)` gives what
    the parameters get that are no constexprs, in their order: tensors and numbers. `grid(constants, *tensors)` gives
    one to three numbers of programs; `constants` are the constexprs, `num_warps` and `num_stages` of a configuration.
    `constexprs` is a dict, or a function of the tensors that gives one, of numbers, text, bools and None; it may have
    `num_warps` and `num_stages`, too. `configurations` are what tuning may choose from, each a dict that goes over
    these; untuned the first is taken.
    """

    kernel: str
    arguments: Callable[..., Sequence[TritonTensor | int | float]]
    grid: Callable[..., int | Sequence[int]]
    constexprs: Mapping[str, Constexpr] | Callable[..., Mapping[str, Constexpr]] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    configurations: Sequence[Mapping[str, Constexpr]] = ()

    def file_of(self, plugin: Path) -> Path:
        """Return the kernel's file. Raise ValueError where a plugin at `plugin` cannot have it."""
        named = KERNEL_NAME.fullmatch(self.kernel)
        if named is None:
            raise ValueError(f"its kernel is named FILE.py:FUNCTION, not {self.kernel!r:.80}")
        path = (plugin.parent / named[1]).resolve()
        if path not in kernel_files(plugin):
            raise ValueError(
                f"its kernel {self.kernel!r} must stand in the plugin as a literal: the cache key reads it"
            )
        if not path.is_file():
            raise ValueError(f"its kernel is in {named[1]}, and there is no such file beside the plugin")
        return path


def reason_against(arch: str, types: Sequence[Any]) -> str:
    """Return why a Triton kernel is not for tensors of these Relax types, the result last, on a CUDA device of `arch`;
    empty if it may be.
    """
    if not arch.endswith("a") and int(arch[3:]) >= _SPECIFIC_SINCE:
        return f"Triton makes code for {arch}a alone, and the target is {arch}"
    if any(not _sizes(each) for each in types):
        shapes = [str(list(each.shape)) if each.shape is not None else "unknown" for each in types if not _sizes(each)]
        return f"it takes sizes that are known at compile time and at least one, not {', '.join(dict.fromkeys(shapes))}"
    wrong = sorted({str(each.dtype) for each in types} - set(_DTYPES))
    return f"it takes {', '.join(_DTYPES)}, not {', '.join(wrong)}" if wrong else ""


def _sizes(tensor: Any) -> tuple[int, ...]:
    """The sizes of a Relax tensor; none where one is symbolic or 0, or there are none."""
    shape = tensor.shape if tensor.shape is not None else ()
    sizes = tuple(int(dim.value) if hasattr(dim, "value") else 0 for dim in shape)
    return sizes if all(sizes) else ()


def triton_call(kernel: TritonKernel, plugin: Path, types: Sequence[Any]) -> TritonCall:
    """Return the call of `kernel` on tensors of these Relax types, for which there is no `reason_against`.

    Raise ToolMissing where Triton is not installed, ValueError for what the plugin gives and no kernel can have.
    """
    path, function = kernel.file_of(plugin), kernel.kernel.rpartition(":")[2]
    name = f"{plugin.stem}.{function}"
    version = version_of("triton")
    if version is None:
        raise ToolMissing(
            f"Triton is not installed, which compiles {name}",
            tool="triton",
            remedy="Install it: pip install 'relaxc[triton]'.",
        )
    tensors = [TritonTensor(_sizes(each), str(each.dtype)) for each in types]
    configurations = kernel.configurations or ({},)
    launches = tuple(_launch(kernel, each, tensors) for each in configurations)
    arguments = tuple(_argument(value, tensors) for value in kernel.arguments(*tensors))
    return TritonCall(plugin.stem, path.name, function, path.read_text(), version, arguments, launches)


def types_of(call_types: Sequence[Any]) -> list[tuple[tuple[int, ...], str]]:
    """Return shapes and dtypes of Relax tensors whose sizes are known."""
    return [(_sizes(each), str(each.dtype)) for each in call_types]


def _launch(kernel: TritonKernel, chosen: Mapping[str, Constexpr], tensors: Sequence[TritonTensor]) -> Launch:
    given = kernel.constexprs(*tensors) if callable(kernel.constexprs) else kernel.constexprs
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    constants = {**options, **given, **chosen}
    for name, value in constants.items():
        if not isinstance(value, int | float | str | None) or (name in _OPTIONS and type(value) is not int):
            raise ValueError(
                f"{name} is {value!r:.80}; constexprs are numbers, text, bools and None, warps and stages ints"
            )
    warps = constants["num_warps"]
    if warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"num_warps is 1, 2, 4, 8, 16 or 32, not {warps}")
    return Launch(
        _grid(kernel.grid(dict(constants), *tensors)),
        {name: value for name, value in constants.items() if name not in _OPTIONS},
        {name: int(constants[name] or 0) for name in _OPTIONS},
    )


def _grid(given: int | Sequence[int]) -> tuple[int, int, int]:
    axes = (given,) if isinstance(given, int) else tuple(given)
    whole = (*axes, 1, 1, 1)[:3]
    right = all(type(n) is int and 1 <= n <= most for n, most in zip(whole, _MOST_PROGRAMS, strict=True))
    if not right or not 1 <= len(axes) <= 3:
        raise ValueError(f"its grid is {given!r:.80}; it has one to three numbers from 1 to {_MOST_PROGRAMS}")
    return whole[0], whole[1], whole[2]


def _argument(value: Any, tensors: Sequence[TritonTensor]) -> Argument:
    for at, tensor in enumerate(tensors):
        if value is tensor:
            return Argument(tensor=at)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or (isinstance(value, int) and not -(2**63) <= value < 2**63)
    ):
        raise ValueError(f"its arguments are the tensors and numbers, not {value!r:.80}; bools are constexprs")
    return Argument(value=value)
