"""What the templates of CUDA text have in common: how each is a Rule, for Hopper and before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, Generic, TypeVar

from relaxc.schedules.cuda.common.expression import LOW
from relaxc.schedules.cuda.common.kernel import TextKernel
from relaxc.schedules.cuda.common.sizes import unbound_size
from relaxc.schedules.hardware import Gpu, gpu_of
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Choices, Declined, Parameters, Points, Schedule, check

__all__ = ["AmpereTemplate", "HopperTemplate", "multiplied_on", "trusted", "trusting"]

Form = TypeVar("Form")
_trusted = [False]


def trusting() -> bool:
    """Return whether what no GPU has run yet is taken as if one had."""
    return _trusted[-1]


@contextmanager
def trusted() -> Iterator[None]:
    """Take what no GPU has run yet in this process, to measure it in a whole model."""
    _trusted.append(True)
    try:
        yield
    finally:
        _trusted.pop()


class HopperTemplate(ABC, Generic[Form]):
    """A rule for sm_90a whose subclass says what it takes, and which kernel computes it."""

    name: str
    version: int
    since = "sm_90a"
    """The architecture whose instructions it is made of."""

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `relaxc.schedules.template.Rule`."""
        found = self._matched(func, target)
        if isinstance(found, Declined):
            return found
        gpu = gpu_of(target)
        if parameters is None:
            reason = "" if trusting() else self.unconfirmed(found)
            if reason := reason or self.outdone(found, gpu):
                return Declined(reason)
            parameters = self.default_of(found, gpu)
        check(parameters, self.choices_of(found, gpu))
        made = self.kernel_of(found, parameters, gpu)
        if isinstance(made, Declined):
            return made
        launch = replace(made, overlaps=made.overlaps and gpu.has_early_launches)
        return Schedule(launch.prim_func(func), parameters)

    def choices(self, func: PrimFunc, target: Target) -> Choices | Declined:
        """See `relaxc.schedules.template.Rule`."""
        found = self._matched(func, target)
        return found if isinstance(found, Declined) else self.choices_of(found, gpu_of(target))

    def distinct(self, func: PrimFunc, target: Target) -> Points | Declined:
        """See `relaxc.schedules.template.Distinct`: many points of a space of tiles are one text and one launch."""
        found = self._matched(func, target)
        if isinstance(found, Declined):
            return found
        gpu = gpu_of(target)
        space = self.choices_of(found, gpu)
        every = (dict(zip(space, values, strict=True)) for values in product(*space.values()))
        kernels: dict[Any, Parameters] = {}
        for point in (dict(self.default_of(found, gpu)), *every):
            made = self.kernel_of(found, point, gpu)
            if not isinstance(made, Declined):
                kernels.setdefault(made.identity, point)
        if not kernels:
            return Declined("the device holds none of its tiles")
        listed = tuple(kernels.values())
        return Points({name: tuple(sorted({point[name] for point in listed})) for name in space}, listed)

    def proposed(self, func: PrimFunc, target: Target) -> Parameters | Declined:
        """Return the parameters that are estimated to be fastest, of what is declined as unconfirmed too."""
        found = self._matched(func, target)
        return found if isinstance(found, Declined) else self.default_of(found, gpu_of(target))

    def _matched(self, func: PrimFunc, target: Target) -> Form | Declined:
        reason = self.unfit(str(target.attrs["arch"])) or unbound_size(func)
        return Declined(reason) if reason else self.match(func)

    def unfit(self, arch: str) -> str:
        """Return why a device of this architecture does not have the instructions, or ''."""
        return "" if arch == "sm_90a" else "the device is not sm_90a"

    @abstractmethod
    def match(self, func: PrimFunc) -> Form | Declined:
        """Return what `func` computes, or why it is not for this template."""

    def unconfirmed(self, form: Form) -> str:
        """Return why `form` is only taken at a point that is asked for: no GPU has run it yet; '' where one has."""
        return ""

    def outdone(self, form: Form, gpu: Gpu) -> str:
        """Return why a rule after this one is faster for `form`, which is then taken at a given point alone; or ''."""
        return ""

    @abstractmethod
    def choices_of(self, form: Form, gpu: Gpu) -> Choices:
        """Return the values of each parameter."""

    @abstractmethod
    def default_of(self, form: Form, gpu: Gpu) -> Parameters:
        """Return the parameters that are estimated to be fastest."""

    @abstractmethod
    def kernel_of(self, form: Form, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """Return the launch, or why the device does not hold it."""


class AmpereTemplate(HopperTemplate[Form]):
    """The same for kernels of instructions that sm_80 has, and every device after it."""

    since = "sm_80"

    def unfit(self, arch: str) -> str:
        """See `HopperTemplate`."""
        return "" if _since_sm80(arch) else "the device is older than sm_80"


def multiplied_on(arch: str) -> tuple[str, ...]:
    """Return the floats that a device of this architecture has templates for: fp32 too since sm_80."""
    return (*LOW, "float32") if _since_sm80(arch) else LOW


def _since_sm80(arch: str) -> bool:
    return int(arch.removeprefix("sm_").removesuffix("a")) >= 80
