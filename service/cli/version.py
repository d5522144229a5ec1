"""`relaxc version`: the versions that an artifact depends on."""

from __future__ import annotations

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import facts, print_json

__all__ = ["installed", "version"]

_PACKAGES = ("relaxc", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime", "torch")


def version(json: Json = False, verbose: Verbose = False) -> None:
    """Print the versions of relaxc, TVM and the frameworks that are installed here."""
    import platform

    found = {"python": platform.python_version(), **{name: installed(name) for name in _PACKAGES}}
    if json:
        print_json({"versions": found})
    else:
        facts((name, value or "not installed") for name, value in found.items())


def installed(package: str) -> str | None:
    """Return the version of a package that is installed here; None if it is not."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
