"""`relaxc version`: the versions that an artifact depends on."""

from __future__ import annotations

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import facts, print_json

__all__ = ["version"]

_PACKAGES = ("relaxc", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime", "torch")


def version(json: Json = False, verbose: Verbose = False) -> None:
    """Print the versions of relaxc, TVM and the frameworks that are installed here."""
    import platform

    from relaxc.service.machine import version_of

    found = {"python": platform.python_version(), **{name: version_of(name) for name in _PACKAGES}}
    if json:
        print_json({"versions": found})
    else:
        facts((name, value or "not installed") for name, value in found.items())
