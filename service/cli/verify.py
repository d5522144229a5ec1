"""`relaxc verify`: an artifact beside the model that it was compiled from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from relaxc.service.cli import report
from relaxc.service.cli.options import Artifact, Json, Verbose
from relaxc.service.cli.output import facts, print_json
from relaxc.service.cli.progress import StageProgress

__all__ = ["verify"]


def verify(
    artifact: Artifact,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What it was compiled from.", show_default=False)],
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            "-i",
            metavar="IN.npz",
            help="Compare on these inputs too: arrays by input name, several samples along the first axis.",
        ),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare an artifact with the model that it was compiled from, as a compile does, and on inputs of your own.

    The reference is ONNX Runtime or torch. A check that tells little is called weak, and why. The exit code is that
    of verification-failed where the numbers differ.
    """
    from relaxc.service.artifact.manifest import Manifest
    from relaxc.service.jobs.local.calls import verify_local

    manifest = Manifest.read(artifact)
    with StageProgress() as progress:
        found = verify_local(artifact, model, progress, samples=inputs)
    if json:
        print_json({"artifact": str(artifact), "model": str(model), "verification": found})
        return
    said = found["reason"] if found["passed"] is None else found
    facts([("verified", line) for line in report.verification(replace(manifest, verification=said))])
