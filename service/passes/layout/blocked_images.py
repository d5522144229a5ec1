"""Which images of a function have a blocked form, `[N, C/v, H, W, v]`, and what gives them one and takes it off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax

from relaxc.schedules.cpu.conv import blocked_compute as compute
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.plan import Planner
from relaxc.service.passes.common.images import count_reads, known
from relaxc.service.passes.common.origins import emit_as
from relaxc.service.passes.common.rewrite import op_name, static_shape
from relaxc.service.passes.precision.dtypes import BYTES

__all__ = ["ELEMENT_BITS", "Blocked", "BlockedImages", "Rule"]

ELEMENT_BITS = 32
"""Of the images that are blocked."""


@dataclass(frozen=True)
class Blocked:
    """A value in blocked form, of `channels` channels in `[N, ceil(channels / v), H, W, v]`."""

    var: relax.Var
    channels: int


class BlockedImages:
    """What rules ask of the function that a mutator walks over, and how they add code to the new one."""

    def __init__(self, walker: Any, function: relax.Function, cpu: Cpu, planner: Planner) -> None:
        self._walker = walker
        self.cpu = cpu
        self.planner = planner
        self.lanes = cpu.lanes(ELEMENT_BITS)
        self.bound: relax.Var | None = None
        """The variable that the call being looked at is bound to."""
        self.blocked: dict[Any, Blocked] = {}
        self.gated: dict[Any, tuple[relax.Var, relax.Var]] = {}
        """Products of an image and a value a channel (squeeze and excite), which a convolution can take apart."""
        self.reads = count_reads(function)
        self.joins = _joins(function)
        """Whether images are concatenated: FuseTIR wants equal terms of sizes that came by different ways then."""
        self.convolutions = self.packs = self.unpacks = 0
        self._packed: dict[Any, relax.Var] = {}
        self._made: dict[Any, relax.Call] = {}
        """The first call of each PrimFunc of static sizes: to make it again takes TVM milliseconds."""

    def filled(self, channels: int) -> int:
        """Return as many channels as their blocks have."""
        return channels + -channels % self.lanes

    def sizes(self, data: relax.Expr) -> dict[str, Any]:
        """Return those of a blocked image, its channels filled up to whole blocks; 0 for what is symbolic."""
        batch, _, height, width = data.ty.shape
        channels = self.filled(self.blocked[data].channels)
        return {
            "batch": known(batch),
            "channels": channels,
            "height": known(height),
            "width": known(width),
        }

    def fields(self, expr: relax.Expr) -> list[relax.Expr]:
        """Return the fields of what is a tuple; none else."""
        value = self._walker.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return list(value.fields) if isinstance(value, relax.Tuple) else []

    def plain(self, expr: relax.Expr) -> relax.Expr:
        """Return the value in the new function, unpacked if it has only a blocked form there."""
        return self._walker.visit_expr(expr)

    def emit(self, value: relax.Expr) -> relax.Var:
        """Return a variable that is bound to `value`."""
        return emit_as(self._walker.builder_, value, self.bound)

    def te(self, function: Callable[..., Any], *args: relax.Expr, name: str, **attrs: Any) -> relax.Var:
        """Return a variable that is bound to what the tensor expression computes."""
        key = _key(function, args, name, attrs)
        made = self._made.get(key)
        if made is None:
            made = self._walker.builder_.call_te(function, *args, primfunc_name_hint=name, primfunc_attrs=attrs or None)
            if key is not None:
                self._made[key] = made
        else:
            made = relax.Call(made.op, [made.args[0], relax.Tuple(args)], made.attrs, made.ty_args)
        return self.emit(made)

    def pack(self, expr: relax.Expr) -> relax.Var:
        """Return the blocked form of an image, packed if it has none; an image is packed once."""
        found = self.blocked.get(expr)
        if found is not None:
            return found.var
        plain = self.plain(expr)
        if plain not in self._packed:
            self._packed[plain] = self.te(partial(compute.pack_channels, lanes=self.lanes), plain, name="pack_channels")
            self.packs += 1
        return self._packed[plain]

    def before_cast(self, expr: relax.Expr) -> relax.Var | None:
        """Return the blocked bytes that an image of floats is a cast of, None if it is none."""
        value = self._walker.lookup_binding(self.blocked[expr].var) if expr in self.blocked else None
        if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.astype":
            return None
        return value.args[0] if str(value.args[0].ty.dtype) in BYTES else None

    def unpack(self, var: relax.Var) -> relax.Var:
        """Return the plain form of a value that has a blocked one; it is unpacked once."""
        if var not in self._packed:
            found = self.blocked[var]
            unpack = partial(compute.unpack_channels, channels=found.channels)
            self._packed[var] = self.te(unpack, found.var, name="unpack_channels")
            self.unpacks += 1
        return self._packed[var]


def _joins(function: relax.Function) -> bool:
    found: list[relax.Expr] = []
    relax.analysis.post_order_visit(function, found.append)
    return any(op_name(expr) == "relax.concat" for expr in found)


def _key(function: Callable[..., Any], args: Sequence[relax.Expr], name: str, attrs: dict[str, Any]) -> Any:
    """What a PrimFunc depends on; None where that cannot be told, or where sizes are symbolic."""
    shapes = [static_shape(arg) for arg in args]
    if not isinstance(function, partial) or not args or None in shapes:
        return None
    operands = tuple((shape, str(arg.ty.dtype)) for shape, arg in zip(shapes, args, strict=True))
    called = (function.func, function.args, tuple(sorted(function.keywords.items())))
    return (called, operands, name, tuple(sorted(attrs.items())))


Rule = Callable[[BlockedImages, relax.Call], Blocked | None]
"""The blocked form of what a call gives, and None where it has none or should have none."""
