"""The backend that `torch.compile` calls with each graph, and what has become of them."""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, RelaxcError, UnsupportedModel
from relaxc.service.frontend.pt2.torch_calls import TORCH_ERRORS
from relaxc.service.request import CompileOptions
from relaxc.service.runtime.session import Session
from relaxc.service.torch_backend.captured import Captured, captured
from relaxc.service.torch_backend.results import is_computed, returned
from relaxc.service.torch_backend.weights import Weights

__all__ = ["RunsEagerly", "backend", "report"]

_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_OWN_OPTIONS = ("target", "tune", "trials")
_counts: Counter[str] = Counter()


class RunsEagerly(UserWarning):
    """A graph that relaxc does not take runs as torch runs it."""


def report() -> dict[str, int]:
    """Return how many graphs of this process were `compiled`, came from the `store`, and run `eager`, in all and by
    the reason's code.
    """
    return dict(_counts)


def backend(
    graph: torch.fx.GraphModule,
    arguments: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return what computes a graph of dynamo's: an artifact, made at the first call, or else the graph itself.

    `options` are CompileOptions' by name, `target`, `tune` for what the mode `max-autotune` does, as torch takes no
    options beside a mode, and `trials`, which is how many candidates a kernel it measures. Raise InvalidOption for
    others.
    """
    del arguments  # those of the first call are the same
    if mode not in _MODES:
        raise InvalidOption(f"mode {mode!r} is none of {', '.join(map(str, _MODES[1:]))}", option="mode")
    given = dict(options or {})
    own = {name: given.pop(name) for name in _OWN_OPTIONS if name in given}
    try:
        chosen = CompileOptions(**given)
    except TypeError as error:
        raise InvalidOption(f"options of relaxc: {error}", option="options") from error
    return _Graph(graph, chosen, own, tunes=bool(own.get("tune")) or (mode or "").startswith("max-autotune"))


@dataclass(frozen=True)
class _Made:
    """An artifact of a graph, with the weights that it has."""

    found: Captured
    session: Session
    weights: Weights


class _Graph:
    """One graph, with the artifact for the weights that it was called with last."""

    def __init__(
        self, graph: torch.fx.GraphModule, options: CompileOptions, own: Mapping[str, Any], *, tunes: bool
    ) -> None:
        self._graph, self._options, self._own, self._tunes = graph, options, own, tunes
        self._made: _Made | None = None
        self._is_eager = False

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def __call__(self, *arguments: Any) -> Any:
        """Return the graph's results. Whoever asks for their gradients is refused with a sentence."""
        if self._is_eager or (made := self._ready(arguments)) is None:
            return self._graph(*arguments)
        given = [arguments[place].detach() for place in made.found.tensors]
        try:
            outputs = made.session(*given)
        except RelaxcError as error:  # sizes, say, that its operators do not take
            self._eager(error, for_good=False)
            return self._graph(*arguments)
        computed = map(_tensor, outputs.values())
        if torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in arguments):
            computed = map(_without_gradient, computed)
        return tuple(returned(made.found.results, arguments, computed, made.found.where))

    def _ready(self, arguments: Sequence[Any]) -> _Made | None:
        """The artifact for these weights, which is made where there is none; None where it cannot be."""
        made = self._made  # another thread may call with other weights
        try:
            if made is None or not made.weights.are([arguments[place] for place in made.found.weights]):
                made = self._made = self._compiled(arguments)
            return made
        except RelaxcError as error:
            self._eager(error)
        except TORCH_ERRORS as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            self._eager(UnsupportedModel(f"torch does not export the graph: {first}"))
        return None

    def _compiled(self, arguments: Sequence[Any]) -> _Made:
        from relaxc.service.jobs.local.calls import compile
        from relaxc.service.runtime.loading import load

        found = captured(self._graph)
        if not any(map(is_computed, found.results)):
            raise UnsupportedModel("the graph computes nothing")
        weights = Weights([arguments[place] for place in found.weights])
        target = self._own.get("target", "auto")
        with tempfile.TemporaryDirectory(prefix="relaxc-") as folder:
            path = Path(folder) / "graph.pt2"
            found.export(arguments, path)
            made = compile(path, target=target, options=self._tuned(path, target))
        session = load(made.path)
        _counts["store" if made.cached else "compiled"] += 1
        return _Made(found, session, weights)

    def _tuned(self, path: Path, target: str) -> CompileOptions:
        """The options, with records of this graph's kernels where the mode asks for them."""
        if not self._tunes:
            return self._options
        from dataclasses import replace

        from relaxc.service.jobs.local.tune import tune
        from relaxc.service.tuning.options import TuneOptions

        records = settings().cache_dir / "torch_records"
        trials = TuneOptions(trials=int(self._own["trials"])) if "trials" in self._own else None
        tune(path, records=records, target=target, options=self._options, tuning=trials)
        return replace(self._options, records=(*self._options.records, str(records)))

    def _eager(self, error: RelaxcError, *, for_good: bool = True) -> None:
        self._is_eager = self._is_eager or for_good
        _counts["eager"] += 1
        _counts[f"eager: {error.code}"] += 1
        told = f"graph runs eagerly, {_counts['eager']} by now: {error.code}: {error.message}"
        warnings.warn(f"relaxc: a {told}", RunsEagerly, stacklevel=3)


def _tensor(array: Any) -> torch.Tensor:
    """An array of the caller's as a tensor of its memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("uint16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def _without_gradient(result: torch.Tensor) -> torch.Tensor:
    """A result of floats as what asks for a gradient, which there is none of."""
    if not result.is_floating_point():
        return result
    found: torch.Tensor = _Inference.apply(torch.empty(0, requires_grad=True), result)
    return found


class _Inference(torch.autograd.Function):  # type: ignore[misc]  # mypy does not follow torch
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            'torch.compile(backend="relaxc") is for inference: it computes no gradients. '
            "Call the model under torch.no_grad(), or train it with another backend."
        )
