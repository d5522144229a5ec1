"""What the templates of CUDA text for Hopper have in common: how each is a `schedules.template.Rule`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from schedules.cuda.common.kernel import TextKernel
from schedules.hardware import Gpu, gpu_of
from schedules.ir.types import PrimFunc, Target
from schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["HopperTemplate", "trusted", "trusting"]

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

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.template.Rule`."""
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
        return made if isinstance(made, Declined) else Schedule(made.prim_func(func), parameters)

    def choices(self, func: PrimFunc, target: Target) -> Choices | Declined:
        """See `schedules.template.Rule`."""
        found = self._matched(func, target)
        return found if isinstance(found, Declined) else self.choices_of(found, gpu_of(target))

    def proposed(self, func: PrimFunc, target: Target) -> Parameters | Declined:
        """Return the parameters that are estimated to be fastest, of what is declined as unconfirmed too."""
        found = self._matched(func, target)
        return found if isinstance(found, Declined) else self.default_of(found, gpu_of(target))

    def _matched(self, func: PrimFunc, target: Target) -> Form | Declined:
        if str(target.attrs["arch"]) != "sm_90a":
            return Declined("the device is not sm_90a")
        return self.match(func)

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
