"""What a worker gets of our environment: what compiling needs, and no secret.

The worker is started with it, rather than cleared of the rest later: what a process was started with stays readable
in its memory and in /proc/self/environ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["NOT_FOR_JOBS", "bare_environment", "for_zygotes", "scrubbed_environment", "settings_of_jobs"]

_HOME = Path(__file__).parents[3]
"""The folder that has the package `relaxc`."""

_NAMES = frozenset(
    [
        *("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "NO_COLOR"),
        *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
        *("GLIBC_TUNABLES", "SOURCE_DATE_EPOCH"),
        "RELAXC_STRICT",  # of the tests: see schedules/strict.py
    ]
)
_PREFIXES = ("LC_", "PYTHON", "CUDA_", "NVIDIA_", "TVM_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_")

_HEAP = {
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
}
"""glibc's heap (mallopt(3)) grows in steps of 128 KiB, and gives what is free at its end back to be touched anew: a
thirtieth of a compile's time. Weights are each a mapping, which goes when they do; a value from outside stays."""

NOT_FOR_JOBS = frozenset(
    {
        "api_key",
        "database_url",
        "blobs_url",
        "host",
        "port",
        "rpc_devices",
        "rpc_tracker",
        "runner",
        "s3_endpoint_url",
        "server",
        "webhook_secret",
    }
)
"""Settings that a job has no use for, and that may hold passwords."""


def scrubbed_environment(outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what compiling needs of `outer` (ours if None), for a zygote."""
    return {**bare_environment(outer), **settings_of_jobs(outer)}


def bare_environment(outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `scrubbed_environment` without settings, whose names take 0.1 s to import."""
    outer = os.environ if outer is None else outer
    kept = {name: value for name, value in outer.items() if name in _NAMES or name.startswith(_PREFIXES)}
    return {
        **for_zygotes(kept),
        "USER": "relaxc",  # getpass, which torch asks, finds no name for the user that a job runs as
        "LOGNAME": "relaxc",
    }


def settings_of_jobs(outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings that a zygote has of `outer` (ours if None), as variables of the environment."""
    from relaxc.service.config import Settings, settings

    outer = os.environ if outer is None else outer
    names = {f"RELAXC_{name.upper()}" for name in Settings.model_fields.keys() - NOT_FOR_JOBS}
    kept = {name: value for name, value in outer.items() if name.upper() in names}
    # Its default is made from HOME and others that a job lacks
    return {**kept, "RELAXC_CACHE_DIR": str(settings().cache_dir)}


def for_zygotes(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with `service` importable, and with what importing would start kept for after the fork.

    OpenBLAS would start threads. Beside torch, importing tvm_ffi asks it whether there is a GPU, and torch's usual
    answer starts CUDA, which then fails in every process that is forked.
    """
    path = [str(_HOME), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    kept = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    return {**_HEAP, **environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **kept}
