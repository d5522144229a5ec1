"""Opens an artifact for `run`, `bench` and `profile`, and finds inputs for it."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli.arrays import read_npz
from relaxc.service.errors import InputName, InvalidOption
from relaxc.service.process.environment import environment_variable

if TYPE_CHECKING:
    from relaxc.service.artifact.manifest import Manifest
    from relaxc.service.request import ModelRef
    from relaxc.service.runtime import Session
    from relaxc.service.signature import Signature

__all__ = ["Dims", "Inputs", "check_made_from", "choose_inputs", "open_session", "parse_dims"]

Inputs = Annotated[
    Path | None, typer.Option("--inputs", "-i", metavar="IN.npz", help="Arrays by input name, as np.savez writes them.")
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a symbolic dim of inputs that are filled. Repeatable."),
]


def open_session(path: Path, threads: int | None, *, with_torch: bool = False, with_compiler: bool = False) -> Session:
    """Return the artifact, loaded. Raise ArtifactError.

    `import tvm` imports torch where it can, which takes seconds, and maps its compiler, which takes 110 MiB and half a
    second; unless they are wanted, both are kept out.
    """
    if not with_torch and "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]  # the import system's mark of a module that is not there
    # Set for the import alone: children do not inherit it.
    with contextlib.nullcontext() if with_compiler else environment_variable("TVM_USE_RUNTIME_LIB", "1"):
        from relaxc.service.runtime import load

    return load(path, threads=threads)


def check_made_from(manifest: Manifest, model: ModelRef) -> None:
    """Raise InvalidOption for a model that the artifact was not compiled from."""
    from relaxc.service.frontend import former_digest

    if manifest.digests["model"] not in (model.digest, former_digest(model.path, model.format)):
        raise InvalidOption(f"the artifact was not compiled from {model.path}: their digests differ", option="model")


def choose_inputs(
    signature: Signature, path: Path | None, dims: list[str] | None, seed: int, *, fill: bool
) -> dict[str, Any]:
    """Return arrays from the .npz at `path`, and seeded random ones for the rest if `fill`.

    A symbolic dim of a filled input has the size that `dims` or a given array says. Raise an InputError.
    """
    from relaxc.service.runtime.inputs import random_inputs

    given = read_npz(path, signature) if path else {}
    unknown = sorted(given.keys() - {spec.name for spec in signature.inputs} - dict(signature.constants).keys())
    if unknown:
        names = ", ".join(spec.name for spec in signature.inputs)
        raise InputName(f"{path} has {', '.join(unknown)}; the inputs are {names}", unknown=unknown)
    missing = [spec.name for spec in signature.inputs if spec.name not in given]
    if missing and not fill:
        remedy = "Give them in a .npz with -i, or use --fill random."
        raise InputName(f"inputs are missing: {', '.join(missing)}", remedy=remedy, missing=missing)
    if not missing:
        return given
    sizes = {**_sizes_of(signature, given), **parse_dims(dims or [])}
    return {**random_inputs(signature, seed=seed, sizes=sizes), **given}


def parse_dims(given: list[str]) -> dict[str, int]:
    """Return `["batch=4"]` as sizes by name. Raise InvalidOption."""
    sizes: dict[str, int] = {}
    for text in given:
        name, _, size = text.partition("=")
        if not name or not re.fullmatch(r"\d{1,18}", size) or name in sizes:
            raise InvalidOption(f"--dim takes NAME=SIZE, each name once, got {text!r}", option="dim")
        sizes[name] = int(size)
    return sizes


def _sizes_of(signature: Signature, given: Mapping[str, Any]) -> dict[str, int]:
    names = dict(signature.dims).keys()
    found: dict[str, int] = {}
    for spec in signature.inputs:
        shape = given[spec.name].shape if spec.name in given else ()
        found |= {
            dim: size for dim, size in zip(spec.shape, shape, strict=False) if isinstance(dim, str) and dim in names
        }
    return found
