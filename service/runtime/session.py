"""Calling an artifact that is loaded (`loading`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from relaxc.service import machine
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import InputType, InvalidOption
from relaxc.service.runtime.admission import check_machine, device_of
from relaxc.service.runtime.arguments import Codes, by_name
from relaxc.service.runtime.bound import Bound, bound
from relaxc.service.runtime.dims import bind, names_in, sides, valued
from relaxc.service.runtime.library import load_library
from relaxc.service.runtime.program import Code
from relaxc.service.runtime.programs import Programs
from relaxc.service.runtime.replay import Instrument
from relaxc.service.runtime.replays import Shapes
from relaxc.service.runtime.state import State
from relaxc.service.runtime.tensors import (
    ALIGN,
    Array,
    Copies,
    aligned_copy,
    as_tensor,
    extent,
    numpy_view,
    owned_tensors,
    wrap_numpy,
)
from relaxc.service.runtime.threads import checked_threads, default_threads
from relaxc.service.runtime.tvm_runtime import CPU, copied_to
from relaxc.service.runtime.weights import DeviceWeights
from relaxc.service.signature import Signature

__all__ = ["Bound", "Session"]

_MOST_SHAPES = 1024
"""Of inputs, that a session knows to fit."""


class Session:
    """A loaded artifact; call it with its inputs.

    Calls from several threads run at the same time, as many as there are cores, each on memory of its own; weights are
    shared. Those of an artifact for a GPU run one after the other.
    """

    def __init__(
        self,
        library: Any,
        weights: Sequence[tvm_ffi.Tensor],
        manifest: Manifest,
        device: tvm_ffi.Device,
        threads: int | None,
    ) -> None:
        """`weights` are on `device`, in the order in which `main` takes them."""
        self.manifest = manifest
        self.device = device
        self.threads = default_threads() if threads is None else checked_threads(threads)
        self._on_host = manifest.target.kind != "cuda"
        initial = len(weights) - len(manifest.signature.initial)
        self._initial, held = weights[initial:], weights[:initial]
        self._whole = weights
        self.state = State(manifest.signature, self._initial, device) if manifest.signature.state else None
        self._code = Code(library, held, [extent(each) for each in weights], manifest, device, self.threads)
        self._fitting: set[Shapes] = set()
        self._codes = Codes(manifest.signature) or None
        self._outputs = tuple(spec.name for spec in manifest.signature.outputs)
        at_once = self._on_host and self.state is None
        self._programs = Programs(self._code, machine.cpu().cores if at_once else 1)
        self._first, self._waiting = self._programs.first, self._programs.waiting
        self._valued = valued(manifest.signature)
        for spec in (*self.signature.inputs, *self.signature.outputs):
            for dim in spec.shape:
                names_in(dim)
        for condition in self.signature.conditions:
            sides(condition)

    @staticmethod
    def from_parts(
        library: Path,
        weights: Mapping[str, Any],
        manifest: Manifest,
        *,
        device: str | None = None,
        threads: int | None = None,
    ) -> Session:
        """Return a session over a library that is not packed yet, its weights in the order in which `main` takes
        them.
        """
        check_machine(manifest.target, manifest.requires)
        tensors = [weight if isinstance(weight, tvm_ffi.Tensor) else _adopt(weight) for weight in weights.values()]
        where = device_of(manifest.target, device)  # before the library: it needs CUDA's loader
        held = tensors if manifest.target.kind != "cuda" else DeviceWeights(tensors, where)
        return Session(load_library(library), held, manifest, where, threads)

    def __repr__(self) -> str:
        """Return the signature and the target: `Session(x: float32[n, 4] -> y: float32[n, 2], x86-64-v3)`."""
        inputs, outputs = (", ".join(map(str, each)) for each in (self.signature.inputs, self.signature.outputs))
        return f"Session({inputs} -> {outputs}, {self.manifest.target_names})"

    def _repr_html_(self) -> str:
        """Return the same as a table, for a notebook."""
        kinds = (("input", self.signature.inputs), ("output", self.signature.outputs))
        rows = "".join(f"<tr><td>{kind}<td>{escape(str(each))}" for kind, specs in kinds for each in specs)
        return f"<table>{rows}<tr><td>target<td>{escape(self.manifest.target_names)}</table>"

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of inputs and outputs."""
        return self.manifest.signature

    def __call__(self, /, *args: Any, **named: Any) -> dict[str, Array]:
        """The outputs by name, in the model's order; the arrays belong to the caller.

        Inputs are named (`session(x=…)`, or one dict for names that Python cannot spell) or in order: numpy arrays
        (of ml_dtypes where numpy has no such dtype) or tensors that speak DLPack, in row-major order and aligned to 64
        bytes if they are not to be copied. An input that the export fixed may be repeated with its value. Raise
        InputName, InputType or InputShape; ArtifactError where the program itself fails.
        """
        if self._codes is not None:
            args, named = (), self._codes.given(args, named)
        program, waiting = self._first, self._waiting  # as `take` and `give` do, in less time
        if waiting or not program.lock.acquire(False):
            program = self._programs.another()
        try:
            if (found := program.replays.find(args, named)) is not None:
                outputs = dict(zip(self._outputs, found[0](found[1])))  # noqa: B905  # both are as the signature has them
            else:
                outputs = program.called(self._arguments(args, named, program.copies), None, self.state)
            return outputs if self._codes is None else self._codes.numbers(outputs)
        finally:
            program.lock.release()
            if waiting:
                self._programs.tell()

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Bound:
        """Return a call whose inputs and outputs are these, by name: they are checked here alone, and run once.

        What the caller writes into an input is read by the next call; one that is row-major, aligned to 64 bytes, on
        the CPU and overlaps no output is read where it is. Outputs are arrays or tensors that speak DLPack, on the CPU
        and writable, which each call overwrites; those that are not given are made. None may change its place or
        shape. Raise what a call does, and the same for an output that does not fit.
        """
        program = self._programs.take()
        try:
            if self._codes is None:
                return bound(self, program, inputs, outputs or {})
            made = bound(self, program, self._codes.given((), inputs), self._codes.written(outputs or {}))
            made.inputs, made.outputs = self._codes.numbers(made.inputs), self._codes.numbers(made.outputs)
            return made
        finally:
            self._programs.give(program)

    def to_device(self, inputs: Mapping[str, Any]) -> dict[str, tvm_ffi.Tensor]:
        """Return copies of the inputs where the program runs: what `on_device` takes. Raise what a call does."""
        inputs = inputs if self._codes is None else self._codes.given((), inputs)
        copies = [copied_to(tensor, self.device) for tensor in self._tensors((), inputs, {})]
        return {spec.name: copied for spec, copied in zip(self.signature.inputs, copies, strict=True)}

    def twin(self) -> Session:
        """Return a session of the same artifact with a program of its own; the weights are shared.

        Calls of the two may run at the same time, and what one has captured for a GPU the other has not.
        """
        return Session(self._code.library, self._whole, self.manifest, self.device, self.threads)

    def clone(self) -> Session:
        """Return a session over the same weights with a copy of this one's state, which goes its own way from here."""
        made = self.twin()
        made.state = None if self.state is None else self.state.copy()
        return made

    def on_device(self, inputs: Mapping[str, Any], *, stream: int = 0) -> dict[str, tvm_ffi.Tensor]:
        """Return the outputs by name where they are computed, with no copy and no wait: for artifacts for a GPU.

        Inputs are tensors on the session's GPU that speak DLPack, and so are the outputs: `torch.from_dlpack(output)`.
        They belong to the caller, and are ready when `stream`, a `cudaStream_t` as a number
        (`torch.cuda.current_stream().cuda_stream`), has come that far; inputs must be ready on it. Raise InputName,
        InputType or InputShape; InvalidOption for an artifact for a CPU; ArtifactError where the program itself fails.
        """
        if self._on_host:
            raise InvalidOption("this artifact is for a CPU: call the session", option="device")
        program = self._programs.take()
        try:
            with tvm_ffi.use_raw_stream(self.device, stream):
                tensors = self._tensors((), inputs, program.copies)
                for spec, tensor in zip(self.signature.inputs, tensors, strict=True):
                    if tensor.device != self.device:
                        raise InputType(f"input {spec.name!r} is on {tensor.device}, it must be on {self.device}")
                shared = [*self._code.weight_extents, *(extent(tensor) for tensor in tensors)]
                if self.state is None:
                    owned = owned_tensors(program.results(tensors, None), shared, self.device)
                else:
                    with self.state.lock:
                        results = program.stepped(tensors, None, self.state)
                        owned = owned_tensors(results, [*shared, *self.state.extents], self.device)
        finally:
            self._programs.give(program)
        return {spec.name: tensor for spec, tensor in zip(self.signature.outputs, owned, strict=True)}

    def run_instrumented(self, inputs: Mapping[str, Any], instrument: Instrument) -> dict[str, Array]:
        """Call the program, with `instrument` called around every call that the program makes.

        Of one that is replayed these are those of its kernels.
        """
        inputs = inputs if self._codes is None else self._codes.given((), inputs)
        program = self._programs.take()
        try:
            if (found := program.replays.find((), inputs)) is not None:
                return dict(zip(self._outputs, found[0](found[1], instrument), strict=True))
            return program.called(self._arguments((), inputs, program.copies), instrument, self.state)
        finally:
            self._programs.give(program)

    def sizes(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Return the size that these inputs, by name, give each symbolic dim. Raise InputShape."""
        return bind(self.signature, [tuple(inputs[spec.name].shape) for spec in self.signature.inputs])

    def _arguments(self, args: tuple[Any, ...], named: Mapping[str, Any], copies: Copies) -> list[tvm_ffi.Tensor]:
        return self._placed(self._tensors(args, named, copies))

    def _placed(self, tensors: list[tvm_ffi.Tensor]) -> list[tvm_ffi.Tensor]:
        """The tensors where the program runs."""
        return tensors if self._on_host else [copied_to(tensor, self.device) for tensor in tensors]

    def _tensors(self, args: tuple[Any, ...], named: Mapping[str, Any], copies: Copies) -> list[tvm_ffi.Tensor]:
        values = by_name(self.signature, args, named)
        tensors = [as_tensor(spec.name, values[spec.name], spec.dtype, copies) for spec in self.signature.inputs]
        self._fit(tuple([tensor.shape for tensor in tensors]))
        if self._valued:
            bind(self.signature, [tensor.shape for tensor in tensors], self._values(tensors))
        for spec, tensor in zip(self.signature.inputs, tensors, strict=True):
            kind = tensor.device.dlpack_device_type()
            if kind not in (CPU.dlpack_device_type(), self.device.dlpack_device_type()):
                raise InputType(f"input {spec.name!r} is on {tensor.device}, it must be on the CPU or {self.device}")
        return tensors

    def _values(self, tensors: list[tvm_ffi.Tensor]) -> dict[str, int]:
        """The values of the inputs that decide what must hold; the program itself checks those that are on a GPU."""
        here = [
            (spec.name, tensor)
            for spec, tensor in zip(self.signature.inputs, tensors, strict=True)
            if spec.name in self._valued and tensor.device.dlpack_device_type() == CPU.dlpack_device_type()
        ]
        return {name: int(numpy_view(tensor).reshape(-1)[0]) for name, tensor in here}

    def _fit(self, shapes: Shapes) -> None:
        """Raise what `bind` does; what it let through before is known."""
        if shapes in self._fitting:
            return
        bind(self.signature, shapes)
        if len(self._fitting) >= _MOST_SHAPES:
            self._fitting.clear()
        self._fitting.add(shapes)


def _adopt(weight: Any) -> tvm_ffi.Tensor:
    array = np.asarray(weight, order="C")  # ascontiguousarray would add a dim to a scalar
    aligned = array.__array_interface__["data"][0] % ALIGN == 0 and array.size
    return wrap_numpy(array) if aligned else aligned_copy(array, array.dtype.name, array.shape)
