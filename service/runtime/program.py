"""A compiled program with a state of its own: what one call at a time may use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import ArtifactCorrupt, ArtifactError
from relaxc.service.runtime.dims import bind, valued
from relaxc.service.runtime.library import failure, first_line
from relaxc.service.runtime.replay import FAILURES, Instrument, Recorder, Replay, Work, fits
from relaxc.service.runtime.replays import Replays
from relaxc.service.runtime.state import State
from relaxc.service.runtime.tensors import Array, Copies, Extent, extent, numpy_view, owned_arrays
from relaxc.service.runtime.threads import call
from relaxc.service.runtime.tvm_runtime import CPU, VirtualMachine, copied_to

__all__ = ["Code", "Program"]


@dataclass(frozen=True, slots=True)
class Code:
    """What all programs of a session share; `weights` are on `device`, in the order in which `main` takes them."""

    library: Any
    weights: Sequence[tvm_ffi.Tensor]
    weight_extents: Sequence[Extent]
    manifest: Manifest
    device: tvm_ffi.Device
    threads: int

    @property
    def on_host(self) -> bool:
        """Whether it runs on the CPU."""
        return self.manifest.target.kind != "cuda"


class Program:
    """A virtual machine, its memory, copies of inputs and replays. Who calls it has taken `lock`."""

    def __init__(self, code: Code) -> None:
        """Raise ArtifactCorrupt where the library has no program that fits its manifest."""
        manifest = code.manifest
        self.lock = threading.Lock()
        self.copies: Copies = {}
        """Copies of inputs, which the next call overwrites."""
        self._code = code
        self._outputs = tuple(spec.name for spec in manifest.signature.outputs)
        self._work = Work(manifest.schedule, code.threads)
        # A replay asks for nothing but shapes.
        asks_values = bool(valued(manifest.signature))
        self._states = len(manifest.signature.state)
        self._is_small = (
            not asks_values and not self._states and fits(manifest.target, manifest.schedule, code.weight_extents)
        )
        self.replays = Replays(manifest.signature, any_fits=self._is_small)
        self._vm, self._main, arity = _machine(code.library, code.device)
        inputs = len(manifest.signature.inputs) + self._states
        if arity not in (inputs, inputs + 1) or (code.weights and arity == inputs):
            raise ArtifactCorrupt(f"its main takes {arity} arguments; the manifest names {inputs} inputs and weights")
        self._tail = [tvm_ffi.convert(code.weights)] if arity > inputs else []

    def called(
        self, tensors: list[tvm_ffi.Tensor], instrument: Instrument | None, state: State | None = None
    ) -> dict[str, Array]:
        """Return the outputs for inputs that were checked, by a replay where there is one for their shapes."""
        if state is not None:
            with state.lock:
                results = self.stepped(tensors, instrument, state)
                arrays = owned_arrays(results, [*self._shared(tensors), *state.extents])
            return dict(zip(self._outputs, arrays, strict=True))
        if (replay := self.replays.of(tensors)) is not None:
            arrays = replay([numpy_view(tensor) for tensor in tensors], instrument)
            return dict(zip(self._outputs, arrays, strict=True))
        results = self.results(tensors, instrument)
        outputs = dict(zip(self._outputs, owned_arrays(results, self._shared(tensors)), strict=True))
        self.replays.note(tensors, self._record)
        return outputs

    def _shared(self, tensors: list[tvm_ffi.Tensor]) -> list[Extent]:
        return [*self._code.weight_extents, *(extent(tensor) for tensor in tensors)]

    def stepped(
        self, tensors: list[tvm_ffi.Tensor], instrument: Instrument | None, state: State
    ) -> list[tvm_ffi.Tensor]:
        """Return the outputs, which may lie in the state, of a call that changes it; who calls holds its lock."""
        results = self.results([*tensors, *state.tensors], instrument)
        return state.adopt(results, self._shared(tensors))

    def _record(self, tensors: list[tvm_ffi.Tensor]) -> Replay | None:
        """A replay of a run on tensors of these values, None where there is none."""
        return self.recorded([copied_to(tensor, CPU) for tensor in tensors])

    def recorded(self, tensors: list[tvm_ffi.Tensor]) -> Replay | None:
        """Return a replay of a run on the tensors themselves, None where there is none."""
        if not self._is_small:
            return None
        recorder = Recorder(self._code.library, self._code.weight_extents)
        results = self.results(tensors, recorder)
        if recorder.steps is None:
            return None
        sizes = bind(self._code.manifest.signature, [tensor.shape for tensor in tensors])
        return Replay(recorder, tensors, results, self._work.threads(recorder.names, sizes))

    def results(self, tensors: list[tvm_ffi.Tensor], instrument: Instrument | None) -> list[tvm_ffi.Tensor]:
        """Return what the virtual machine gives. Raise ArtifactError where the program fails."""
        if instrument is not None:
            self._vm.set_instrument(tvm_ffi.convert_func(instrument))
        try:
            if self._code.on_host:
                results = call(self._code.threads, self._main, *tensors, *self._tail)
            else:
                results = self._main(*tensors, *self._tail)
        except FAILURES as error:
            raise ArtifactError(failure(error)) from error
        finally:
            if instrument is not None:
                self._vm.set_instrument(None)
        wanted = len(self._outputs) + self._states
        if len(results) not in (wanted, wanted + bool(self._states)):
            raise ArtifactCorrupt(f"it gave {len(results)} results; its manifest has {wanted}")
        return list(results)


def _machine(library: Any, device: tvm_ffi.Device) -> tuple[VirtualMachine, Any, int]:
    try:
        vm = VirtualMachine(library, device)
        return vm, vm["main"], int(vm.module["get_function_arity"]("main"))
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ArtifactCorrupt(f"the library holds no program of ours: {first_line(error)}") from error
