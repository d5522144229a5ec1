"""Targets: `auto`, a tag or target JSON becomes a TargetSpec with nothing left open; tvm is not imported for it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from relaxc.service import machine
from relaxc.service.errors import InvalidTarget
from relaxc.service.lowering.target_list import one_of_many
from relaxc.service.machine import host_features, missing_features
from relaxc.service.request import TargetSpec

__all__ = ["host_features", "listed", "llvm_attributes", "missing_features", "resolve", "tags", "to_tvm"]

_MAX_JSON_BYTES = 16 << 10
_MAX_CORES = 1024
_CACHE_BYTES = range(4 << 10, 1 << 40)
_LOG = logging.getLogger("relaxc.target")
_GENERIC_CORES = 4
"""Cores that a tag assumes: it shapes tile counts only, and must not depend on the machine that compiles."""

_X86_64 = "x86_64-linux-gnu"
_AARCH64 = "aarch64-linux-gnu"

# The x86-64 psABI micro-architecture levels: https://gitlab.com/x86-psABIs/x86-64-ABI, section 3.1.1.
_V1: tuple[str, ...] = ()
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_ZEN4 = (
    *_V4, "adx", "aes", "avx512bf16", "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni",
    "avx512vpopcntdq", "gfni", "pclmul", "sha", "sse4a", "vaes", "vpclmulqdq",
)  # fmt: skip
_SAPPHIRE_RAPIDS = (
    "adx", "aes", "amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512bitalg", "avx512fp16", "avx512ifma",
    "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512vpopcntdq", "avxvnni", "gfni", "pclmul", "sha", "vaes",
    "vpclmulqdq",
)  # fmt: skip
# What both have by their technical reference manuals, as far as Linux tells of it; SVE is left out: rows are of NEON.
_NEOVERSE_N1 = ("aes", "crc", "dotprod", "fullfp16", "lse", "neon", "rdm", "sha2")
_NEOVERSE_V1 = (*_NEOVERSE_N1, "bf16", "fp16fml", "i8mm")
_LEVELS = {"x86-64": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}

_IMPLIED: dict[str, tuple[str, ...]] = {**_LEVELS, "znver4": _ZEN4, "generic": ("neon",)}
"""The mcpu names that a target may have, and the features each implies; a test compares them with LLVM's."""

_FEATURE = re.compile(r"[a-z0-9][a-z0-9.-]{0,31}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ARCH = re.compile(r"sm_(8[0-9]|9[0-9]|1[0-2][0-9])a?")
# The spelling of TVM's own target JSON is taken too.
_ALIASES = {"mtriple": "triple", "mattr": "features", "num-cores": "cores"}
_TRIPLES = ("x86_64-linux-gnu", "x86_64-unknown-linux-gnu", "aarch64-linux-gnu", "aarch64-unknown-linux-gnu")


def resolve(text: str) -> TargetSpec:
    """Return the target that `text` means: `auto`, `auto-gpu` (or `cuda`), a tag, or target JSON.

    CUDA devices with commas between them, or as a JSON list, are one target with a part for each. Raise InvalidTarget
    for anything else, and for `auto-gpu` where there is no CUDA device.
    """
    text = text.strip()
    if text.startswith("["):
        return one_of_many(_listed_in_json(text))
    if "," in text and not text.startswith("{"):
        return one_of_many([resolve(each) for each in text.split(",")])
    if text.startswith("{"):
        return _from_json(text)
    if text == "auto":
        return _this_cpu()
    if text in ("auto-gpu", "cuda"):
        return _this_gpu()
    if text in _TAGS:
        return _TAGS[text]()
    raise InvalidTarget(f"unknown target {text[:80]!r}; there are auto, auto-gpu and {', '.join(_TAGS)}")


def tags() -> list[TargetSpec]:
    """Return every named target, in the order in which they are listed to people."""
    return [make() for make in _TAGS.values()]


def listed() -> list[tuple[str, TargetSpec]]:
    """Return what to ask for, and the target it means: this machine's CPU and GPU if it has one, then every tag."""
    found = []
    for name in ("auto", "auto-gpu"):
        try:
            found.append((name, resolve(name)))
        except InvalidTarget:  # there is no GPU here, or no code generator for this CPU
            continue
    return [*found, *((tag.name, tag) for tag in tags())]


def to_tvm(spec: TargetSpec) -> Any:
    """Return the `tvm.target.Target` of `spec`."""
    from tvm.target import Target

    spec.single("code")
    if spec.kind == "cuda":
        assert spec.host is not None  # TargetSpec refuses a cuda target without one
        limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
        return Target({"kind": "cuda", "arch": spec.arch, **limits}, host=to_tvm(spec.host))
    return Target({"kind": "llvm", **llvm_attributes(spec)})


def llvm_attributes(spec: TargetSpec) -> dict[str, Any]:
    """Return the attributes of the TVM target of a CPU.

    Where vectors have 512 bits, LLVM is told to use them: x86-64-v4 prefers 256 otherwise. `model`, which TVM keeps and
    does not read, names the hardware row and the caches, as far as `mcpu` does not.
    """
    attributes = [f"+{name}" for name in spec.features]
    if spec.triple == _X86_64 and "avx512f" in spec.features:
        attributes.append("-prefer-256-bit" if spec.vector_bits == 512 else "+prefer-256-bit")
    made = {"mtriple": spec.triple, "mcpu": spec.mcpu, "mattr": attributes, "num-cores": spec.cores}
    family = machine.family_of(spec)
    if family != spec.mcpu or spec.caches:
        made["model"] = " ".join(map(str, (family, *spec.caches)))
    return made


def _this_cpu() -> TargetSpec:
    here = machine.cpu()
    if here.arch not in ("x86_64", "aarch64"):
        raise InvalidTarget(f"there is no code generator here for this machine's CPU, a {here.arch}")
    family, known = machine.microarchitecture(here)
    if here.arch == "aarch64":
        level, triple, unnamed = "generic", _AARCH64, "aarch64-native"
    else:
        level = next(name for name, needs in reversed(_LEVELS.items()) if here.features.issuperset(needs))
        triple, unnamed = _X86_64, level
    if not known:
        _warn_of_unknown(here, family or unnamed)
    found = _cpu(family or unnamed, level, here.features, triple=triple, cores=here.cores)
    return replace(found, caches=here.caches)


@lru_cache  # once a process
def _warn_of_unknown(here: machine.Cpu, taken_for: str) -> None:
    known_by = "family {} model {}".format(*here.model) if here.arch == "x86_64" else f"part {here.model[1]:#x}"
    sizes = ", ".join(f"{size >> 10} KiB" for size in here.caches) or "unknown"
    _LOG.warning(
        "relaxc does not know this CPU, %s (%s %s): it is taken for %s, with its own caches (%s)",
        *(here.title or "which has no name", here.vendor or "no maker", known_by, taken_for, sizes),
    )


def _this_gpu() -> TargetSpec:
    here = machine.gpu()
    if here is None:
        raise InvalidTarget(
            "this machine has no CUDA device",
            remedy="Name the device to compile for: `--target cuda-sm90` needs no GPU here.",
        )
    return _cuda(f"cuda-{here.arch.replace('_', '').removesuffix('a')}", here.arch, _this_cpu())


def _cpu(
    name: str, mcpu: str, features: Any = None, *, triple: str = _X86_64, cores: int = _GENERIC_CORES
) -> TargetSpec:
    found = tuple(sorted(set(_IMPLIED[mcpu]) | set(features or ())))
    return TargetSpec(
        name=name,
        kind="llvm",
        triple=triple,
        mcpu=mcpu,
        features=found,
        cores=cores,
        vector_bits=_widest_vector(found),
    )


def _widest_vector(features: tuple[str, ...]) -> int:
    return 512 if "avx512f" in features else 256 if "avx" in features else 128


def _cuda(name: str, arch: str, host: TargetSpec) -> TargetSpec:
    return TargetSpec(name=name, kind="cuda", triple="", arch=arch, host=host)


_TAGS: dict[str, Callable[[], TargetSpec]] = {
    "x86-64-v2": lambda: _cpu("x86-64-v2", "x86-64-v2"),
    "x86-64-v3": lambda: _cpu("x86-64-v3", "x86-64-v3"),
    "x86-64-v4": lambda: _cpu("x86-64-v4", "x86-64-v4"),
    "znver4": lambda: _cpu("znver4", "znver4"),
    "sapphirerapids": lambda: _cpu("sapphirerapids", "x86-64-v4", _SAPPHIRE_RAPIDS),
    "aarch64": lambda: _cpu("aarch64", "generic", triple=_AARCH64),
    "neoverse-n1": lambda: _cpu("neoverse-n1", "generic", _NEOVERSE_N1, triple=_AARCH64),
    "neoverse-v1": lambda: _cpu("neoverse-v1", "generic", _NEOVERSE_V1, triple=_AARCH64),
    "cuda-sm80": lambda: _cuda("cuda-sm80", "sm_80", _cpu("x86-64-v3", "x86-64-v3")),
    "cuda-sm90": lambda: _cuda("cuda-sm90", "sm_90a", _cpu("x86-64-v3", "x86-64-v3")),
}


def _from_json(text: str) -> TargetSpec:
    return _from_dict(_read_json(text), "target")


def _listed_in_json(text: str) -> list[TargetSpec]:
    data = _read_json(text)
    if not all(isinstance(each, str | dict) for each in data):
        raise InvalidTarget("a JSON list of targets has names and target objects")
    return [resolve(each) if isinstance(each, str) else _from_dict(each, "target") for each in data]


def _read_json(text: str) -> Any:
    if len(text) > _MAX_JSON_BYTES:
        raise InvalidTarget(f"target JSON is over {_MAX_JSON_BYTES} bytes")
    try:
        return json.loads(text, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        raise InvalidTarget(f"target JSON cannot be read: {error}") from error


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"repeated fields {', '.join(repeated)}")
    return dict(pairs)


def _from_dict(raw: object, what: str) -> TargetSpec:
    if not isinstance(raw, dict):
        raise InvalidTarget(f"the {what} must be a JSON object, got {type(raw).__name__}")
    data: dict[str, Any] = {_ALIASES.get(str(name), str(name)): value for name, value in raw.items()}
    if len(data) != len(raw):
        raise InvalidTarget(f"the {what} gives a field under two names: {', '.join(sorted(raw))}")
    kind = data.get("kind")
    if kind == "llvm":
        return _cpu_from_dict(data, what)
    if kind == "cuda" and what == "target":
        return _cuda_from_dict(data)
    raise InvalidTarget(f"the {what}'s kind must be llvm{' or cuda' * (what == 'target')}, got {kind!r:.80}")


def _only(data: dict[str, Any], known: set[str], unused: dict[str, Any], what: str) -> None:
    """Refuses fields that are not `known`; those a TargetSpec writes out unused are taken with that value only."""
    unknown = sorted(name for name in data if name not in known and (name not in unused or data[name] != unused[name]))
    if unknown:
        raise InvalidTarget(f"the {what} has fields that it cannot have: {', '.join(n[:40] for n in unknown)}")


def _text(data: dict[str, Any], name: str, grammar: re.Pattern[str], default: str, what: str) -> str:
    value = data.get(name, default)
    if not isinstance(value, str) or not grammar.fullmatch(value):
        raise InvalidTarget(f"the {what}'s {name} must match {grammar.pattern}, got {value!r:.80}")
    return value


def _cpu_from_dict(data: dict[str, Any], what: str) -> TargetSpec:
    known = {"kind", "name", "triple", "mcpu", "features", "cores", "vector_bits", "caches"}
    _only(data, known, {"arch": "", "host": None}, what)
    triple = data.get("triple", _X86_64)
    if triple not in _TRIPLES:
        raise InvalidTarget(f"the {what}'s triple must be one of {', '.join(_TRIPLES)}, got {triple!r:.80}")
    triple = triple.replace("-unknown", "")
    fitting = ["generic"] if triple == _AARCH64 else [name for name in _IMPLIED if name != "generic"]
    mcpu = data.get("mcpu", fitting[0])
    if mcpu not in fitting:
        raise InvalidTarget(f"the {what}'s mcpu must be one of {', '.join(fitting)}, got {mcpu!r:.80}")
    cores = data.get("cores", _GENERIC_CORES)
    if type(cores) is not int or not 1 <= cores <= _MAX_CORES:
        raise InvalidTarget(f"the {what}'s cores must be 1..{_MAX_CORES}, got {cores!r:.80}")
    spec = _cpu(_text(data, "name", _NAME, mcpu, what), mcpu, _features(data, triple, what), triple=triple, cores=cores)
    return replace(spec, vector_bits=_vector_bits(data, spec.vector_bits, what), caches=_caches(data, what))


def _features(data: dict[str, Any], triple: str, what: str) -> list[str]:
    given = data.get("features", [])
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InvalidTarget(f"the {what}'s features must be a list of names, got {given!r:.80}")
    names = [name.removeprefix("+") for name in given]
    known = machine.known_features(triple.partition("-")[0])
    wrong = sorted(name[:40] for name in names if not _FEATURE.fullmatch(name) or name not in known)
    if wrong:
        raise InvalidTarget(f"the {what} has unknown features {', '.join(map(repr, wrong))}; see `relaxc targets`")
    return names


def _vector_bits(data: dict[str, Any], widest: int, what: str) -> int:
    bits = data.get("vector_bits", widest)
    if type(bits) is not int or bits not in (128, 256, 512) or bits > widest:
        raise InvalidTarget(f"the {what}'s vector_bits must be 128, 256 or 512 and at most {widest}, got {bits!r:.80}")
    return bits


def _caches(data: dict[str, Any], what: str) -> tuple[int, ...]:
    sizes = data.get("caches", [])
    if not isinstance(sizes, list) or not all(type(size) is int and size in _CACHE_BYTES for size in sizes):
        raise InvalidTarget(f"the {what}'s caches must be the bytes of L1, L2 and L3, got {sizes!r:.80}")
    return tuple(sizes)


def _cuda_from_dict(data: dict[str, Any]) -> TargetSpec:
    unused = {"triple": "", "mcpu": "", "features": [], "cores": 1, "vector_bits": 128}
    _only(data, {"kind", "name", "arch", "host"}, unused, "target")
    arch = _text(data, "arch", _ARCH, "", "target")
    host = _from_dict(data["host"], "host") if data.get("host") is not None else _cpu("x86-64-v3", "x86-64-v3")
    return _cuda(_text(data, "name", _NAME, f"cuda-{arch.replace('_', '')}", "target"), arch, host)
