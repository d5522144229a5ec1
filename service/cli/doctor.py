"""`relaxc doctor`: what this machine gives to compile, to run jobs and to keep them apart, and what it lacks."""

from __future__ import annotations

import shutil
from typing import Any

import typer

from service.cli.options import Json, Verbose
from service.cli.output import console, facts, print_json, size

__all__ = ["doctor"]


def doctor(json: Json = False, verbose: Verbose = False) -> None:
    """Say what this machine gives: processor, tools, libraries, memory, disk, GPU, and the sandbox of a job.

    Each thing that is missing comes with what would help. The exit code is 1 where nothing can be compiled, or a server
    that others reach would run no job.
    """
    found = _found()
    if json:
        print_json(found)
    else:
        facts(found["machine"].items())
        console().print()
        facts((name, str(value)) for name, value in found["sandbox"].items() if name not in ("missing", "gaps"))
        for title, name in (("Missing:", "lacks"), ("A hostile model could", "gaps"), ("What would help:", "advice")):
            for line in found[name]:
                console().print(f"{title} {line}", soft_wrap=True)
    if found["gaps"] or found["lacks"]:
        raise typer.Exit(1)


def _found() -> dict[str, Any]:
    from service.process.advice import advice
    from service.process.probe import probed

    sandbox, machine = probed(), _machine()
    lacks = [f"{name}: {value}" for name, value in machine.items() if value.startswith("missing")]
    if "error" in sandbox:
        lacks.append(f"no job runs: {sandbox['error']}")
    return {
        "machine": machine,
        "sandbox": sandbox,
        "lacks": lacks,
        "gaps": sandbox.get("gaps", []),
        "advice": advice(sandbox),
    }


def _machine() -> dict[str, str]:
    import os
    import platform

    import psutil

    from service import machine
    from service.cli.version import installed
    from service.config import settings

    cache = settings().cache_dir
    nearest = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    gpu = machine.gpu()
    libraries = (f"{name} {installed(name) or 'not installed'}" for name in ("apache-tvm", "onnx", "torch", "xgboost"))
    return {
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "processor": f"{machine.model_name()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{size(psutil.virtual_memory().available)} free of {size(psutil.virtual_memory().total)}",
        "cache folder": f"{cache}, {size(shutil.disk_usage(nearest).free)} free",
        "g++": shutil.which(settings().cxx) or f"missing: RELAXC_CXX is {settings().cxx!r}, and links every artifact",
        "nvcc": shutil.which(settings().nvcc) or "none: only for CUDA targets",
        "GPU": "none" if gpu is None else str(gpu),
        "libraries": ", ".join(libraries),
    }
