"""A case that fails made smaller while it fails in the same way: fewer outputs, nodes, calls and options."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.case import Array, Case, type_of
from tests.fuzz.evaluate import Evaluator, NotEvaluated

__all__ = ["shrink"]


def shrink(case: Case, row: dict[str, Any], ask: Callable[[Case], dict[str, Any]], *, limit_s: float) -> Case:
    """Return the smallest case found for which `ask` gives a row of the same kind, within the time."""
    end = time.monotonic() + limit_s
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(case, row):
            if time.monotonic() > end:
                return case
            found = ask(smaller)
            if _is_same(found, row):
                case, progress = smaller, True
                break
    return case


def _is_same(found: dict[str, Any], row: dict[str, Any]) -> bool:
    """An error has to be the same error, or any other fault would take its place."""
    if found["kind"] != row["kind"]:
        return False
    return row["kind"] not in ("unnamed", "rejected", "refused") or _head(found) == _head(row)


def _head(row: dict[str, Any]) -> str:
    """The words of an error, without numbers and names of values."""
    words = (word for word in str(row.get("said", "")).split() if word.isalpha())
    return " ".join(list(words)[:6])


def _smaller(case: Case, row: dict[str, Any]) -> Iterator[Case]:
    """The large steps first."""
    if len(case.outputs) > 1:
        named = [name for name in case.outputs if name in row.get("outputs", ()) or f"{name}: " in row.get("said", "")]
        half = len(case.outputs) // 2
        for outputs in ([name] for name in named) if named else (case.outputs[:half], case.outputs[half:]):
            if outputs != case.outputs:
                yield case.showing(outputs)
    if len(case.envs) > 1:
        for index in range(len(case.envs)):
            yield case.alone(index)
    yield from _ended_early(case)
    yield from _begun_late(case)
    plain = {"opt_level": 2, "verify": case.options.get("verify", True)}
    if case.options != plain:
        yield Case(**{**vars(case), "options": plain})


def _ended_early(case: Case) -> Iterator[Case]:
    """An inner value for the output: half of the nodes, then fewer."""
    known = _values(case)
    inner = [name for node in case.nodes for name in node.output if name in known[0] and name not in case.outputs]
    for name in inner[: len(inner) // 2 : max(1, len(inner) // 6)] + inner[-3:]:
        types = {**case.types, name: type_of(known[0][name])}
        yield Case(**{**vars(case), "types": types}).showing([name])


def _begun_late(case: Case) -> Iterator[Case]:
    """An inner value as an input, the last first: what computes it goes."""
    known = _values(case)
    inner = [name for node in case.nodes for name in node.output if name in known[0] and name not in case.outputs]
    for name in reversed(inner):
        values = [each[name] for each in known]
        if all(array.size for array in values) and (symbols := _symbols(case, values)) is not None:
            yield case.given(name, values, symbols)


def _symbols(case: Case, values: list[Array]) -> dict[int, str] | None:
    """Which of a value's dims are which symbols, by their sizes in each call; None where one is no symbol."""
    sizes = {
        symbol: tuple(env[name].shape[axis] for env in case.envs)
        for name, dims in case.symbols.items()
        for axis, symbol in dims.items()
    }
    found: dict[int, str] = {}
    for axis, dims in enumerate(zip(*(each.shape for each in values), strict=True)):
        symbol = next((symbol for symbol, known in sizes.items() if known == dims), None)
        if symbol is not None:
            found[axis] = symbol
        elif len(set(dims)) > 1:
            return None
    return found


def _values(case: Case) -> list[dict[str, Array]]:
    evaluator = Evaluator(case.opset)
    try:
        return [evaluator.values(case, env) for env in case.envs]
    except NotEvaluated:
        return [{} for _ in case.envs]
