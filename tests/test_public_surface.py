"""What we promise to users: sorted `__all__`s whose names exist, and a public surface that changes on purpose only."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import relaxc
from tests.test_layers import MODULES, ROOT


def exported(path: Path) -> list[str] | None:
    """The literal `__all__` of a module, or None where it has none."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


@pytest.fixture(scope="module")
def with_all() -> dict[str, list[str]]:
    """The names in `__all__` by module."""
    return {module: names for module, path in MODULES.items() if (names := exported(path)) is not None}


def test_the_public_surface() -> None:
    assert relaxc.__all__ == [
        "CompileOptions",
        "CompileRequest",
        "CompiledArtifact",
        "DimBounds",
        "ModelFormat",
        "Precision",
        "Session",
        "Signature",
        "TargetSpec",
        "TensorSpec",
        "TritonKernel",
        "TuneOptions",
        "TuneResult",
        "compile",
        "errors",
        "load",
        "torch_backend",
        "tune",
    ]


def test_every_module_that_defines_something_public_says_so(with_all: dict[str, list[str]]) -> None:
    silent = [
        module
        for module, path in MODULES.items()
        if module not in with_all and any(_public(node) for node in ast.parse(path.read_text(encoding="utf-8")).body)
    ]
    assert not silent, f"no __all__ in {silent}"


def _public(node: ast.stmt) -> bool:
    """A decorated function is not counted: a registry has it, and nobody imports it."""
    named = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    return named and not (isinstance(node, ast.FunctionDef) and node.decorator_list)


def test_all_is_sorted_without_repeats(with_all: dict[str, list[str]]) -> None:
    wanted = {module: sorted(set(names), key=_isort_style) for module, names in with_all.items()}
    assert {module: names for module, names in with_all.items() if names != wanted[module]} == {}


def _isort_style(name: str) -> tuple[int, str]:
    """The order that ruff's RUF022 keeps: CONSTANTS, then Classes, then functions."""
    return (0 if name.isupper() else 1 if name.lstrip("_")[0].isupper() else 2), name


def test_every_name_in_all_resolves(with_all: dict[str, list[str]]) -> None:
    missing = [
        f"{module}.{name}"
        for module, names in with_all.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compiler_of_dreams'"):
        _ = relaxc.compiler_of_dreams


def test_import_relaxc_loads_nothing_heavy() -> None:
    code = "import sys, relaxc; sys.exit(' '.join({'tvm', 'torch', 'onnx', 'numpy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr.strip() == ""


def test_a_folder_of_a_users_own_named_service_is_no_part_of_it(tmp_path: Path) -> None:
    for name in ("service", "schedules", "tuning_logs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n", encoding="utf-8")
    code = "import sys; sys.path.insert(0, ''); import relaxc, relaxc.service.cli.main, relaxc.service.records"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_module_has_a_docstring_and_postponed_annotations() -> None:
    folders = ("relaxc", "service", "schedules", "docs", "examples", "benchmarks", "tests")
    for path in [p for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))]:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        assert not text.strip() or ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no docstring"
        if path.parent.name == "plugins":  # written as a user would
            continue
        has_code = any(not isinstance(node, ast.Expr) for node in tree.body)
        assert not has_code or "from __future__ import annotations" in text, path.relative_to(ROOT)
