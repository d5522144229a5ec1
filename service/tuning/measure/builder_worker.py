"""A builder: applies a rule to a PrimFunc with a point, or a trace, and writes the library that a compile would."""

from __future__ import annotations

import importlib
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tvm

from relaxc.schedules.cpu import planning, regroup
from relaxc.schedules.metaschedule.traces import METASCHEDULE, Traced
from relaxc.schedules.operators import operator_from
from relaxc.schedules.plan import Plan
from relaxc.schedules.template import Declined, Rule, Schedule
from relaxc.service.errors import RelaxcError, in_one_line
from relaxc.service.lowering.apply import apply_rule, finish
from relaxc.service.lowering.build import build_kernel
from relaxc.service.lowering.target import to_tvm
from relaxc.service.request import TargetSpec
from relaxc.service.tuning.measure.messages import Build, Built, answer_all, emitted_beside
from relaxc.service.tuning.task import How

__all__ = ["serve"]

_OPT_LEVEL = 2
"""Of the compiles that records are for: `--opt-level 2` and above mark a scheduled PrimFunc alike."""


def serve(connection: Connection, config: dict[str, Any]) -> None:
    """Answer every Build with a Built, until the tuner hangs up."""
    spec = TargetSpec.from_dict(config["target"])
    rules = known_rules(spec.kind, tuple(config["rules"]))
    answer_all(connection, lambda request: build(request, spec, rules))


def known_rules(kind: str, modules: tuple[str, ...]) -> dict[str, Rule]:
    """Return the rules for a target kind by name, and those in the RULES of `modules`."""
    own = "relaxc.schedules.cuda" if kind == "cuda" else "relaxc.schedules.cpu"
    return {rule.name: rule for name in (own, *modules) for rule in importlib.import_module(name).RULES}


def build(request: Build, spec: TargetSpec, rules: dict[str, Rule]) -> Built:
    """Write `request.out`, or say why not; whatever TVM raises is an answer."""
    try:
        found = _scheduled(_unscheduled(request), request.how, to_tvm(spec), rules)
    except ValueError as error:
        return Built("refused", in_one_line(error))
    except Exception as error:  # noqa: BLE001  # a bug of a rule costs its trial, not the search
        return Built("build-failed", in_one_line(error))
    if isinstance(found, str):
        return Built("refused", found)
    try:
        build_kernel(finish(found.func, spec, _OPT_LEVEL), spec, Path(request.out))
    except RelaxcError as error:
        return Built("build-failed", error.message)
    except Exception as error:  # noqa: BLE001  # TVM and LLVM raise whatever they like
        return Built("build-failed", in_one_line(error))
    return Built("built")


def _unscheduled(request: Build) -> Any:
    """The PrimFunc that `request.how` is about; one that is emitted anew is left beside the library."""
    if not request.group_json:
        return _func(request.func_json)
    plan = Plan(operator_from(request.operator), request.how.rule, request.how.parameters)
    layout = planning.layout_of(plan)
    key = request.group_json, layout.to_json()
    if key not in _emitted:
        if len(_emitted) >= _MOST_EMITTED:
            _emitted.clear()
        _emitted[key] = regroup.emitted(_func(request.group_json), plan)
    emitted_beside(request.out).write_text(tvm.ir.save_json(_emitted[key]))
    return _emitted[key]


_MOST_EMITTED = 64
_emitted: dict[tuple[str, str], Any] = {}
"""PrimFuncs by group and layout: points that differ in their loops alone share one."""


def _scheduled(func: Any, how: How, target: Any, rules: dict[str, Rule]) -> Schedule | str:
    """The schedule, or why there is none."""
    rule = METASCHEDULE if how.trace else rules.get(how.rule)
    if rule is None or (rule.name, rule.version) != (how.rule, how.version):
        return f"there is no rule {how.rule} of version {how.version} here"
    if isinstance(rule, Traced):
        replayed = rule.replay(func, how.trace)
        return replayed.reason if isinstance(replayed, Declined) else replayed
    return apply_rule(rule, func, target, how.parameters)


@lru_cache(maxsize=2)
def _func(text: str) -> Any:
    return tvm.ir.load_json(text)
