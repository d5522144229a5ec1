"""What the templates of CUDA text have in common: which devices have their instructions, and how a launch is made."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from itertools import product
from typing import Any

from relaxc.schedules.cuda.common.expression import LOW
from relaxc.schedules.cuda.common.kernel import TextKernel
from relaxc.schedules.cuda.common.sizes import unbound_size
from relaxc.schedules.hardware import Gpu, gpu_of
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Choices, Declined, Form, Parameters, Points, Template

__all__ = ["TextTemplate", "multiplied_on"]


class TextTemplate(Template[Form, Gpu]):
    """A template whose subclass says what it takes, and which text computes it.

    That is made of instructions that every device has `since` an architecture, or of those that sm_90a alone has.
    """

    since = "sm_80"

    def matched(self, func: PrimFunc, target: Target) -> Form | Declined:
        """See `Template`."""
        reason = self.unfit(str(target.attrs["arch"])) or unbound_size(func)
        return Declined(reason) if reason else self.match(func)

    def emit(self, func: PrimFunc, form: Form, parameters: Parameters, gpu: Gpu) -> PrimFunc | Declined:
        """See `Template`."""
        made = self.kernel_of(form, parameters, gpu)
        if isinstance(made, Declined):
            return made
        return replace(made, overlaps=made.overlaps and gpu.has_early_launches).prim_func(func)

    def searched(self, func: PrimFunc, target: Target) -> Points | Declined:
        """See `Template`: many points of a space of tiles are one text and one launch; the untuned one is the first."""
        form = self.matched(func, target)
        if isinstance(form, Declined):
            return form
        gpu = gpu_of(target)
        space = self.space(form, gpu)
        every = (dict(zip(space, values, strict=True)) for values in product(*space.values()))
        kernels: dict[Any, Parameters] = {}
        for point in (dict(self.default(form, gpu)), *every):
            made = self.kernel_of(form, point, gpu)
            if not isinstance(made, Declined):
                kernels.setdefault(made.identity, point)
        if not kernels:
            return Declined("the device holds none of its tiles")
        listed = tuple(kernels.values())
        return Points({name: tuple(sorted({point[name] for point in listed})) for name in space}, listed)

    def unfit(self, arch: str) -> str:
        """Return why a device of this architecture does not have the instructions, or ''."""
        if self.since == "sm_80":
            return "" if _since_sm80(arch) else "the device is older than sm_80"
        return "" if arch == self.since else f"the device is not {self.since}"

    @abstractmethod
    def match(self, func: PrimFunc) -> Form | Declined:
        """Return what `func` computes, or why it is not for this template."""

    def default(self, form: Form, gpu: Gpu) -> Parameters:
        """See `Template`."""
        del form, gpu
        return {}

    def space(self, form: Form, gpu: Gpu) -> Choices:
        """See `Template`: all combinations."""
        del form, gpu
        return {}

    @abstractmethod
    def kernel_of(self, form: Form, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """Return the launch, or why the device does not hold it."""


def multiplied_on(arch: str) -> tuple[str, ...]:
    """Return the floats that a device of this architecture has templates for: fp32 too since sm_80."""
    return (*LOW, "float32") if _since_sm80(arch) else LOW


def _since_sm80(arch: str) -> bool:
    return int(arch.removeprefix("sm_").removesuffix("a")) >= 80
