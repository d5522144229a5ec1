"""The layering of docs/layout.md, over the syntax tree: imports point downward, libraries stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up: a component may import what is on a floor below its own. A component is a module or package right
# below service/, `schedules`, or a part of a package that has a floor of its own; such parts on one floor are one room.
FLOORS = (
    ("codes", "errors", "processor", "cgroups"),
    ("config", "signature", "tvm_libraries"),
    ("request", "dump", "rounding"),
    ("input_files", "machine", "schedules", "process"),
    ("records",),
    ("frontend", "passes", "lowering", "artifact", "runtime"),
    ("tuning.measure", "tuning.task"),
    ("tuning", "repro", "packaging"),
    ("compiling",),
    ("compiler",),
    ("tuner",),
    ("drift",),
    ("client", "jobs"),
    ("torch_backend",),
    ("api",),
    ("cli",),
    ("__main__",),
)
LEVELS = {name: level for level, floor in enumerate(FLOORS) for name in floor}
STAGES = frozenset({"frontend", "passes", "lowering", "artifact", "runtime", "tuning", "tuning.measure"})

# The rooms of `jobs`, likewise: what one process does for itself and what a server does know nothing of each other, and
# `entries` is called by name, in a child.
JOBS = (
    ("entries", "job", "blobs", "disks", "kernels"),
    ("job_error", "once", "database"),
    ("local", "objects", "webhooks", "workers"),
    ("queue", "ray", "scrub"),
    ("upkeep",),
    ("backend",),
    ("on_ray",),
    ("working",),
)

# Who → what it may import although the floors forbid it, and why. Prefixes of module names.
EXCEPTIONS = {
    (
        "relaxc.service.runtime.loading",
        "relaxc.service.artifact",
    ): "what is loaded says what it needs",
    (
        "relaxc.service.runtime.session",
        "relaxc.service.artifact.manifest",
    ): "an artifact says itself how it is to be called",
    (
        "relaxc.service.runtime.program",
        "relaxc.service.artifact.manifest",
    ): "and what its program has",
}
MAX_EXCEPTIONS = 6

# `schedules` is low, but only these may use it.
# `passes` asks for the hardware row (a blocked layout has the width of a vector), and for what reads and builds TIR.
USES_SCHEDULES = (
    "relaxc.service.lowering",
    "relaxc.service.tuning",
    "relaxc.service.records",
    "relaxc.service.passes",
    "relaxc.schedules",
)

# Stages that a shell may import inside functions only: they load numpy, tvm or a framework.
NOT_AT_IMPORT = {
    "cli": (
        "relaxc.service.api",
        "relaxc.service.client",
        "relaxc.service.runtime",
        "relaxc.service.frontend",
        "relaxc.service.passes",
        "relaxc.service.compiler",
        "relaxc.service.jobs",
        "relaxc.service.packaging",
    )
}

FRAMEWORKS = ("tvm", "torch", "onnx", "onnxruntime", "transformers", "triton")

# Library → the modules that may import it at module level, and those that may inside a function too. Prefixes.
LIBRARIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tvm": (
        (
            "relaxc.service.frontend",
            "relaxc.service.passes",
            "relaxc.service.lowering",
            "relaxc.service.tuning",
            "relaxc.service.runtime",
            "relaxc.schedules",
        ),
        (
            "relaxc.service.codes",
            "relaxc.service.lowering.target",
            "relaxc.service.process.worker",
            "relaxc.service.compiler",
            "relaxc.service.records",
            "relaxc.service.process.timings",
        ),
    ),
    "torch": (
        ("relaxc.service.torch_backend", "relaxc.torch_backend"),
        ("relaxc.service.frontend", "relaxc.service.runtime", "relaxc.service.jobs"),
    ),
    "onnx": (("relaxc.service.frontend",), ()),
    "onnxruntime": ((), ("relaxc.service.frontend",)),
    "transformers": ((), ()),
    "triton": ((), ("relaxc.service.lowering.triton_worker",)),
    "fastapi": (("relaxc.service.api",), ()),
    "starlette": (("relaxc.service.api",), ()),
    "uvicorn": (
        ("relaxc.service.api.server", "relaxc.service.api.connections"),
        ("relaxc.service.api", "relaxc.service.cli.serve"),
    ),
    "sse_starlette": (("relaxc.service.api.routes.events",), ()),
    "httpx": (("relaxc.service.client",), ()),
    "tenacity": (("relaxc.service.client",), ()),
    "typer": (("relaxc.service.cli",), ()),
    "xgboost": ((), ("relaxc.service.tuning.cost_model",)),
    "click": ((), ()),
    "rich": ((), ("relaxc.service.cli",)),
    "pydantic": (("relaxc.service.config", "relaxc.service.api"), ()),
    "pydantic_settings": (("relaxc.service.config",), ()),
    "elftools": (("relaxc.service.artifact",), ()),
    "platformdirs": (("relaxc.service.config",), ()),
    "structlog": (("relaxc.service.api.logs", "relaxc.service.api.observe", "relaxc.service.jobs.queue.executor"), ()),
    "prometheus_client": (("relaxc.service.api.metrics",), ()),
    "opentelemetry": ((), ("relaxc.service.api.tracing",)),
    "sqlalchemy": (("relaxc.service.jobs.database",), ()),
    "alembic": (("relaxc.service.jobs.database",), ()),
    "boto3": ((), ("relaxc.service.jobs.blobs",)),
    "ray": ((), ("relaxc.service.jobs.ray.cluster", "relaxc.service.jobs.ray.building")),
    "botocore": ((), ("relaxc.service.jobs.blobs",)),
    "httpcore": (("relaxc.service.jobs.webhooks.deliver", "relaxc.service.jobs.webhooks.public_network"), ()),
}

# These are imported where tvm and the frameworks must not be: help, the API process, an ONNX compile's parent.
LIGHT = (
    "relaxc",
    "relaxc.service",
    "relaxc.service.api",
    "relaxc.service.artifact.key",
    "relaxc.service.artifact.manifest",
    "relaxc.service.artifact.store",
    "relaxc.service.cli",
    "relaxc.service.client",
    "relaxc.service.compiler",
    "relaxc.service.config",
    "relaxc.service.dump",
    "relaxc.service.errors",
    "relaxc.service.frontend.model_file",
    "relaxc.service.jobs",
    "relaxc.service.lowering.target",
    "relaxc.service.machine",
    "relaxc.service.process",
    "relaxc.service.records",
    "relaxc.service.request",
    "relaxc.service.signature",
)


@dataclass(frozen=True)
class Import:
    """`module` imports `imported`; `deferred` means inside a function or for type checkers only."""

    module: str
    imported: str
    deferred: bool
    typing_only: bool
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.imported}"


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for folder in ("relaxc", "service", "schedules"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if folder == "relaxc" else ("relaxc", *parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(module: str) -> Iterator[Import]:
    """Every import in a module, relative ones resolved; `from a import b` counts as a.b where that is a module."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST, deferred: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, deferred, typing_only, child.lineno)
            elif isinstance(child, ast.ImportFrom):
                parts = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
                source = ".".join([*parts, *([child.module] if child.module else [])])
                for alias in child.names:
                    name = f"{source}.{alias.name}"
                    yield Import(module, name if name in MODULES else source, deferred, typing_only, child.lineno)
            else:
                in_function = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
                yield from visit(child, in_function or checking, typing_only or checking)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), deferred=False, typing_only=False)


@cache
def every() -> list[Import]:
    """All imports; read once, and not while tests are collected."""
    return [found for module in MODULES for found in imports(module)]


@cache
def ours() -> list[Import]:
    """The imports of modules of ours."""
    return [found for found in every() if found.imported.split(".")[0] == "relaxc"]


def component(module: str) -> str:
    """`relaxc.service.frontend.onnx.frontend` → `frontend`; `relaxc.schedules.cpu` → `schedules`."""
    parts = module.removeprefix("relaxc.").removeprefix("service.").split(".")
    part = ".".join(parts[:2])
    return part if part in LEVELS else parts[0]


def under(module: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a module is one of these, or inside one of them."""
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def excepted(found: Import) -> bool:
    """Whether an import is on the list, or of the public face, which looks its names up when they are used."""
    if found.module == "relaxc":
        return found.typing_only
    return any(under(found.module, (who,)) and under(found.imported, (what,)) for who, what in EXCEPTIONS)


def test_every_component_has_a_level() -> None:
    assert {component(module) for module in MODULES} - {"relaxc", "service"} == set(LEVELS)


def test_exceptions_are_few_and_used() -> None:
    used = [
        (who, what)
        for who, what in EXCEPTIONS
        for f in ours()
        if under(f.module, (who,)) and under(f.imported, (what,))
    ]
    assert len(EXCEPTIONS) <= MAX_EXCEPTIONS
    assert set(used) == set(EXCEPTIONS)


def allowed(found: Import) -> bool:
    """Whether an import stays in its room, points downward, or is excepted."""
    mine, other = component(found.module), component(found.imported)
    if mine == other or excepted(found):
        return True
    if other in ("relaxc", "service"):
        return False
    same_package = mine.split(".")[0] == other.split(".")[0]
    return LEVELS[other] < LEVELS[mine] or (same_package and LEVELS[other] == LEVELS[mine])


def test_packages_are_imported_by_their_names_in_relaxc() -> None:
    """A checkout also has the folders at its root, where `import service` would load a second copy of the package."""
    wrong = [str(found) for found in every() if found.imported.split(".")[0] in ("service", "schedules")]
    assert not wrong, "\n".join(wrong)


def test_imports_point_downward() -> None:
    wrong = [str(found) for found in ours() if not allowed(found)]
    assert not wrong, "\n".join(wrong)


def test_rooms_of_jobs_import_downward() -> None:
    floors = {room: floor for floor, rooms in enumerate(JOBS) for room in rooms}

    def room(module: str) -> str | None:
        """`relaxc.service.jobs.queue.desk` → `queue`; None of another component, and of `jobs` itself."""
        parts = module.split(".")
        return parts[3] if parts[2:3] == ["jobs"] and len(parts) > 3 else None

    assert {room(module) for module in MODULES} - {None} == set(floors)
    wrong = []
    for found in ours():
        mine, other = room(found.module), room(found.imported)
        if mine and other and mine != other and floors[other] >= floors[mine]:
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_schedules_import_tvm_only_and_only_lowering_and_tuning_use_them() -> None:
    inside = [f for f in ours() if component(f.module) == "schedules" and component(f.imported) != "schedules"]
    users = [f for f in ours() if component(f.imported) == "schedules" and not under(f.module, USES_SCHEDULES)]
    assert not inside + users, "\n".join(map(str, inside + users))


def test_only_the_compiler_page_imports_several_stages() -> None:
    for name in ("jobs", "api"):
        used = {component(f.imported) for f in ours() if component(f.module) == name and not f.typing_only} & STAGES
        assert used <= {"artifact", "frontend", "lowering", "runtime", "tuning"}, f"{name} imports {used}"


@pytest.mark.parametrize("shell", NOT_AT_IMPORT)
def test_shells_import_stages_inside_functions(shell: str) -> None:
    wrong = [
        f for f in ours() if component(f.module) == shell and not f.deferred and under(f.imported, NOT_AT_IMPORT[shell])
    ]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_where_it_belongs(library: str) -> None:
    anywhere, in_functions = LIBRARIES[library]
    wrong = []
    for found in every():
        if found.imported.split(".")[0] != library or found.typing_only:
            continue
        if not under(found.module, anywhere if not found.deferred else (*anywhere, *in_functions)):
            wrong.append(f"{found}{' in a function' if found.deferred else ' at module level'}")
    assert not wrong, "\n".join(wrong)


def test_light_modules_do_not_import_frameworks_directly() -> None:
    wrong = [
        f for f in every() if under(f.module, LIGHT[2:]) and not f.deferred and f.imported.split(".")[0] in FRAMEWORKS
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_light_modules_do_not_import_frameworks_at_all() -> None:
    light = sorted(m for m in MODULES if m in LIGHT[:2] or under(m, LIGHT[2:]))
    code = f"""
import importlib, sys
for name in {light!r}:
    importlib.import_module(name)
    loaded = [library for library in {FRAMEWORKS!r} if library in sys.modules]
    if loaded:
        sys.exit(f"import {{name}} loads {{', '.join(loaded)}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
