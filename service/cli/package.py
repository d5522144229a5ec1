"""`relaxc package`: an artifact with all that runs it where there is neither Python nor a compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relaxc.service.cli.options import Artifact, Json, Verbose
from relaxc.service.cli.output import facts, print_json, size

__all__ = ["package"]


def package(
    artifact: Artifact,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to make.", show_default=False)
    ],
    archive: Annotated[bool, typer.Option("--archive", help="Write DIR.tar as well.")] = False,
    runtime: Annotated[
        Path | None,
        typer.Option(
            "--runtime",
            metavar="LIBS",
            help="Folder with TVM's runtime libraries, or its wheels, for an artifact of another architecture.",
        ),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Pack an artifact with all it needs to run without Python: TVM's runtime, a C and C++ interface, an example.

    DIR/bin/relaxc-run runs it; DIR/README.md describes the interface. It needs the same C++ compiler as `relaxc
    compile`.
    """
    from relaxc.service.packaging.package import make_package

    made = make_package(artifact, output, runtime=runtime, archive=archive)
    if json:
        print_json(
            {
                "folder": str(made.folder),
                "archive": str(made.archive) if made.archive else None,
                "files": list(made.files),
                "size_bytes": made.size_bytes,
                "weights_bytes": made.weights_bytes,
                "libraries": list(made.libraries),
            }
        )
        return
    facts(
        [
            (
                "folder",
                f"{made.folder}: {size(made.size_bytes)}, and {size(made.weights_bytes)} of weights",
            ),
            *([("archive", str(made.archive))] if made.archive else []),
            ("runtime", ", ".join(made.libraries)),
            ("run it", f"{made.folder}/bin/relaxc-run"),
        ]
    )
