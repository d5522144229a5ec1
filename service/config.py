"""Every setting of relaxc, once: its type, unit, default, help, and whether it changes an artifact.

A setting is read from the environment as RELAXC_<NAME>; the CLI has options for some of them, and these
win. docs/settings.md is generated from this file (`make fix`), and a test fails when they differ.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from relaxc.service.errors import InvalidOption
from relaxc.service.processor import MOST_THREADS

__all__ = ["Settings", "settings"]

GIB = 1 << 30
_DAY_S = 24 * 3600.0


def _setting(default: Any, help: str, *, unit: str = "", affects_artifact: bool = False, **constraints: Any) -> Any:
    extra: dict[str, Any] = {"unit": unit, "affects_artifact": affects_artifact}
    if callable(default):
        return Field(default_factory=default, description=help, json_schema_extra=extra, **constraints)
    return Field(default=default, description=help, json_schema_extra=extra, **constraints)


class Settings(BaseSettings):
    """The settings in force; frozen. Build one with other values in a test, or call `settings()`."""

    model_config = SettingsConfigDict(env_prefix="RELAXC_", frozen=True, extra="ignore")

    # The store
    cache_dir: Path = _setting(
        lambda: user_cache_path("relaxc"), "Folder of the artifact store. Holds compiled files, keys and job folders."
    )
    cache_max_bytes: int = _setting(
        20 * GIB, "Size of the store over which the least recently used artifacts are removed.", unit="bytes", gt=0
    )

    kernel_cache_max_bytes: int = _setting(
        512 << 20,
        "Size of the kernel cache (`kernels` in the store's folder) over which the least recently used objects are "
        "removed; 0 is no cache.",
        unit="bytes",
        ge=0,
    )
    build_processes: int = _setting(
        0,
        "Kernels of one compile that are built at the same time; 0 is as many as there are cores.",
        unit="processes",
        ge=0,
    )

    # Limits on what is taken in
    max_model_bytes: int = _setting(4 * GIB, "Largest model file taken, external data included.", unit="bytes", gt=0)
    max_unpacked_bytes: int = _setting(8 * GIB, "Largest size that a .pt2 archive may unpack to.", unit="bytes", gt=0)
    max_graph_nodes: int = _setting(50_000, "Most nodes a model's graph may have.", unit="nodes", gt=0)

    # Limits on one compile
    compile_timeout_s: float = _setting(1800.0, "Wall-clock limit of one compile.", unit="s", gt=0)
    compile_memory_bytes: int = _setting(
        16 * GIB,
        "Private writable memory that each process of one compile may have (RLIMIT_DATA), and all memory that its "
        "processes may have together where a server can give it a control group.",
        unit="bytes",
        gt=0,
    )
    compile_file_bytes: int = _setting(
        16 * GIB, "Largest file a compiling process may write (RLIMIT_FSIZE).", unit="bytes", gt=0
    )
    compile_disk_bytes: int = _setting(
        32 * GIB, "Disk that the files of one compile's folder may take together.", unit="bytes", gt=0
    )
    cgroups: str = _setting(
        "auto",
        "Control group of each job of a server, which bounds its processes together: auto (where the machine allows "
        "it), require (no server starts without), off.",
        pattern="^(auto|require|off)$",
    )
    sandbox: str = _setting(
        "auto",
        "Sandbox of each job's process: auto (all that this machine allows), require (no job runs unless it is whole; "
        "so too where it is not set and others than this machine reach the server), off.",
        pattern="^(auto|require|off)$",
    )
    bubblewrap: str = _setting(
        "bwrap",
        "Program, by name or path, that makes the namespaces of jobs where the server's user, who is not root, may "
        "make none, and it may; empty is never.",
    )
    workers: int = _setting(
        1,
        "Jobs other than tunings that run at the same time in one server or worker; a server with 0 is an API alone, "
        "and runs no tunings either.",
        unit="processes",
        ge=0,
    )
    runner: str = _setting(
        "local",
        "What `relaxc worker` runs jobs with: local (processes of its own), or ray://HOST:PORT (the nodes of the Ray "
        "cluster whose head node has its GCS there, of which this machine is one too; ray://auto is that of this "
        "machine's node).",
        pattern=r"^(local|ray://(auto|[^\s/@]+:\d{1,5}))$",
    )
    queue_max: int = _setting(64, "Compiles that may wait; more are refused with `busy`.", unit="jobs", ge=1)
    tune_timeout_s: float = _setting(
        24 * 3600.0, "Wall-clock limit of a tuning that was given no time of its own.", unit="s", gt=0
    )
    tune_quiet_wait_s: float = _setting(
        20.0, "Longest time that a batch of tuning's trials waits for a noisy machine to be quiet.", unit="s", ge=0
    )
    tune_workers: int = _setting(
        1, "Tunings that run at the same time in one server or worker.", unit="processes", ge=0
    )
    tune_alone: bool | None = _setting(
        None, "Whether nothing else runs in the process that tunes; unset, so it is in a worker, not in a server."
    )
    rpc_tracker: str = _setting(
        "",
        "Tracker of TVM's RPC, HOST:PORT, by which a worker measures tunings on phones and boards; whoever reaches it "
        "runs code on them.",
        pattern=r"^(|([^\s:,/@]+|\[[0-9a-fA-F:]+\]):\d{1,5})$",
    )
    rpc_devices: str = _setting(
        "",
        "What is registered at that tracker: KEY=TARGET, separated by commas, as rpi5=neoverse-n1. A tuning for such a "
        "target is measured there.",
    )
    placement_wait_s: float = _setting(
        900.0,
        "Time that a job waits for a worker of the kind that it needs before it fails with `no-worker`; 0 refuses one "
        "that nobody can take, as a server does with workers of its own and no other process beside it.",
        unit="s",
        ge=0,
    )
    memory_budget_bytes: int = _setting(
        0,
        "Memory that the jobs of one server may be expected to take together; 0 is four fifths of the machine's. A job "
        "that is expected to take more runs alone.",
        unit="bytes",
        ge=0,
    )

    # What an owner may have, unless it has a quota of its own (`relaxc owners set`)
    quota_queued_jobs: float | None = _setting(
        None,
        "Jobs of one owner that may wait; unset is half of RELAXC_QUEUE_MAX. Where the queue fills, who has jobs in it "
        "gets places only as long as it has fewer than are free, whatever this is; inf is no limit.",
        unit="jobs",
        ge=0,
    )
    quota_running_jobs: float = _setting(
        math.inf,
        "Jobs of one owner that run at the same time, on all servers; more wait. inf is no limit.",
        unit="jobs",
        ge=0,
    )
    quota_bytes: float = _setting(
        32.0 * GIB,
        "Models, artifacts and record sets that one owner has, with uploads that are on their way; inf is no limit.",
        unit="bytes",
        ge=0,
    )
    quota_tuning_hours: float = _setting(
        240.0,
        "Time of one owner's tunings in 30 days; one that waits or runs counts with what it asked for; inf is no "
        "limit.",
        unit="h",
        ge=0,
    )

    # What the service remembers
    database_url: SecretStr = _setting(
        SecretStr(""),
        "Database of the service: sqlite:////FILE or postgresql://…; empty is service.sqlite3 in the cache folder.",
    )
    database_connections: int = _setting(
        0,
        "Connections to PostgreSQL that one process has at most, beside one by which it hears of others; 0 is 16 for a "
        "server, and for a worker 2 and one more for each four jobs that it runs at once.",
        unit="connections",
        ge=0,
    )
    blobs_url: str = _setting(
        "",
        "Where models, records and logs are kept: a folder, or s3://BUCKET/PREFIX, which mirrors artifacts too; empty "
        "is blobs/ in the cache folder.",
    )
    s3_endpoint_url: str = _setting("", "S3 service to use instead of AWS, as https://minio.example:9000.")
    s3_timeout_s: float = _setting(
        60.0,
        "Time for one call of the bucket, with its retries, and a second more for each MiB; then it gives 503 and is "
        "left alone for ten seconds.",
        unit="s",
        gt=0,
    )
    server_lease_s: float = _setting(
        20.0, "Silence after which other servers of the same database take a server for dead.", unit="s", ge=2
    )

    # What is deleted, and when (docs/retention.md)
    upload_expiry_s: float = _setting(
        _DAY_S, "Age of its last byte after which an unfinished upload is dropped.", unit="s", gt=0
    )
    job_expiry_s: float = _setting(
        30 * _DAY_S,
        "Age after which a job that has ended is forgotten, with its events, log and report; 0 is never.",
        unit="s",
        ge=0,
    )
    jobs_kept: float = _setting(
        10_000.0,
        "Jobs of one owner that are remembered; of more its oldest that have ended are forgotten before they are old. "
        "A job's row has up to 64 KiB of options. inf is no limit.",
        unit="jobs",
        ge=1,
    )
    model_expiry_s: float = _setting(
        0.0, "Time without use after which a model is taken from its owner; 0 is never.", unit="s", ge=0
    )
    artifact_expiry_s: float = _setting(
        0.0,
        "Time without use after which an artifact is taken from its owner, whose file the store may have removed "
        "before; 0 is never.",
        unit="s",
        ge=0,
    )
    records_expiry_s: float = _setting(
        0.0, "Time without use after which a record set is taken from its owner; 0 is never.", unit="s", ge=0
    )
    delivery_expiry_s: float = _setting(
        7 * _DAY_S, "Age after which a webhook call that has arrived, or was given up, is forgotten.", unit="s", gt=0
    )
    idempotency_expiry_s: float = _setting(
        _DAY_S, "Age after which an Idempotency-Key may be used for another request.", unit="s", gt=0
    )
    audit_expiry_s: float = _setting(
        400 * _DAY_S, "Age after which a row of the audit log is deleted; 0 is never.", unit="s", ge=0
    )
    orphan_expiry_s: float = _setting(
        3600.0,
        "Age after which bytes are deleted that no row names, and what a dead process left half written.",
        unit="s",
        ge=60,
    )

    bucket_sweep_s: float = _setting(
        0.0,
        "Pause between two searches of the S3 bucket for objects that no row names, to delete them; 0 is never. Only "
        "for a bucket and prefix that no other database uses.",
        unit="s",
        ge=0,
    )

    webhook_secret: SecretStr = _setting(
        SecretStr(""), "Secret that signs the webhooks of a server without keys; empty leaves them unsigned."
    )
    webhook_private: bool = _setting(False, "Whether webhooks may go to private and loopback addresses.")

    disk_reserve_bytes: int = _setting(
        1 * GIB,
        "Free space on the disks of the cache folder, the models and the SQLite file below which a server takes no "
        "upload and no job (507) and begins none; at half of it jobs with many files are ended.",
        unit="bytes",
        ge=0,
    )
    drain_s: float = _setting(
        30.0, "Time that running jobs have to end after SIGTERM; then they are queued again.", unit="s", ge=0
    )

    # The server
    host: str = _setting("127.0.0.1", "Address that `relaxc serve` listens on.")
    port: int = _setting(8000, "Port that `relaxc serve` listens on; 0 picks a free one.", ge=0, le=65535)
    trusted_proxies: str = _setting(
        "127.0.0.1,::1",
        "Addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, separated by commas.",
    )
    max_connections: int = _setting(
        512,
        "Connections that the server holds open. For one more it closes some that wait for a request; where all are at "
        "work it answers 503. A quarter of them may be at work for one owner; more get 429.",
        unit="connections",
        ge=1,
    )
    header_timeout_s: float = _setting(
        10.0, "Time for a request's line and headers to come; then the connection is closed.", unit="s", gt=0
    )
    body_timeout_s: float = _setting(
        30.0, "Time for each 64 KiB of a request's body to come; a slower one is answered with 408.", unit="s", gt=0
    )

    # The client
    server: str | None = _setting(None, "Address of the server that `relaxc compile` works on; unset is this machine.")
    api_key: SecretStr | None = _setting(None, "API key for that server; `--key-file` keeps it out of the environment.")

    # The build
    threads: int = _setting(
        0,
        "Threads that an artifact runs with when the caller does not say; 0 is one for each core.",
        unit="threads",
        ge=0,
        le=MOST_THREADS,
    )
    part: str = _setting(
        "",
        "Part of an artifact for several CPUs or GPUs that is loaded, by its target's name, such as cuda-sm80; empty "
        "is the best that this machine runs.",
    )
    embed_weights_max_bytes: int = _setting(
        3 * GIB // 2,
        "Weights up to this size go inside the .so; larger ones go into a safetensors file beside it.",
        unit="bytes",
        affects_artifact=True,
        ge=0,
    )
    cxx: str = _setting("g++", "C++ compiler that links the artifact.", affects_artifact=True)
    nvcc: str = _setting("nvcc", "CUDA compiler for cuda targets.", affects_artifact=True)
    records: Path | None = _setting(
        None,
        "Folder of tuning records that compiles use before those that come with relaxc; what they say is part of the "
        "cache key.",
    )

    # Diagnosis
    log_format: str = _setting(
        "console", "Form of a server's log on stderr: console, or json, an object a line.", pattern="^(console|json)$"
    )
    log_level: str = _setting(
        "warning", "Level of the log on stderr: debug, info, warning or error.", pattern="^(debug|info|warning|error)$"
    )


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process, read from the environment once. Raise InvalidOption for a bad value."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = error.errors()[0]
        name = f"RELAXC_{'_'.join(map(str, wrong['loc'])).upper()}"
        raise InvalidOption(
            f"setting {name} is {wrong['input']!r}: {wrong['msg']}",
            remedy=f"Correct or unset {name}; docs/settings.md lists every setting.",
            setting=name,
        ) from error
