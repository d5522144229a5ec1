"""What the reference gives for drawn inputs, found on another core while this one compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from service.machine import missing_features
from service.request import CompileRequest, ModelFormat
from service.signature import Signature

if TYPE_CHECKING:
    from service.frontend.model import Reference

__all__ = ["Ahead"]

Arrays = Mapping[str, Any]


class Ahead:
    """Runs the reference of a request's ONNX model in a thread, on the inputs that it will be compared on.

    Torch's holds the interpreter's lock for too long. The reference is let go when it has run, before kernels are
    built: the memory is theirs then.
    """

    def __init__(self, request: CompileRequest) -> None:
        self._request = request
        self._found: Future[list[tuple[Arrays, Arrays]]] | None = None

    def begin(self, signature: Signature) -> None:
        """Start once the signature is known, the first time; not where the artifact cannot run here."""
        if self._found is not None or self._request.model.format is not ModelFormat.ONNX:
            return
        if not any(missing_features(target) for target in self._request.target.each):
            thread = ThreadPoolExecutor(max_workers=1)
            self._found = thread.submit(_outputs, self._request, signature)
            thread.shutdown(wait=False)

    def reference(self, make: Callable[[], Reference]) -> Reference:
        """Return the reference that `make` makes, which is made where other inputs are asked for.

        What stopped the thread is forgotten: it stops who asks again.
        """
        found = self._found
        known = found.result() if found is not None and found.exception() is None else []
        if not known:
            return make()
        made = cache(make)

        def run(inputs: Arrays) -> dict[str, Any]:
            outputs = next((outputs for given, outputs in known if _equal(given, inputs)), None)
            return made()(inputs) if outputs is None else dict(outputs)

        return run


def _outputs(request: CompileRequest, signature: Signature) -> list[tuple[Arrays, Arrays]]:
    from service import frontend
    from service.runtime.inputs import drawn

    model = request.model
    run = frontend.reference(model.path, model.format, threads=1, shapes=dict(request.options.shapes))
    draws = drawn(signature, request.options.seed, frontend.input_ranges(model.path, model.format))
    return [(draw.inputs, run(draw.inputs)) for draw in draws]


def _equal(one: Arrays, other: Arrays) -> bool:
    """Whether arrays by name are the same to the bit."""
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype
        and value.shape == other[name].shape
        and value.tobytes() == other[name].tobytes()
        for name, value in one.items()
    )
