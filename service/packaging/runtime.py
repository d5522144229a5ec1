"""What every package has beside its artifact: the library, its source and headers, the example, built for a machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from relaxc.service import tvm_libraries
from relaxc.service.lowering.tools import run_tool

__all__ = ["files_in", "write_runtime"]

_NATIVE = Path(__file__).parent / "native"


def write_runtime(folder: Path, libraries: Sequence[Path], version: str, compiler: str) -> None:
    """Write the runtime to `folder`, over TVM's `libraries` of this version, and build it. Raise ToolMissing."""
    for source in files_in(_NATIVE):
        copy = folder / source.relative_to(_NATIVE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755 if source.suffix == ".sh" else 0o644)
    (folder / "src/version.h").write_text(
        f'// The version of TVM whose runtime this belongs to.\n#pragma once\n#define RELAXC_TVM_VERSION "{version}"\n'
    )
    for library in libraries:
        shutil.copyfile(library, folder / "lib" / library.name)
        (folder / "lib" / library.name).chmod(0o755)
    headers = tvm_libraries.ffi_folder() / "include"
    for name in ("tvm", "dlpack"):
        shutil.copytree(headers / name, folder / "third_party" / name, ignore=shutil.ignore_patterns("__pycache__"))
    _copy_licenses(folder / "licenses")
    run_tool(["sh", "build.sh", compiler], folder)


def _copy_licenses(folder: Path) -> None:
    """TVM's, beside ours, which come with the sources."""
    for distribution, licenses in tvm_libraries.licenses().items():
        for path in licenses:
            shutil.copyfile(path, folder / f"{distribution}-{path.name}")


def files_in(folder: Path) -> Iterator[Path]:
    """Yield every file below `folder`, in order."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
