"""`relaxc doctor`: what this machine gives to compile, to run jobs and to keep them apart, and what it lacks."""

from __future__ import annotations

import shutil
from typing import Any

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, facts, print_json, size

__all__ = ["doctor"]


def doctor(json: Json = False, verbose: Verbose = False) -> None:
    """Check this machine: processor, tools, libraries, memory, disk, GPU, and the sandbox for jobs.

    Whatever is missing is shown with a remedy; `limits` are those of a server started from here.
    The exit code is 1 where nothing can be compiled, or a server that others reach would run no job.
    """
    found = _found()
    if json:
        print_json(found)
    else:
        facts(found["machine"].items())
        console().print()
        facts((name, str(value)) for name, value in found["sandbox"].items() if name not in ("missing", "gaps"))
        facts([("limits", _limits(found["limits"]["missing"]))])
        for title, name in (("Missing:", "lacks"), ("A hostile model could", "gaps"), ("What would help:", "advice")):
            for line in found[name]:
                console().print(f"{title} {line}", soft_wrap=True)
    if found["gaps"] or found["lacks"]:
        raise typer.Exit(1)


def _found() -> dict[str, Any]:
    from relaxc.service.config import settings
    from relaxc.service.process.advice import advice, advice_on_groups
    from relaxc.service.process.groups import why_no_groups
    from relaxc.service.process.probe import probed

    sandbox, machine = probed(), _machine()
    no_groups = "RELAXC_CGROUPS=off" if settings().cgroups == "off" else why_no_groups()
    lacks = [f"{name}: {value}" for name, value in machine.items() if value.startswith("missing")]
    if "error" in sandbox:
        lacks.append(f"no job runs: {sandbox['error']}")
    return {
        "machine": machine,
        "sandbox": sandbox,
        "limits": {"missing": no_groups},
        "lacks": lacks,
        "gaps": sandbox.get("gaps", []),
        "advice": [*advice(sandbox), *advice_on_groups(no_groups)],
    }


def _limits(missing: str) -> str:
    """What a server that is started as this command was would hold a job's processes to."""
    return f"each process of a job alone: {missing}" if missing else "all processes of a job together"


def _machine() -> dict[str, str]:
    import platform

    import psutil

    from relaxc.service import machine
    from relaxc.service.config import settings

    cache = settings().cache_dir
    nearest = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    gpu = machine.gpu()
    packages = ("apache-tvm", "onnx", "torch", "xgboost-cpu")
    libraries = (f"{name} {machine.version_of(name) or 'not installed'}" for name in packages)
    return {
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "processor": f"{machine.model_name()}, {machine.processors()} cores",
        "memory": f"{size(psutil.virtual_memory().available)} free of {size(machine.memory_bytes())}",
        "cache folder": f"{cache}, {size(shutil.disk_usage(nearest).free)} free",
        "g++": shutil.which(settings().cxx) or f"missing: RELAXC_CXX is {settings().cxx!r}, and links every artifact",
        "nvcc": shutil.which(settings().nvcc) or "none: only for CUDA targets",
        "GPU": "none" if gpu is None else str(gpu),
        "libraries": ", ".join(libraries),
    }
