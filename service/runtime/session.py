"""Calling an artifact that is loaded (`loading`)."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import (
    ArtifactCorrupt,
    ArtifactError,
    InputType,
    InvalidOption,
)
from relaxc.service.runtime.admission import check_machine, device_of
from relaxc.service.runtime.arguments import by_name
from relaxc.service.runtime.bound import Bound, bound
from relaxc.service.runtime.dims import bind, names_in, sides, valued
from relaxc.service.runtime.library import first_line, load_library
from relaxc.service.runtime.replay import FAILURES, Instrument, Recorder, Replay, Work, fits
from relaxc.service.runtime.replays import Replays, Shapes
from relaxc.service.runtime.tensors import (
    ALIGN,
    Array,
    Copies,
    aligned_copy,
    as_tensor,
    extent,
    numpy_view,
    owned_arrays,
    owned_tensors,
    wrap_numpy,
)
from relaxc.service.runtime.threads import call, checked_threads, default_threads
from relaxc.service.runtime.tvm_runtime import CPU, VirtualMachine, copied_to
from relaxc.service.runtime.weights import DeviceWeights
from relaxc.service.signature import Signature

__all__ = ["Bound", "Session"]

_MOST_SHAPES = 1024
"""Of inputs, that a session knows to fit."""

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _forked() -> None:
    """Free, in a process that was forked, the sessions that other threads were calling."""
    for session in _sessions:
        session._lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


class Session:
    """A loaded artifact; call it with its inputs.

    Calls from several threads are safe and run one after the other: a compiled program uses one state, and its
    kernels use all threads already. Load the file again for calls at the same time; its weights are shared.
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
        self._library = library
        self.threads = default_threads() if threads is None else checked_threads(threads)
        self._on_host = manifest.target.kind != "cuda"
        self._weights = weights
        self._weight_extents = [extent(weight) for weight in self._weights]
        self._lock = threading.Lock()
        _sessions.add(self)
        self._copies: Copies = {}
        self._fitting: set[Shapes] = set()
        self._outputs = tuple(spec.name for spec in manifest.signature.outputs)
        self._work = Work(manifest.schedule, self.threads)
        self._valued = valued(manifest.signature)
        # A replay asks for nothing but shapes.
        self._is_small = not self._valued and fits(manifest.target, manifest.schedule, self._weight_extents)
        self._replays = Replays(manifest.signature, any_fits=self._is_small)
        self._vm, self._main, arity = _machine(library, device)
        inputs = len(self.signature.inputs)
        if arity not in (inputs, inputs + 1) or (weights and arity == inputs):
            raise ArtifactCorrupt(f"its main takes {arity} arguments; the manifest names {inputs} inputs and weights")
        self._tail = [tvm_ffi.convert(self._weights)] if arity > inputs else []
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

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of inputs and outputs."""
        return self.manifest.signature

    def __call__(self, /, *args: Any, **named: Any) -> dict[str, Array]:
        """The outputs by name, in the model's order; the arrays belong to the caller.

        Inputs are named (`session(x=…)`, or one dict for names that Python cannot spell) or in order: numpy arrays
        or tensors that speak DLPack, in row-major order and aligned to 64 bytes if they are not to be copied. An
        input that the export fixed may be repeated with its value. Raise InputName, InputType or InputShape;
        ArtifactError where the program itself fails.
        """
        if (found := self._replays.find(args, named)) is not None:
            with self._lock:
                return dict(zip(self._outputs, found[0](found[1])))  # noqa: B905  # both are as the signature has them
        with self._lock:
            return self._called(self._arguments(args, named), None)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Bound:
        """Return a call whose inputs and outputs are these, by name: they are checked here alone, and run once.

        What the caller writes into an input is read by the next call; one that is row-major, aligned to 64 bytes, on
        the CPU and overlaps no output is read where it is. Outputs are arrays or tensors that speak DLPack, on the CPU
        and writable, which each call overwrites; those that are not given are made. None may change its place or
        shape. Raise what a call does, and the same for an output that does not fit.
        """
        with self._lock:
            return bound(self, inputs, outputs or {})

    def to_device(self, inputs: Mapping[str, Any]) -> dict[str, tvm_ffi.Tensor]:
        """Return copies of the inputs where the program runs: what `on_device` takes. Raise what a call does."""
        with self._lock:
            tensors = self._tensors((), inputs, self._copies)
            copies = [copied_to(tensor, self.device) for tensor in tensors]
        return {spec.name: copied for spec, copied in zip(self.signature.inputs, copies, strict=True)}

    def twin(self) -> Session:
        """Return a session of the same artifact with a program of its own; the weights are shared.

        Calls of the two may run at the same time, and what one has captured for a GPU the other has not.
        """
        return Session(self._library, self._weights, self.manifest, self.device, self.threads)

    def on_device(self, inputs: Mapping[str, Any], *, stream: int = 0) -> dict[str, tvm_ffi.Tensor]:
        """Return the outputs by name where they are computed, with no copy and no wait: for artifacts for a GPU.

        Inputs are tensors on the session's GPU that speak DLPack, and so are the outputs: `torch.from_dlpack(output)`.
        They belong to the caller, and are ready when `stream`, a `cudaStream_t` as a number
        (`torch.cuda.current_stream().cuda_stream`), has come that far; inputs must be ready on it. Raise InputName,
        InputType or InputShape; InvalidOption for an artifact for a CPU; ArtifactError where the program itself fails.
        """
        if self._on_host:
            raise InvalidOption("this artifact is for a CPU: call the session", option="device")
        with self._lock, tvm_ffi.use_raw_stream(self.device, stream):
            tensors = self._tensors((), inputs, self._copies)
            for spec, tensor in zip(self.signature.inputs, tensors, strict=True):
                if tensor.device != self.device:
                    raise InputType(f"input {spec.name!r} is on {tensor.device}, it must be on {self.device}")
            results = self._results(tensors, None)
            shared = [*self._weight_extents, *(extent(tensor) for tensor in tensors)]
            owned = owned_tensors(results, shared, self.device)
        return {spec.name: tensor for spec, tensor in zip(self.signature.outputs, owned, strict=True)}

    def run_instrumented(self, inputs: Mapping[str, Any], instrument: Instrument) -> dict[str, Array]:
        """Call the program, with `instrument` called around every call that the program makes.

        Of one that is replayed these are those of its kernels.
        """
        if (found := self._replays.find((), inputs)) is not None:
            with self._lock:
                return dict(zip(self._outputs, found[0](found[1], instrument), strict=True))
        with self._lock:
            return self._called(self._arguments((), inputs), instrument)

    def sizes(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Return the size that these inputs, by name, give each symbolic dim. Raise InputShape."""
        return bind(self.signature, [tuple(inputs[spec.name].shape) for spec in self.signature.inputs])

    def _arguments(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[tvm_ffi.Tensor]:
        return self._placed(self._tensors(args, named, self._copies))

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

    def _called(self, tensors: list[tvm_ffi.Tensor], instrument: Instrument | None) -> dict[str, Array]:
        """The outputs for inputs that were checked, by a replay where there is one for their shapes."""
        if (replay := self._replays.of(tensors)) is not None:
            arrays = replay([numpy_view(tensor) for tensor in tensors], instrument)
            return dict(zip(self._outputs, arrays, strict=True))
        outputs = self._run(tensors, instrument)
        self._replays.note(tensors, self._record)
        return outputs

    def _run(self, tensors: list[tvm_ffi.Tensor], instrument: Instrument | None) -> dict[str, Array]:
        """The outputs; the lock is held, also while they are told apart from inputs, whose copies are used again."""
        results = self._results(tensors, instrument)
        shared = [*self._weight_extents, *(extent(tensor) for tensor in tensors)]
        arrays = owned_arrays(results, shared)
        return {spec.name: array for spec, array in zip(self.signature.outputs, arrays, strict=True)}

    def _record(self, tensors: list[tvm_ffi.Tensor]) -> Replay | None:
        """A replay of a run on tensors of these values, None where there is none. The lock is held."""
        return self._recorded([copied_to(tensor, CPU) for tensor in tensors])

    def _recorded(self, tensors: list[tvm_ffi.Tensor]) -> Replay | None:
        """The same, of a run on the tensors themselves."""
        if not self._is_small:
            return None
        recorder = Recorder(self._library, self._weight_extents)
        results = self._results(tensors, recorder)
        if recorder.steps is None:
            return None
        threads = self._work.threads(recorder.names, bind(self.signature, [tensor.shape for tensor in tensors]))
        return Replay(recorder, tensors, results, threads)

    def _results(self, tensors: list[tvm_ffi.Tensor], instrument: Instrument | None) -> list[tvm_ffi.Tensor]:
        if instrument is not None:
            self._vm.set_instrument(tvm_ffi.convert_func(instrument))
        try:
            if self._on_host:
                results = call(self.threads, self._main, *tensors, *self._tail)
            else:
                results = self._main(*tensors, *self._tail)
        except FAILURES as error:
            raise ArtifactError(f"the program failed: {first_line(error)}") from error
        finally:
            if instrument is not None:
                self._vm.set_instrument(None)
        if len(results) != len(self.signature.outputs):
            raise ArtifactCorrupt(f"it gave {len(results)} outputs; its manifest has {len(self.signature.outputs)}")
        return list(results)


def _machine(library: Any, device: tvm_ffi.Device) -> tuple[VirtualMachine, Any, int]:
    try:
        vm = VirtualMachine(library, device)
        return vm, vm["main"], int(vm.module["get_function_arity"]("main"))
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ArtifactCorrupt(f"the library holds no program of ours: {first_line(error)}") from error


def _adopt(weight: Any) -> tvm_ffi.Tensor:
    array = np.ascontiguousarray(weight)
    aligned = array.__array_interface__["data"][0] % ALIGN == 0 and array.size
    return wrap_numpy(array) if aligned else aligned_copy(array, array.dtype.name, array.shape)
