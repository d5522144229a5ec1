"""What a finding's program prints: a graph's results by relaxc, and by the references."""

from __future__ import annotations

from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.check import check
from tests.fuzz.evaluate import Evaluator, NotEvaluated, Opinion

__all__ = ["show"]


def show(
    nodes: Any, constants: Any, calls: Any, outputs: Any, types: Any, opset: int, symbols: Any, options: Any
) -> None:
    """Compile and compare; print the verdict, and what the references have."""
    case = Case(nodes, constants, outputs, calls, opset, symbols, options, types)
    print(check(case))
    for call in calls:
        for opinion in (Opinion.RUNTIME, Opinion.NUMPY):
            try:
                values = Evaluator(opset).values(case, call, opinion=opinion)
                print(opinion, {name: values[name] for name in outputs})
            except NotEvaluated as error:
                print(opinion, error)
