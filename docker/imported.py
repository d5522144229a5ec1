"""Imports what the service's processes do, so that the image has the byte code of it. Run as the image is built."""

from __future__ import annotations

import importlib
import os
import pkgutil

LIBRARIES = (
    "alembic.command",
    "boto3",
    "onnx.reference",
    "onnxruntime",
    "psycopg",
    "torch.export",
    "tvm.relax.frontend.onnx",
    "tvm.rpc.server",
    "tvm.rpc.tracker",
    "tvm.s_tir.meta_schedule",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
    "xgboost",
)
"""What a module of ours imports in a function, and what a library does."""


def ours() -> list[str]:
    """The names of the service's modules, without those that run when they are imported, and without the backend of
    `torch.compile`: it imports dynamo and Inductor, 40 MB of byte code that no process of the image runs.
    """
    found = []
    package = importlib.import_module("relaxc")
    found += [each.name for each in pkgutil.walk_packages(package.__path__, "relaxc.")]
    runs = ("__main__", "env", "script", "_worker")
    return [name for name in found if not name.endswith(runs) and ".torch_backend" not in name]


if __name__ == "__main__":
    for name in (*LIBRARIES, *ours()):
        try:
            importlib.import_module(name)
        except ImportError as error:  # a library of an extra that the image has not
            print(f"{name}: {error}")
    os._exit(0)  # nothing is to be ended in order: LLVM of two libraries is in this process
