"""Loading an artifact: what must hold before its code is run.

Loading runs code of the file: load only artifacts that you trust. Their manifest can be read without that trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import tvm_ffi

from relaxc.service.artifact.blocks import check_file
from relaxc.service.artifact.manifest import Manifest, code_extent
from relaxc.service.runtime.admission import check_digest, check_machine, device_of
from relaxc.service.runtime.cuda import require_memory
from relaxc.service.runtime.library import chosen, load_library
from relaxc.service.runtime.session import Session
from relaxc.service.runtime.weights import map_weights, uploaded

__all__ = ["load"]


def load(
    path: Path | str, *, device: str | None = None, threads: int | None = None, digest: str | None = None
) -> Session:
    """Return the artifact at `path`, ready to be called. Runs code of the file: load only what you trust.

    `device` is `cpu`, `cuda` or `cuda:N`; by default what it was compiled for. `threads` is for CPU kernels; by
    default the setting `threads`. Every byte is checked against the digests in the file, once a process, by all cores;
    with `digest`, the file's SHA-256 must be that.
    Of an artifact for several CPUs or GPUs the part for this machine is loaded, and the session has its manifest alone.
    Raise ArtifactNotFound, ArtifactCorrupt, or MachineMismatch with what this machine lacks, before code is loaded.
    """
    path = Path(path)
    whole = Manifest.read(path)
    place = chosen(whole.targets)
    manifest = whole.parts[place]
    check_machine(manifest.target, manifest.requires, whole.targets)
    weights_path, section = check_file(path, whole)
    where = device_of(manifest.target, device)
    if digest is not None:
        check_digest(path, digest)
        if manifest.weights.file is not None and manifest.weights.sha256 is not None:
            check_digest(weights_path, manifest.weights.sha256)
    mapped = map_weights(weights_path, section.offset, section.size_bytes, manifest.weights.tensors)
    held: Sequence[tvm_ffi.Tensor] = mapped
    if manifest.target.kind == "cuda":
        run_bytes = manifest.passes.get("memory", {}).get("planned_bytes", 0)
        check = partial(require_memory, run_bytes=run_bytes, device=where.index)
        held = uploaded(mapped, weights_path, section.offset, where, part=place, check=check)
    return Session(load_library(path, code_extent(path, whole, place)), held, manifest, where, threads)
