"""Which of TVM's libraries an artifact needs, and for which architecture a library is."""

from __future__ import annotations

import mmap
from pathlib import Path

from relaxc.service import tvm_libraries
from relaxc.service.artifact.elf import read_sections
from relaxc.service.artifact.manifest import WEIGHTS_SECTION, Manifest
from relaxc.service.errors import ArtifactCorrupt

__all__ = ["machine_of", "needed_libraries"]

_MACHINES = {62: "x86_64", 183: "aarch64"}
_EXTRA_FUNCTIONS = (b"tvm.contrib.", b"runtime.disco.")
"""Names that libtvm_runtime_extra.so registers; the bytecode has those that it calls as text."""


def needed_libraries(artifact: Path, manifest: Manifest) -> list[str]:
    """Return the names of TVM's libraries without which the artifact does not run. Nothing is loaded."""
    names = [tvm_libraries.FFI, tvm_libraries.RUNTIME]
    if _names_one_of(artifact, _EXTRA_FUNCTIONS):
        names.append(tvm_libraries.EXTRA)
    if manifest.target.kind == "cuda":
        names.append(tvm_libraries.CUDA)
    return names


def _names_one_of(artifact: Path, texts: tuple[bytes, ...]) -> bool:
    """Whether the file has one of these texts outside of its weights."""
    weights = read_sections(artifact).get(WEIGHTS_SECTION)
    with artifact.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start, end = (weights.offset, weights.offset + weights.size_bytes) if weights else (len(data), len(data))
        return any(data.find(text, 0, start) >= 0 or data.find(text, end) >= 0 for text in texts)


def machine_of(library: Path) -> str:
    """Return the architecture that an ELF file is for. Raise ArtifactCorrupt for another file."""
    with library.open("rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF" or len(head) < 20:
        raise ArtifactCorrupt(f"{library} is no ELF file", path=str(library))
    number = int.from_bytes(head[18:20], "little")
    return _MACHINES.get(number, f"ELF machine {number}")
