"""`relaxc rebuild`: compile a model again as an artifact says it was, and compare the bytes."""

from __future__ import annotations

import filecmp
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relaxc.service.cli.options import Artifact, Json, Plugins, Records, Verbose
from relaxc.service.cli.output import print_json
from relaxc.service.cli.progress import StageProgress
from relaxc.service.cli.session import check_made_from
from relaxc.service.errors import InvalidOption, RebuildDiffers

if TYPE_CHECKING:
    from relaxc.service.artifact.manifest import Manifest

__all__ = ["rebuild"]


def rebuild(
    artifact: Artifact,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What it was compiled from.", show_default=False)],
    plugin: Plugins = None,
    records: Records = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compile a model again, with the target and the options in an artifact's manifest, and compare the bytes.

    Equal bytes show that the artifact is what this version of relaxc makes of the model, whoever compiled it. Give the
    plugins and records that it was compiled with.
    """
    from relaxc.service.artifact.manifest import Manifest
    from relaxc.service.compiler import prepare
    from relaxc.service.jobs.local.calls import compile_local, warm_for
    from relaxc.service.request import CompileOptions

    manifest = Manifest.read(artifact)
    if manifest.others:
        raise InvalidOption("an artifact for several targets cannot be rebuilt: rebuild one of each", option="target")
    given = {"plugins": list(map(str, plugin or ())), "records": list(map(str, records or ()))}
    warm_for(model)
    request = prepare(model, target=manifest.target, options=CompileOptions.from_dict({**manifest.options, **given}))
    check_made_from(manifest, request.model)
    with tempfile.TemporaryDirectory(prefix="relaxc-rebuild-") as folder:
        with StageProgress() as progress:
            made = compile_local(request, progress, output=Path(folder) / artifact.name, force=True)
        if unlike := _unlike(artifact, made.files):
            changed = _changed(manifest, made.manifest)
            raise RebuildDiffers(f"another compile gives other bytes: {unlike}", manifest=changed)
    if json:
        print_json({"artifact": str(artifact), "model": str(model), "equal": True, "digest": made.digest})
    else:
        print("equal, byte for byte")


def _unlike(artifact: Path, files: tuple[Path, ...]) -> str:
    """The name of the first file that is not as the one beside the artifact, or nothing."""
    for file in files:
        other = artifact.parent / file.name
        if not other.is_file() or not filecmp.cmp(other, file, shallow=False):
            return file.name
    return ""


def _changed(old: Manifest, new: Manifest) -> list[str]:
    """Which parts of the manifests differ."""
    before, after = old.to_dict(), new.to_dict()
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
