"""Docstrings of public functions begin with a verb: 'Return …', 'Refuse …', not 'Returns …' or 'The …'."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import MODULES, under

ROOMS = ("relaxc.service", "relaxc.schedules")
"""Where it holds."""

NO_VERBS = {"The", "A", "An", "Whether", "What", "Every", "Each", "All", "Its", "How", "Where", "Which"}
NO_VERBS |= {"This", "These", "That", "One", "Nothing", "As", "By"}
VERBS_IN_S = {"Pass", "Process", "Compress", "Express", "Guess"}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public functions of a module and the public methods of its classes; a property is a noun."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.ClassDef):
                pending.append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(node):
                yield node


def is_public(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether it is a function of a public name, and no property."""
    return not node.name.startswith("_") and not any("property" in ast.unparse(each) for each in node.decorator_list)


def begins_with_a_verb(docstring: str) -> bool:
    """Return whether the first word can be a verb in the imperative: capitalized, no article, no third person."""
    word = docstring.split(maxsplit=1)[0].rstrip(".,:;")
    third_person = word.endswith("s") and word not in VERBS_IN_S
    return word.isalpha() and word.istitle() and word not in NO_VERBS and not third_person


@pytest.mark.parametrize("room", ROOMS)
def test_public_functions_say_what_they_do(room: str) -> None:
    wrong = [
        f"{name}.{function.name}: {text.splitlines()[0]}"
        for name, path in MODULES.items()
        if under(name, (room,))
        for function in functions(path)
        if (text := ast.get_docstring(function)) and name != "relaxc.service.cli.app" and not begins_with_a_verb(text)
    ]
    assert not wrong, "\n".join(wrong)
