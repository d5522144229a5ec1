"""What names a finding, so that one found again is known, and the list of those that are known and open."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from onnx import helper

from tests.fuzz.case import Case
from tests.fuzz.evaluate import Evaluator, NotEvaluated

__all__ = ["KNOWN", "Known", "error_head", "signature", "snippet"]

KNOWN = Path(__file__).with_name("known.json")


@dataclass(frozen=True)
class Known:
    """Faults that are open: signatures, and operators that are not drawn at all; each with its reason."""

    signatures: Mapping[str, str]
    operators: Mapping[str, str]

    def has(self, name: str | None) -> bool:
        """Return whether a signature is one of them; `*` in theirs is any text."""
        return any(fnmatchcase(str(name), pattern) for pattern in self.signatures)

    @staticmethod
    def read(path: Path = KNOWN) -> Known:
        """Return the list of a file."""
        said = json.loads(path.read_text())
        return Known(said["signatures"], said["operators"])


def signature(case: Case, row: Mapping[str, Any]) -> str:
    """Return what two findings of one fault mostly share: the kind, and an error's words or the operators."""
    if row["kind"] == "unnamed":
        return f"unnamed: {error_head(row)}"
    words = _operators(case)
    if "precision" in case.options:
        words.append(case.options["precision"])
    return f"{row['kind']}: {' '.join(words)}"


def error_head(row: Mapping[str, Any]) -> str:
    """Return an error's words without what is of this graph alone."""
    said = re.sub(r"0x[0-9a-f]+|\d+|\b[vxc]\d+\b|'[^']*'", "_", str(row.get("said", "")).split("\n")[0])
    return re.sub(r"/\S+", "PATH", said)[:110]


def _operators(case: Case) -> list[str]:
    try:
        known = Evaluator(case.opset).values(case, case.envs[0])
    except NotEvaluated:
        known = {}
    words = []
    for node in case.nodes[:6]:
        dtype = next((known[name].dtype for name in node.input if name in known), "")
        words.append(f"{node.op_type}({dtype})")
    return words + ["…"] * (len(case.nodes) > 6)


def snippet(case: Case, row: Mapping[str, Any]) -> str:
    """Return a Python program that shows the case with relaxc and ONNX Runtime."""
    lines = [f'"""{row["kind"]}: {str(row.get("said", ""))[:600]}"""', *_IMPORTS, "nodes = ["]
    lines += [f"    {_node(node)}," for node in case.nodes]
    lines += ["]", "constants = {", *(f"    {n!r}: {_array(a)}," for n, a in case.constants.items()), "}", "calls = ["]
    lines += [f"    {{{', '.join(f'{name!r}: {_array(array)}' for name, array in env.items())}}}," for env in case.envs]
    types = {name: case.types[name] for name in case.outputs}
    lines += ["]", f"show(nodes, constants, calls, {case.outputs!r}, {types!r}, {case.opset},"]
    lines += [f"     {case.symbols!r}, {case.options!r})", ""]
    return "\n".join(lines)


_IMPORTS = (
    "import numpy as np",
    "from numpy import array, inf, nan",
    "from onnx import TensorProto, helper, numpy_helper",
    "import ml_dtypes",
    "from tests.fuzz.show import show",
    "",
)


def _node(node: Any) -> str:
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    said = "".join(f", {name}={_value(value)}" for name, value in attributes.items())
    domain = f", domain={node.domain!r}" if node.domain else ""
    return f"helper.make_node({node.op_type!r}, {list(node.input)!r}, {list(node.output)!r}{said}{domain})"


def _value(value: Any) -> str:
    if hasattr(value, "dims"):
        from onnx import numpy_helper

        return f"numpy_helper.from_array({_array(numpy_helper.to_array(value))})"
    return repr(list(value) if not isinstance(value, str | bytes | int | float) else value)


def _array(array: Any) -> str:
    dtype = "ml_dtypes.bfloat16" if str(array.dtype) == "bfloat16" else f"np.{array.dtype}"
    if str(array.dtype) == "bool":
        dtype = "np.bool_"
    return f"np.array({array.tolist()!r}, {dtype}).reshape({list(array.shape)})"
