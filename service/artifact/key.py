"""What an artifact depends on, as named entries: equal keys mean that a stored artifact is the answer."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, PluginError, ToolMissing
from relaxc.service.input_files import is_special, kernel_files, named_files, see
from relaxc.service.machine import missing_features, version_of
from relaxc.service.records.sources import records_digest
from relaxc.service.request import CompileRequest, ModelFormat, Seen, TargetSpec, canonical_json

__all__ = ["Key", "digest_of_files", "key_for"]

_ROOT = Path(__file__).resolve().parents[2]

# Our own code, by the entry that names it: all that a compile imports, as a test checks. cli, api, jobs and the client
# only carry requests and results.
_SOURCES = {
    "source.frontend": ("service/frontend",),
    "source.passes": ("service/passes",),
    "source.lowering": ("service/lowering", "service/tuning", "schedules"),
    "source.artifact": ("service/artifact",),
    "source.runtime": ("service/runtime",),
    "source.core": (
        "service/__init__.py",
        "service/cgroups.py",
        "service/compiler.py",
        "service/compiling",
        "service/config.py",
        "service/dump.py",
        "service/errors.py",
        "service/input_files.py",
        "service/machine.py",
        "service/process",
        "service/processor.py",
        "service/records",
        "service/repro.py",
        "service/request.py",
        "service/codes.py",
        "service/rounding.py",
        "service/signature.py",
        "service/tvm_libraries.py",
    ),
}
_LIBRARIES = ("apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes")
_LIBRARIES_OF = {ModelFormat.ONNX: ("onnx", "onnxruntime"), ModelFormat.PT2: ("torch",)}


@dataclass(frozen=True)
class Key:
    """Named entries, each a value or a digest, sorted by name; `digest` is the SHA-256 of them all.

    `seen` has the files that were hashed for it, the model's left out, as they were before.
    """

    entries: tuple[tuple[str, str], ...]
    seen: Seen = field(default=(), compare=False, repr=False)

    @staticmethod
    def of(entries: Mapping[str, str], seen: Seen = ()) -> Key:
        """Return the key of these entries, whatever their order."""
        return Key(tuple(sorted(entries.items())), seen)

    @cached_property
    def digest(self) -> str:
        """64 hex digits."""
        return hashlib.sha256(canonical_json(dict(self.entries)).encode()).hexdigest()

    def differences(self, other: Key) -> dict[str, tuple[str | None, str | None]]:
        """Return the entries that differ, as name → (value here, value there); None where there is no such entry."""
        mine, theirs = dict(self.entries), dict(other.entries)
        names = sorted(mine.keys() | theirs.keys())
        return {n: (mine.get(n), theirs.get(n)) for n in names if mine.get(n) != theirs.get(n)}


def key_for(request: CompileRequest, lacks: Sequence[str] | None = None) -> Key:
    """Return everything that the artifact of `request` depends on.

    `lacks` is what the machine that compiles lacks to run it, and so to verify it; this one if None.

    Imports no framework. Raise PluginError for a plugin file that cannot be read, InvalidRecords for such records,
    ToolMissing without a compiler.
    """
    options = request.options.to_dict()
    plugins = options.pop("plugins")
    for name in ("records", "default_records"):  # where records are; what they say is an entry
        del options[name]
    seen = _seen(request)
    samples = _samples(request, options)
    entries = {
        "model.format": request.model.format.value,
        "model.digest": request.model.digest,
        **_flat("option", options),
        **samples,
        **_plugins([Path(path) for path in plugins], request.target),
        **_flat("target", request.target.to_dict()),
        "machine.lacks": canonical_json(missing_features(request.target) if lacks is None else list(lacks)),
        "tuning.records": records_digest(request.target, request.options),
        **_source_digests(),
        **_versions(request.model.format),
        **_tools(request.target),
        **_settings(),
    }
    return Key.of(entries, seen)


def _seen(request: CompileRequest) -> Seen:
    """The samples, the plugins, and the Triton kernels that these name, each before it is read."""
    seen = see(named_files(request.options))
    plugins = request.options.plugins if request.target.kind == "cuda" else ()
    return seen + see(file for path in plugins for file in kernel_files(Path(path)))


def _samples(request: CompileRequest, options: dict[str, Any]) -> dict[str, str]:
    """What samples of a calibration say, in place of where they are; the model's digest covers those beside it."""
    given = request.options.calibration
    if given is None or given.is_beside:
        return {}
    options["calibration"]["samples"] = ""
    if is_special(Path(given.samples)):
        raise InvalidOption(f"cannot read {given.samples}: it is no regular file", option="calibration")
    try:
        with Path(given.samples).open("rb") as file:
            return {"calibration.samples": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError as error:
        raise InvalidOption(f"cannot read {given.samples}: {error.strerror}", option="calibration") from error


def _flat(prefix: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return {prefix: canonical_json(value)}
    return {name: text for key, inner in value.items() for name, text in _flat(f"{prefix}.{key}", inner).items()}


def _plugins(paths: list[Path], target: TargetSpec) -> dict[str, str]:
    """The plugins' text and, for a CUDA device, that of the Triton kernels that they name and what compiles these."""
    entries = {f"plugin.{i}": _plugin_digest(path) for i, path in enumerate(paths)}
    kernels = {i: kernel_files(path) for i, path in enumerate(paths)} if target.kind == "cuda" else {}
    for i, files in kernels.items():
        if files:
            digests = [_plugin_digest(file) for file in files if file.is_file()]
            entries[f"plugin.{i}.kernels"] = hashlib.sha256(" ".join(digests).encode()).hexdigest()
            entries["version.triton"] = version_of("triton") or "not installed"
    return entries


def _plugin_digest(path: Path) -> str:
    if is_special(path):
        raise PluginError(f"cannot read the plugin {path}: it is no regular file", path=str(path))
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PluginError(f"cannot read the plugin {path}: {error.strerror}", path=str(path)) from error


def digest_of_files(root: Path, places: Iterable[str]) -> str:
    """Return the SHA-256 of the names below `root`, and the contents, of these files and all files in these folders."""
    found: set[Path] = set()
    for place in places:
        path = root / place
        found |= {path} if path.is_file() else {p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    total = hashlib.sha256()
    for path in sorted(found, key=lambda p: p.relative_to(root).as_posix()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


@lru_cache(maxsize=1)  # the code that runs is the code that was imported: a later edit is not in this process
def _source_digests() -> dict[str, str]:
    return {name: digest_of_files(_ROOT, places) for name, places in _SOURCES.items()}


def _versions(model_format: ModelFormat) -> dict[str, str]:
    names = ("relaxc", *_LIBRARIES, *_LIBRARIES_OF[model_format])
    return {f"version.{name}": version_of(name) or "not installed" for name in names}


def _tools(target: TargetSpec) -> dict[str, str]:
    tools = {"tool.cxx": _tool_version(settings().cxx, "-dumpfullversion", "-dumpmachine")}
    if target.kind == "cuda":
        tools["tool.nvcc"] = _tool_version(settings().nvcc, "--version")
    return tools


@lru_cache
def _tool_version(program: str, *flags: str) -> str:
    if shutil.which(program) is None:
        raise ToolMissing(f"{program} is not installed", program=program)
    try:
        texts = [
            subprocess.run([program, flag], capture_output=True, text=True, timeout=60, check=True).stdout.strip()
            for flag in flags
        ]
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{program} does not say its version: {error}", program=program) from error
    return " ".join(texts)


def _settings() -> dict[str, str]:
    values = settings().model_dump(mode="json")
    affecting = [
        name
        for name, info in type(settings()).model_fields.items()
        if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("affects_artifact")
    ]
    return {f"setting.{name}": canonical_json(values[name]) for name in affecting}
