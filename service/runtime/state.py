"""What a session keeps from one call to the next: a cache, a filter's memory."""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from relaxc.service.errors import ArtifactCorrupt, InputName, InputShape, InputType, StateOverflow
from relaxc.service.runtime.arguments import codes_of
from relaxc.service.runtime.tensors import (
    Array,
    Extent,
    aligned_copy,
    extent,
    item_bytes,
    numpy_dtype,
    numpy_view,
    on_host,
)
from relaxc.service.runtime.tvm_runtime import CPU, copied_to, copy, empty
from relaxc.service.signature import Signature, TensorSpec

__all__ = ["State"]


class State(Mapping[str, Array]):
    """The arrays that a session keeps, by name: reading one gives a copy, assigning to one sets it.

    Each call of the session changes them; a call that fails before its kernels run, or that would write outside of
    them, leaves all as they were.
    """

    def __init__(self, signature: Signature, initial: Sequence[tvm_ffi.Tensor], device: tvm_ffi.Device) -> None:
        """`initial` are the first values of those that the signature names, on `device`."""
        self.lock = threading.RLock()
        """Held by who calls a program on it."""
        self.tensors: list[tvm_ffi.Tensor] = []
        """What a program takes behind its inputs, on the device."""
        self._signature, self._initial, self._device = signature, initial, device
        self._specs = {spec.name: spec for spec in signature.state}
        self.reset()

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __getitem__(self, name: str) -> Array:
        """Return a copy. Raise KeyError."""
        spec = self._spec(name)
        place = list(self._specs).index(name)
        with self.lock:
            array = numpy_view(copied_to(self.tensors[place], CPU))
        return array if spec.codes is None else array.view(numpy_dtype(spec.codes))

    def __setitem__(self, name: str, value: Any) -> None:
        """Set one to an array of its dtype and shape. Raise KeyError, InputType or InputShape."""
        self._set({name: value})

    def reset(self) -> None:
        """Have the values of before the first call."""
        first = dict(zip(self._signature.initial, self._initial, strict=True))
        made = [
            copied_to(first[spec.name], self._device) if spec.name in first else _zeros(spec, self._device)
            for spec in self._specs.values()
        ]
        with self.lock:
            self.tensors = made

    def copy(self) -> State:
        """Return another of the same values."""
        made = State.__new__(State)
        made.lock = threading.RLock()
        made._signature, made._initial, made._device = self._signature, self._initial, self._device
        made._specs = self._specs
        with self.lock:
            made.tensors = [copied_to(tensor, self._device) for tensor in self.tensors]
        return made

    def save(self, path: Path | str) -> None:
        """Write the values to a file as numpy's `.npz`, what numpy has no dtype for as the numbers of its bits; a crash
        leaves the old.
        """
        path = Path(path)
        beside = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            with beside.open("wb") as file:
                np.savez(file, allow_pickle=False, **{name: _bits(array) for name, array in self.items()})
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def load(self, path: Path | str) -> None:
        """Set all to what `save` wrote.

        Raise ArtifactCorrupt for a file that is none of these, and InputName, InputType or InputShape for one of
        another model; nothing is changed then.
        """
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise ArtifactCorrupt(f"{path} holds no state: {error}", path=str(path)) from error
        if set(found) != set(self._specs):
            names = ", ".join(sorted(set(found) ^ set(self._specs)))
            raise InputName(f"{path} is the state of another model, {names} apart", path=str(path))
        self._set({name: _typed(found[name], spec) for name, spec in self._specs.items()})

    @property
    def extents(self) -> list[Extent]:
        """The memory that it takes up."""
        return [extent(tensor) for tensor in self.tensors]

    def adopt(self, results: Sequence[tvm_ffi.Tensor], shared: Sequence[Extent]) -> list[tvm_ffi.Tensor]:
        """Return the outputs among what a program gave, and keep its next values, the last; `shared` is not ours.

        What was written in place is kept as it is, what was computed is taken over, or copied where it lies in
        `shared`, in an output or in another one. Raise StateOverflow where the call would have written outside: the
        program wrote nothing then.
        """
        outputs, rest = len(self._signature.outputs), results[len(self._signature.outputs) :]
        if len(rest) > len(self.tensors):
            excess, rest = rest[0], rest[1:]
            if (places := int(numpy_view(copied_to(excess, CPU)))) > 0:
                raise StateOverflow(
                    f"the call writes {places} places outside of the state, which is as it was", places=places
                )
        taken = [*shared, *(extent(output) for output in results[:outputs]), *self.extents]
        made = []
        for held, tensor in zip(self.tensors, rest, strict=True):
            start, end = extent(tensor)
            if start == held.data_ptr():
                made.append(held)
                continue
            apart = not any(start < last and first < end for first, last in taken)
            made.append(tensor if apart and tensor.numel() > _SMALL else copied_to(tensor, self._device))
            taken.append((start, end))
        self.tensors = made
        return list(results[:outputs])

    def _spec(self, name: str) -> TensorSpec:
        if name not in self._specs:
            raise KeyError(f"there is no state {name!r}; there are {', '.join(self._specs)}")
        return self._specs[name]

    def _set(self, values: Mapping[str, Any]) -> None:
        checked = {name: _checked(self._spec(name), value) for name, value in values.items()}
        with self.lock:
            for place, name in enumerate(self._specs):
                if name in checked:
                    self.tensors[place] = copied_to(checked[name], self._device)


_SMALL = 16 << 10
"""Elements: what is smaller may be a constant inside the library."""


def _checked(spec: TensorSpec, value: Any) -> tvm_ffi.Tensor:
    """A tensor of the host with this value."""
    if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack__"):
        tensor = tvm_ffi.from_dlpack(value)
        value = numpy_view(tensor if on_host(tensor) else copied_to(tensor, CPU))
    array = np.asarray(value if spec.codes is None else codes_of(spec.name, value, spec.codes))
    if array.dtype != numpy_dtype(spec.dtype):
        raise InputType(f"the state {spec.name!r} is {spec.dtype}, not {array.dtype}", name=spec.name)
    if array.shape != spec.shape:
        found, wanted = list(array.shape), list(spec.shape)
        raise InputShape(f"the state {spec.name!r} has the shape {wanted}, not {found}", name=spec.name)
    return aligned_copy(np.asarray(array, order="C"), spec.dtype, array.shape)


def _zeros(spec: TensorSpec, device: tvm_ffi.Device) -> tvm_ffi.Tensor:
    shape = [int(dim) for dim in spec.shape]
    there = empty(shape, spec.dtype, device)
    if on_host(there):
        numpy_view(there)[...] = np.zeros((), numpy_dtype(spec.dtype))
    else:
        size = int(np.prod(shape, dtype=np.int64)) * item_bytes(spec.dtype)
        copy(aligned_copy(np.zeros(size, np.uint8), spec.dtype, shape), there)
    return there


def _bits(array: Array) -> Array:
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _typed(bits: Array, spec: TensorSpec) -> Array:
    is_bits = spec.dtype == "bfloat16" and bits.dtype == np.uint16
    return bits.view(numpy_dtype("bfloat16")) if is_bits else bits
