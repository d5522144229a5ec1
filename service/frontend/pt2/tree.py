"""Names for what a program takes and returns, from the tree spec in the archive, without the classes in it.

torch's own `treespec_loads` needs every class registered, and imports modules that an enum in the JSON names. Here
the JSON is only read:

- an input is named by its argument, `input_ids`, and one inside a container by its path, `cache.0.key`;
- a program that returns one tensor has the output `output`; a tuple or list `output.0`, `output.1`;
- a dict, dataclass, named tuple or ModelOutput gives its keys or fields: `last_hidden_state`, `past_key_values.0.1`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from relaxc.service.errors import ModelMalformed

__all__ = ["input_names", "output_names"]

_PROTOCOL = 1
_MAX_DEPTH = 64


def input_names(spec: str, arguments: list[str] | None) -> list[str]:
    """Return a name for each leaf of the call `forward(*args, **kwargs)`; `arguments` names the positional ones."""
    root = _tree(spec)
    children = root["children_spec"]
    if len(children) != 2:
        raise ModelMalformed("the input tree is not a pair of positional and keyword arguments")
    positional, keyword = children
    names: list[str] = []
    for index, child in enumerate(positional["children_spec"]):
        known = arguments and index < len(arguments)
        names += _leaves(child, arguments[index] if arguments and known else f"arg{index}")
    for key, child in zip(_keys(keyword), keyword["children_spec"], strict=True):
        names += _leaves(child, key)
    return _unique(names)


def output_names(spec: str, fields: dict[str, list[str]]) -> list[str]:
    """Return a name for each leaf of the result; `fields` has the field names of the named tuples in it, by type."""
    root = _tree(spec)
    if root["type"] is None:
        return ["output"]
    return _unique(list(_leaves(root, "" if _named(root, fields) else "output", fields)))


def _tree(spec: str) -> dict[str, Any]:
    try:
        version, root = json.loads(spec)
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelMalformed(f"a tree spec is not JSON: {str(error)[:200]}") from error
    if version != _PROTOCOL:
        raise ModelMalformed(f"a tree spec has protocol {str(version)[:20]}, not {_PROTOCOL}")
    _check(root, 0)
    return dict(root)


def _check(node: Any, depth: int) -> None:
    ok = isinstance(node, dict) and {"type", "context", "children_spec"} <= set(node) and depth < _MAX_DEPTH
    if not ok or not isinstance(node["children_spec"], list) or not isinstance(node["type"], str | None):
        raise ModelMalformed("a tree spec has a node without type, context and children, or is too deep")
    for child in node["children_spec"]:
        _check(child, depth + 1)


def _leaves(node: dict[str, Any], prefix: str, fields: dict[str, list[str]] | None = None) -> Iterator[str]:
    if node["type"] is None:
        yield prefix
        return
    for key, child in zip(_keys(node, fields), node["children_spec"], strict=True):
        yield from _leaves(child, f"{prefix}.{key}" if prefix else key, fields)


def _named(node: dict[str, Any], fields: dict[str, list[str]]) -> bool:
    """Whether the container's children have names of their own, not only positions."""
    return bool(node["children_spec"]) and not all(key.isdigit() for key in _keys(node, fields))


def _keys(node: dict[str, Any], fields: dict[str, list[str]] | None = None) -> list[str]:
    count = len(node["children_spec"])
    for candidate in _candidates(_context(node["context"]), node["type"], fields or {}):
        if len(candidate) == count and all(isinstance(key, str | int) for key in candidate):
            keys = [str(key) for key in candidate]
            if len(set(keys)) == count and all(keys):
                return keys
    return [str(index) for index in range(count)]


def _candidates(context: Any, kind: str, fields: dict[str, list[str]]) -> Iterator[list[Any]]:
    """The lists in a container's context that may be its keys.

    A dict and a ModelOutput have the list of keys itself; a defaultdict has it under `dict_context`; a dataclass
    has [names, names of fields that are None]; a named tuple has its type's name, and the fields elsewhere.
    """
    if isinstance(context, str):
        yield fields.get(context, [])
    if isinstance(context, dict):
        context = context.get("dict_context")
    if isinstance(context, list):
        yield context
        if context and isinstance(context[0], list):
            yield context[0]
    yield fields.get(kind, [])


def _context(context: Any) -> Any:
    """A context is JSON in a string for most classes; some write a bare string or a value."""
    if not isinstance(context, str):
        return context
    try:
        return json.loads(context)
    except (ValueError, RecursionError):
        return context


def _unique(names: list[str]) -> list[str]:
    """Names as they are, a repeated one with a number behind it: keys may contain dots."""
    taken: set[str] = set()
    result = []
    for name in names:
        candidate, count = name or "value", 1
        while candidate in taken:
            candidate, count = f"{name}_{count}", count + 1
        taken.add(candidate)
        result.append(candidate)
    return result
