"""What a runner does with candidates: run them on one set of arguments, judge their numbers, time them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm

from relaxc.schedules.cpu import planning, regroup
from relaxc.schedules.plan import plan_of
from relaxc.service.runtime.compare import compare
from relaxc.service.runtime.tensors import Array, numpy_dtype
from relaxc.service.tuning.measure.agreement import agree
from relaxc.service.tuning.measure.arguments import Arguments, arguments_of
from relaxc.service.tuning.measure.messages import Compare, Ran, Reference, Request, Run, Subject, emitted_beside
from relaxc.service.tuning.measure.outcome import MeasureLimits
from relaxc.service.tuning.measure.timing import summary, time_until_steady

__all__ = ["Device", "Place", "Trials", "Turns"]

_SEED = 0
_WARM_UP_ROUNDS = 1
_UNSET = 0xFF
"""The byte of outputs that nothing was written to: NaN, or the largest unsigned number."""


class Turns:
    """Lists of arguments that calls take one after the other, and again from the first."""

    def __init__(self, lists: Sequence[list[Any]]) -> None:
        self.lists = lists
        self._endless = cycle(lists)

    def next(self) -> list[Any]:
        """Return the list whose turn it is."""
        return next(self._endless)


class Place(Protocol):
    """Where kernels run: a process's own memory, a session with a remote server, or a GPU."""

    def load(self, library: str) -> Callable[..., Any]:
        """Load the kernel in a library."""
        ...

    def put(self, value: Array | int) -> Any:
        """Put the value where a kernel can take it as an argument."""
        ...

    def lists(self, values: Sequence[Array | int], weights: Sequence[int], weight_bytes: int) -> list[list[Any]]:
        """Return the values as lists of arguments to time with in turns: see `WeightCopies.lists`."""
        ...

    def awaken(self, seconds: float) -> None:
        """Keep the cores that kernels run on busy for so long: after idling they are slow at first."""
        ...

    def timer(self, kernel: Callable[..., Any], turns: Turns) -> Callable[[], float]:
        """Return what runs the kernel with the arguments whose turn it is, and returns the seconds of one call.

        What it reads comes from where it would in a model: private caches are emptied before.
        """
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Keep other tunings away from the device meanwhile."""
        ...


class Device(Protocol):
    """Opens a place for one request; a local one is always the same."""

    def place(self) -> AbstractContextManager[Place]:
        """Hold a place, and give it up afterwards."""
        ...


class Trials:
    """Answers requests, with the arguments of the last subject kept, and its tensors while the place is the same."""

    def __init__(self, device: Device, limits: MeasureLimits) -> None:
        self._device, self._limits = device, limits
        self._key = ""
        self._arguments = Arguments([], (), (), "")
        self._expected: list[Array] = []
        self._place: Place | None = None
        self._weights: dict[str, Any] = {}
        self._packed: int | None = None
        self._turns: dict[str, Turns] = {}

    def forget(self) -> None:
        """Let go of the tensors, and so of the place that they are in."""
        self._place, self._turns = None, {}

    def answer(self, request: Request) -> Ran | list[Ran]:
        """Return what came of a request; what a candidate raises goes through."""
        if isinstance(request, Reference):
            return self.reference(request)
        return self.run(request) if isinstance(request, Run) else self.compare(request)

    def reference(self, request: Reference) -> Ran:
        """Write what the untuned kernel gives: for normal floats, or for positive ones where it gives NaN else."""
        func = _func_of(request.subject, request.library)
        with self._device.place() as place:
            kernel = place.load(request.library)
            for positive in (False, True):
                arguments = arguments_of(func, request.subject.sizes, seed=_SEED, positive=positive)
                with place.alone():
                    outputs = _run_once(kernel, arguments, [place.put(value) for value in arguments.values])
                if all(np.isfinite(output).all() for output in outputs):
                    break
        raw = {f"output{i}": output.reshape(-1).view(np.uint8) for i, output in enumerate(outputs)}
        with Path(request.subject.expected).open("wb") as file:
            np.savez(file, **raw, positive=np.array(positive))  # type: ignore[arg-type]  # numpy takes it for allow_pickle
        return Ran("measured")

    def run(self, request: Run) -> Ran:
        """Check the numbers, time it, and check the last numbers again: a race shows in one run of several."""
        with self._device.place() as place:
            (layout,) = self._prepare(request.subject, [request.library], place)
            kernel, tensors = place.load(request.library), self._turns[layout].lists[0]
            first, wrong = self._judge(place, kernel, tensors)
            if wrong:
                return Ran("wrong", detail=wrong)
            with place.alone():
                timer = place.timer(kernel, self._turns[layout])
                place.awaken(self._limits.warm_up_s)
                timing = time_until_steady(timer, self._limits, request.hopeless_s)
                last = self._outputs(tensors)
            if not self._arguments.updated and not _equal(first, last):
                wrong = self._verdict(last)
            if wrong:
                return Ran("wrong", detail=f"not in every run: {wrong}")
        return Ran("measured", timing.seconds, timing.spread, timing.runs, error=timing.error)

    def compare(self, request: Compare) -> list[Ran]:
        """Time those that are right one after the other, in an order drawn anew in each round."""
        with self._device.place() as place:
            layouts = self._prepare(request.subject, request.libraries, place)
            kernels = [place.load(library) for library in request.libraries]
            firsts = [self._turns[layout].lists[0] for layout in layouts]
            reasons = [self._judge(place, k, first)[1] for k, first in zip(kernels, firsts, strict=True)]
            right = [index for index, reason in enumerate(reasons) if not reason]
            seconds: list[list[float]] = [[] for _ in kernels]
            order, rng = list(right), random.Random(_SEED)
            with place.alone():
                timers = {index: place.timer(kernels[index], self._turns[layouts[index]]) for index in right}
                place.awaken(self._limits.warm_up_s)
                for _ in range(_WARM_UP_ROUNDS + request.rounds):
                    rng.shuffle(order)
                    for index in order:
                        seconds[index].append(timers[index]())
        timings = {index: summary(seconds[index][_WARM_UP_ROUNDS:]) for index in right}
        return [
            Ran("measured", timings[i].seconds, timings[i].spread, timings[i].runs, error=timings[i].error)
            if i in timings
            else Ran("wrong", detail=reason)
            for i, reason in enumerate(reasons)
        ]

    def _prepare(self, subject: Subject, libraries: Sequence[str], place: Place) -> list[str]:
        """The layout that each library takes its operands in; `_turns` then has arguments for each in this place.

        They share all that is written with those of every turn, and all but the weights with those of other layouts.
        """
        funcs = [_func_of(subject, library) for library in libraries]
        layouts = [_layout_of(func) for func in funcs]
        distinct = dict(zip(layouts, funcs, strict=True))
        key = " ".join([subject.key, *distinct])
        if key != self._key:
            self._expect(subject, distinct)
            self._key = key
            self.forget()
        if self._place is not place:
            self.forget()  # before the next lists are made in the same memory
            with place.alone():
                self._fill(subject, place)
        return layouts

    def _expect(self, subject: Subject, funcs: Mapping[str, Any]) -> None:
        """Makes the arguments of the first layout and the weights of the others, and reads what is right."""
        first, *others = funcs.values()
        with np.load(subject.expected) as kept:
            positive = bool(kept["positive"])
            arguments = arguments_of(first, subject.sizes, seed=_SEED, positive=positive)
            raw = [kept[f"output{i}"] for i in range(len(arguments.outputs))]
        like = [np.asarray(arguments.values[position]) for position in arguments.outputs]
        self._expected = [bytes_.view(a.dtype).reshape(a.shape) for bytes_, a in zip(raw, like, strict=True)]
        self._arguments, self._packed = arguments, regroup.weight_position(first)
        same = [arguments_of(func, subject.sizes, seed=_SEED, positive=positive) for func in others]
        self._weights = dict.fromkeys(funcs)
        for layout, other in zip(list(funcs)[1:], same, strict=True):
            self._weights[layout] = other.values[self._packed or 0]

    def _fill(self, subject: Subject, place: Place) -> None:
        values, layouts = self._arguments.values, list(self._weights)
        weights = [position for position in subject.weights if position not in self._arguments.outputs]
        more = range(len(values), len(values) + len(layouts) - 1)
        all_values = [*values, *(self._weights[layout] for layout in layouts[1:])]
        all_weights = [*weights, *(more if self._packed in weights else ())]
        lists = place.lists(all_values, all_weights, subject.weight_bytes * len(layouts))
        for number, layout in enumerate(layouts):
            self._turns[layout] = Turns([self._of_layout(each, len(values), number) for each in lists])
        self._place = place

    def _of_layout(self, tensors: list[Any], count: int, number: int) -> list[Any]:
        """The arguments for the layout of this number, whose weights are behind those of the first."""
        arguments = list(tensors[:count])
        if number:
            arguments[self._packed or 0] = tensors[count + number - 1]
        return arguments

    def _judge(self, place: Place, kernel: Callable[..., Any], tensors: list[Any]) -> tuple[list[Array], str]:
        """The outputs of one run, and why they are wrong; empty if they are right."""
        with place.alone():
            got = _run_once(kernel, self._arguments, tensors)
        return got, "" if _equal(got, self._expected) else self._verdict(got)

    def _verdict(self, got: list[Array]) -> str:
        names = self._arguments.named_outputs
        if all(agree(g, w, self._arguments.judge) for g, w in zip(got, self._expected, strict=True)):
            return ""
        judge = {str(position): self._arguments.judge for position in self._arguments.outputs}
        found = compare(names(got), names(self._expected), judge)
        return "" if found.passed else found.reason

    def _outputs(self, tensors: list[Any]) -> list[Array]:
        return [tensors[position].numpy() for position in self._arguments.outputs]


def _func_of(subject: Subject, library: str) -> Any:
    """The PrimFunc that a library was built from, before it was scheduled."""
    beside = emitted_beside(library)
    return tvm.ir.load_json(beside.read_text() if beside.exists() else subject.func_json)


def _layout_of(func: Any) -> str:
    """What tells a PrimFunc's operands from those of another that computes the same."""
    plan = plan_of(func)
    return "" if plan is None else planning.layout_of(plan).to_json()


def _run_once(kernel: Callable[..., Any], arguments: Arguments, tensors: list[Any]) -> list[Array]:
    """The outputs, which were unset before, or as at the start where the kernel reads them too."""
    for position in arguments.outputs:
        value = np.asarray(arguments.values[position])
        unset = np.full(value.nbytes, _UNSET, np.uint8).view(numpy_dtype(str(value.dtype))).reshape(value.shape)
        keep = position in arguments.updated or value.dtype == np.bool_
        tensors[position].copyfrom(value if keep else unset)
    kernel(*tensors)
    return [tensors[position].numpy() for position in arguments.outputs]


def _equal(got: list[Array], want: list[Array]) -> bool:
    """Bit for bit, which is quick to see."""
    return all(np.array_equal(_bytes_of(a), _bytes_of(b)) for a, b in zip(got, want, strict=True))


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
