"""Which traces of MetaSchedule may be applied: read from files of strangers, they must do nothing but schedule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["parse"]

_MOST_BYTES = 64 << 10
_MOST_STEPS = 2000
_MOST = 1 << 20
"""Of any number: no split, tile or vector is longer."""

_STEPS = frozenset(
    (
        *("GetSBlock", "GetLoops", "GetChildBlocks", "GetConsumers", "GetOutputBlocks", "GetProducers"),
        *("SampleCategorical", "SampleComputeLocation", "SamplePerfectTile"),
        *("Split", "Fuse", "Reorder", "AddUnitLoop", "Parallel", "Vectorize", "RFactor", "DecomposeReduction"),
        *("ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline", "CacheRead", "CacheWrite"),
        *("Annotate", "Unannotate", "EnterPostproc"),
    )
)
"""What the space for CPUs is made of, and TVM checks to change no result. Left out with the rest are those that load
objects from JSON (TransformLayout), that change what is computed (UnsafeSetDType, SetScope), and Tensorize."""

_ANNOTATIONS = {
    "meta_schedule.parallel": 4096,
    "meta_schedule.vectorize": 4096,
    "meta_schedule.random_compute_producer": 1,
    "meta_schedule.tiling_structure": 0,
    "meta_schedule.unroll_explicit": 512,
    "meta_schedule.unroll_implicit": 512,
    "pragma_auto_unroll_max_step": 512,
    "pragma_unroll_explicit": 1,
}
"""The keys that may be set, with the largest value: `pragma_import_llvm` would bring code of its own."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,255}")
_REFERENCE = re.compile(r'[blv]\d{1,6}|None|"[A-Z]{1,16}"')
_SCOPES = ("global",)


def parse(text: str) -> list[Any]:
    """Return the instructions and decisions in `text`, for `Trace.apply_json_to_schedule`.

    Raise ValueError for what is no trace, has an instruction that is not known, or leaves a decision to chance.
    """
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has {len(text)} bytes, {_MOST_BYTES} are allowed")
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    if not _is_list(data, 2) or not all(isinstance(part, list) for part in data):
        raise ValueError("a trace is a list of instructions and one of decisions")
    steps, decisions = data
    if len(steps) > _MOST_STEPS:
        raise ValueError(f"it has {len(steps)} instructions, {_MOST_STEPS} are allowed")
    for step in steps:
        _check_step(step)
    _check_decisions(steps, decisions)
    return [steps, decisions]


def _check_step(step: Any) -> None:
    if not _is_list(step, 4) or not isinstance(step[0], str) or not all(isinstance(part, list) for part in step[1:]):
        raise ValueError("an instruction is a name, inputs, attributes and outputs")
    name, inputs, attributes, outputs = step
    if name not in _STEPS:
        raise ValueError(f"the instruction {name[:64]} is not one of those that are replayed")
    if not all(_is_number(one) or _matches(_REFERENCE, one) for one in inputs):
        raise ValueError(f"{name} has inputs that are no numbers, blocks, loops or variables")
    if not all(_matches(_REFERENCE, one) and one[0] in "blv" for one in outputs):
        raise ValueError(f"{name} has outputs that have no proper name")
    if not all(_is_attribute(one) for one in attributes):
        raise ValueError(f"{name} has attributes that are no numbers and no names")
    if name in _REFUSALS and (refused := _REFUSALS[name](inputs, attributes)):
        raise ValueError(f"{name}: {refused}")


def _check_decisions(steps: list[Any], decisions: list[Any]) -> None:
    """Every instruction that samples has a decision that it can make: what is missing TVM would draw at random."""
    made: dict[int, Any] = {}
    for decision in decisions:
        if not _is_list(decision, 2) or not _is_number(decision[0]):
            raise ValueError("a decision is the place of an instruction and a value")
        made[decision[0]] = decision[1]
    if set(made) != {place for place, step in enumerate(steps) if step[0].startswith("Sample")}:
        raise ValueError("the decisions are not those of the instructions that sample")
    for place, value in made.items():
        name, _, attributes, _ = steps[place]
        if not _DECIDABLE[name](value, attributes):
            raise ValueError(f"{name} cannot decide on this")


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _is_number(value: Any) -> bool:
    return type(value) is int and abs(value) <= _MOST


def _is_attribute(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 64 and all(_is_scalar(one) for one in value)
    return _is_scalar(value) or _matches(_NAME, value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool) or _is_number(value) or (isinstance(value, float) and 0 <= value <= 1)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _annotation(inputs: list[Any], attributes: list[Any]) -> str:
    key = attributes[0] if len(attributes) == 1 else None
    if key not in _ANNOTATIONS:
        return "the key is not one of those that are set"
    largest = [value for value in inputs[1:] if type(value) is int and not 0 <= value <= _ANNOTATIONS[key]]
    return f"{key} is at most {_ANNOTATIONS[key]}" if largest else ""


def _scope(inputs: list[Any], attributes: list[Any]) -> str:
    del inputs
    return "" if len(attributes) == 2 and attributes[1] in _SCOPES else f"the scope is not {' or '.join(_SCOPES)}"


def _categories(inputs: list[Any], attributes: list[Any]) -> str:
    del inputs
    sound = len(attributes) == 2 and all(isinstance(one, list) for one in attributes)
    sound = sound and len(attributes[0]) == len(attributes[1]) > 0 and all(type(one) is int for one in attributes[0])
    return "" if sound and max(attributes[0]) <= _ANNOTATIONS["meta_schedule.unroll_explicit"] else "no such choice"


def _tile(inputs: list[Any], attributes: list[Any]) -> str:
    del inputs
    sound = len(attributes) == 2 and all(_is_number(one) and one >= 1 for one in attributes)
    return "" if sound and attributes[0] <= 16 else "no such tiling"


_REFUSALS: Mapping[str, Callable[[list[Any], list[Any]], str]] = {
    "Annotate": _annotation,
    "CacheRead": _scope,
    "CacheWrite": _scope,
    "SampleCategorical": _categories,
    "SamplePerfectTile": _tile,
}

_DECIDABLE: Mapping[str, Callable[[Any, list[Any]], bool]] = {
    "SampleCategorical": lambda value, attributes: _is_number(value) and 0 <= value < len(attributes[0]),
    "SampleComputeLocation": lambda value, attributes: _is_number(value) and value >= -2 and not attributes,
    "SamplePerfectTile": lambda value, attributes: (
        _is_list(value, attributes[0]) and all(_is_number(one) and one >= 1 for one in value)
    ),
}
