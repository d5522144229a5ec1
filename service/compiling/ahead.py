"""What the references give for drawn inputs, found on another core while this one compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from relaxc.service.machine import missing_features
from relaxc.service.request import CompileRequest, ModelFormat
from relaxc.service.signature import Signature

if TYPE_CHECKING:
    from relaxc.service.frontend.model import Reference

__all__ = ["Ahead"]

Arrays = Mapping[str, Any]

_OTHERS = 1 << 20
"""From the seed of the first moved runs to that of all others: no node of a model has the numbers of another's."""


class Ahead:
    """Runs the references of a request's ONNX model in a thread, on the inputs that it will be compared on.

    Torch's hold the interpreter's lock for too long. Each is let go when it has run, most of them before kernels are
    built: the memory is theirs then. Of a model that quantizes those are the reference, what does not round, and the
    runs with its quantizations moved, which are of no use to any other.
    """

    def __init__(self, request: CompileRequest) -> None:
        self._request = request
        self._found: Future[list[_Ran]] | None = None
        self._unquantized: Future[list[_Ran]] | None = None
        self._moved: Future[list[_Ran]] | None = None

    def begin(self, signature: Signature) -> None:
        """Start once the signature is known, the first time; not where the artifact cannot run here."""
        if self._found is not None or self._request.model.format is not ModelFormat.ONNX or signature.state:
            return
        if not any(missing_features(target) for target in self._request.target.each):
            thread = ThreadPoolExecutor(max_workers=1)
            draws = thread.submit(_draws, self._request, signature)
            self._found = thread.submit(_outputs, self._request, draws)
            self._unquantized = thread.submit(_unquantized, self._request, draws)
            if self._request.target.kind != "cuda":  # whose sums decide by how much
                self._moved = thread.submit(_moved, self._request, draws, self._unquantized)
            thread.shutdown(wait=False)

    def reference(self, make: Callable[[], Reference]) -> Reference:
        """Return the reference that `make` makes, which is made where other inputs are asked for.

        What stopped the thread is forgotten: it stops who asks again.
        """
        return _known(self._found, make) or make()

    def unquantized(self, make: Callable[[], Reference | None]) -> Reference | None:
        """Return what does not round as `reference` does the reference; None where there is none."""
        return _known(self._unquantized, make) or make()

    def moved(self, make: Callable[[int], Reference | None]) -> Reference | None:
        """Return what `make` makes of a seed, each of whose runs moves anew: the first were the request's seed's, those
        behind them are another's. None where there is none.
        """
        seed = self._request.options.seed
        return _known(self._moved, lambda: make(seed + _OTHERS)) or make(seed)


@dataclass
class _Ran:
    """Inputs, and what runs of them gave that nobody has asked for; `again` where that may be asked for twice."""

    inputs: Arrays
    outputs: list[Arrays]
    again: bool = True

    def taken(self) -> Arrays | None:
        """Return the outputs of the next run; None where none is left."""
        if not self.outputs:
            return None
        return self.outputs[0] if self.again else self.outputs.pop(0)


def _known(found: Future[list[_Ran]] | None, make: Callable[[], Reference | None]) -> Reference | None:
    """Return what looks outputs up, and makes others; None where nothing has run."""
    ran = found.result() if found is not None and found.exception() is None else []
    if not ran:
        return None
    made = cache(make)

    def run(inputs: Arrays) -> dict[str, Any]:
        outputs = next((each.taken() for each in ran if _equal(each.inputs, inputs)), None)
        if outputs is not None:
            return dict(outputs)
        other = made()
        assert other is not None  # it was made before
        return dict(other(inputs))

    return run


def _draws(request: CompileRequest, signature: Signature) -> list[Arrays]:
    from relaxc.service import frontend
    from relaxc.service.runtime.inputs import drawn

    ranges = frontend.input_ranges(request.model.path, request.model.format)
    return [draw.inputs for draw in drawn(signature, request.options.seed, ranges)]


def _outputs(request: CompileRequest, draws: Future[list[Arrays]]) -> list[_Ran]:
    from relaxc.service import frontend

    model = request.model
    run = frontend.reference(model.path, model.format, threads=1, shapes=dict(request.options.shapes))
    return [_Ran(inputs, [run(inputs)]) for inputs in draws.result()]


def _unquantized(request: CompileRequest, draws: Future[list[Arrays]]) -> list[_Ran]:
    from relaxc.service import frontend

    model = request.model
    run = frontend.unquantized_reference(model.path, model.format, threads=1, shapes=dict(request.options.shapes))
    return [] if run is None else [_Ran(inputs, [run(inputs)]) for inputs in draws.result()]


def _moved(request: CompileRequest, draws: Future[list[Arrays]], unquantized: Future[list[_Ran]]) -> list[_Ran]:
    from relaxc.service import frontend
    from relaxc.service.frontend import Move
    from relaxc.service.runtime.moved import FIRST_RUNS, MOVED_BY

    if not unquantized.result():
        return []
    model, shapes, seed = request.model, dict(request.options.shapes), request.options.seed
    run = frontend.moved_reference(model.path, model.format, Move.QUANTIZATIONS, shapes=shapes, seed=seed, by=MOVED_BY)
    if run is None:
        return []
    return [_Ran(inputs, [run(inputs) for _ in range(FIRST_RUNS)], again=False) for inputs in draws.result()]


def _equal(one: Arrays, other: Arrays) -> bool:
    """Whether arrays by name are the same to the bit."""
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype
        and value.shape == other[name].shape
        and value.tobytes() == other[name].tobytes()
        for name, value in one.items()
    )
