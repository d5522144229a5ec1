"""A build backend: gathers the modules that running an artifact needs, and has setuptools make a wheel of them.

The modules are those of the checkout under another name: `relaxc.service.runtime` becomes `relaxc_runtime.runtime`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from modules import ROOT, closure, settings_used  # noqa: E402  # pip gives a backend no path but its own

NAME = "relaxc_runtime"
_OURS = re.compile(r"^(\s*(?:from|import)\s+)relaxc\.service\b", re.MULTILINE)


def build_wheel(folder: str, config: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    """Write the wheel into `folder`; its name."""
    out, before = Path(folder).resolve(), Path.cwd()
    with tempfile.TemporaryDirectory() as project:
        write_project(Path(project))
        os.chdir(project)
        try:
            return build_meta.build_wheel(str(out))
        finally:
            os.chdir(before)


def get_requires_for_build_wheel(config: dict[str, Any] | None = None) -> list[str]:
    """Nothing beside what pyproject.toml names."""
    return []


def write_project(project: Path) -> None:
    """Write what setuptools makes the wheel of."""
    sys.path.insert(0, str(ROOT))
    from relaxc.service import tvm_libraries
    from relaxc.service.runtime.pool_build import build_pool

    package = project / NAME
    for module, path in closure().items():
        copy = package / path.relative_to(ROOT / "service")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_OURS.sub(rf"\1{NAME}", path.read_text(encoding="utf-8")), encoding="utf-8")
        if module == "relaxc.service":
            shutil.copyfile(HERE / "face.py", copy)
    (package / "config.py").write_text(_config(), encoding="utf-8")
    libraries = package / "lib"
    libraries.mkdir()
    for name in (tvm_libraries.RUNTIME, tvm_libraries.EXTRA, tvm_libraries.CUDA):
        shutil.copyfile(tvm_libraries.runtime_folder() / name, libraries / name)
    build_pool(libraries / tvm_libraries.POOL, os.environ.get("CXX", "g++"))
    (libraries / "VERSION").write_text(f"{tvm_libraries.runtime_version()}\n")
    for path in tvm_libraries.licenses()["apache-tvm"]:
        shutil.copyfile(path, project / f"{path.name}.apache-tvm")
    for name in ("LICENSE", "NOTICE"):
        shutil.copyfile(ROOT / name, project / name)
    shutil.copyfile(HERE / "README.md", project / "README.md")
    (project / "pyproject.toml").write_text(_pyproject(), encoding="utf-8")
    machine = sysconfig.get_platform().rpartition("-")[2]
    (project / "setup.cfg").write_text(f"[bdist_wheel]\nplat_name = manylinux_2_28_{machine}\n")


def _pyproject() -> str:
    relaxc = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [ffi] = [line for line in relaxc["dependencies"] if line.startswith("apache-tvm-ffi==")]
    return f"""[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "relaxc-runtime"
version = "{relaxc["version"]}"
description = "Runs what relaxc compiled: numpy and apache-tvm-ffi alone"
readme = "README.md"
requires-python = "{relaxc["requires-python"]}"
dependencies = ["{ffi}", "numpy>=2"]
license = "Apache-2.0"
license-files = ["LICENSE", "NOTICE", "*.apache-tvm"]

[project.optional-dependencies]
bfloat16 = ["ml_dtypes"]

[tool.setuptools]
packages = {_packages()}

[tool.setuptools.package-data]
{NAME} = ["lib/*"]
"""


def _packages() -> list[str]:
    folders = {path.parent.relative_to(ROOT / "service").parts for path in closure().values()}
    return sorted(".".join([NAME, *parts]) for parts in folders)


def _config() -> str:
    """A `config` that has the settings which the modules use, as service/config.py declares them."""
    from relaxc.service.config import Settings

    rows = [(name, Settings.model_fields[name]) for name in sorted(settings_used())]
    fields = "\n".join(f"    {name}: {field.annotation.__name__} = {field.default!r}" for name, field in rows)
    return (HERE / "config.txt").read_text(encoding="utf-8").replace("    FIELDS", fields)
