"""What a compile is asked to do, as frozen values that check themselves and have one canonical JSON."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from relaxc.service.errors import InvalidOption, InvalidShape, InvalidTarget
from relaxc.service.signature import Dim

__all__ = [
    "Calibration",
    "CompileOptions",
    "CompileRequest",
    "ModelFormat",
    "ModelRef",
    "Precision",
    "Seen",
    "TargetSpec",
    "canonical_json",
    "is_utf8",
    "model_digest",
]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_DIM = 2**63 - 1

Seen = tuple[tuple[Path, tuple[int, ...]], ...]
"""Files, and what `stat` said of each before it was hashed."""


def is_utf8(path: Path) -> bool:
    """Return whether the path is text: ONNX Runtime and TVM open no other."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class ModelFormat(StrEnum):
    """The format of a model file."""

    ONNX = "onnx"
    PT2 = "pt2"


class Precision(StrEnum):
    """The dtype of matmul and convolution operands; accumulation is in fp32 for all of them."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"

    @property
    def dtype(self) -> str:
        """The TVM name of this dtype."""
        return {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}[self.value]

    @property
    def judged(self) -> str:
        """The dtype by whose tolerance results are judged: tf32 has as many digits as fp16."""
        return "float16" if self is Precision.TF32 else self.dtype


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a model in floats is quantized to int8.

    `samples` is the `.npz` of inputs: a path, or on a server the plain name of a file that was sent beside the model.
    `method` chooses the ranges of activations. `max_error` bounds the root mean square by which an output may be off
    over that of its values: layers that cost most stay in floats until it holds. `keep` names layers that do. `smooth`
    moves scales from the activations of transformers to their weights.
    """

    samples: str
    method: Literal["minmax", "percentile", "entropy"] = "minmax"
    max_error: float | None = None
    keep: tuple[str, ...] = ()
    smooth: bool = True

    def __post_init__(self) -> None:
        if not self.samples or "\0" in self.samples:
            raise InvalidOption("calibration needs samples, the name of an .npz", option="calibration")
        if self.method not in ("minmax", "percentile", "entropy"):
            given = f"{self.method!r:.80}"
            raise InvalidOption(f"calibration takes minmax, percentile or entropy, not {given}", option="calibration")
        if self.max_error is not None and not 0 < self.max_error < 1:
            raise InvalidOption(f"max_error is between 0 and 1, not {self.max_error}", option="max_error")

    @property
    def is_beside(self) -> bool:
        """Whether the samples are among the files of the model, whose digest covers them."""
        return "/" not in self.samples

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; `from_dict` is its inverse."""
        return {**asdict(self), "keep": list(self.keep)}

    @staticmethod
    def from_dict(data: Any) -> Calibration:
        """Return a calibration from JSON values. Raise InvalidOption."""
        kinds = {"samples": str, "method": str, "max_error": int | float | None, "keep": list, "smooth": bool}
        if not isinstance(data, dict) or set(data) - set(kinds) or "samples" not in data:
            raise InvalidOption(f"calibration takes samples, and any of {', '.join(kinds)}", option="calibration")
        for name, value in data.items():
            wrong = isinstance(value, bool) and name != "smooth"
            if wrong or not isinstance(value, kinds[name]):
                raise InvalidOption(f"calibration.{name} cannot be {value!r:.80}", option="calibration")
        keep = data.get("keep", [])
        if len(keep) > 10_000 or not all(isinstance(name, str) for name in keep):
            raise InvalidOption("calibration.keep is a list of names", option="calibration")
        return Calibration(**{**data, "keep": tuple(keep)})


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The machine to compile for, resolved: no `auto`, every feature spelled out.

    `name` is what people call it (`x86-64-v4`, `cuda-sm90`, or the detected CPU's name). For a CPU,
    `features` are LLVM feature names without the plus (`avx512bf16`); for a CUDA device `arch` is
    `sm_90` and `host` is the CPU that launches it. `caches` are the bytes of L1 and L2 that a core has and all of L3,
    where they were read from a machine: a named target has none, and the hardware row's hold. Of several CUDA devices,
    or CPUs, for one artifact `parts` are the targets, the least demanding first; `arch` is empty, and what else is said
    of a CPU is of the first.
    """

    name: str
    kind: str
    triple: str = "x86_64-linux-gnu"
    mcpu: str = ""
    features: tuple[str, ...] = ()
    cores: int = 1
    vector_bits: int = 128
    arch: str = ""
    host: TargetSpec | None = None
    caches: tuple[int, ...] = ()
    parts: tuple[TargetSpec, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("llvm", "cuda"):
            raise InvalidTarget(f"target kind {self.kind!r} is not one of llvm, cuda")
        if self.parts:
            self._check_parts()
        elif self.kind == "cuda" and (not re.fullmatch(r"sm_\d+a?", self.arch) or self.host is None):
            raise InvalidTarget(f"a cuda target needs an arch like sm_90 and a host, got {self.arch!r}")
        if self.cores < 1:
            raise InvalidTarget(f"a target needs at least one core, got {self.cores}")
        rising = len(self.caches) == 3 and 0 < self.caches[0] < self.caches[1] <= self.caches[2]
        if self.caches and not rising:
            raise InvalidTarget(f"caches are the bytes of L1, L2 and L3, rising, got {list(self.caches)!r:.80}")

    def _check_parts(self) -> None:
        alike = all((part.kind, part.host, part.triple) == (self.kind, self.host, self.triple) for part in self.parts)
        if not alike or self.arch or len(self.parts) < 2 or any(part.parts for part in self.parts):
            raise InvalidTarget("several targets for one artifact are CUDA devices with one host, or CPUs of one kind")

    def single(self, what: str) -> TargetSpec:
        """Return the target. Raise InvalidTarget where it is several: `what` is done for one."""
        if self.parts:
            raise InvalidTarget(f"{what} is for one target, and {self.name} is several", remedy="Name one of them.")
        return self

    @property
    def each(self) -> tuple[TargetSpec, ...]:
        """The targets that code is made for, one a part of the artifact."""
        return self.parts or (self,)

    def to_dict(self) -> dict[str, Any]:
        """Return the target as JSON values; `from_dict` is its inverse."""
        data = asdict(self)
        data["features"] = list(self.features)
        data["parts"] = [part.to_dict() for part in self.parts]
        if not self.parts:  # then it is the dictionary that it was before there were any, and so is every key
            del data["parts"]
        data["host"] = self.host.to_dict() if self.host else None
        data["caches"] = list(self.caches)
        if not self.caches:  # likewise
            del data["caches"]
        return data

    @staticmethod
    def from_dict(data: dict[str, Any]) -> TargetSpec:
        """Return the target that `to_dict` described."""
        host = TargetSpec.from_dict(data["host"]) if data.get("host") else None
        tuples = {name: tuple(data.get(name, ())) for name in ("features", "caches")}
        parts = tuple(TargetSpec.from_dict(part) for part in data.get("parts", ()))
        return TargetSpec(**{**data, **tuples, "host": host, "parts": parts})


_PRECISIONS = ", ".join(Precision)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How to compile: everything here is part of the cache key.

    `precision` None keeps the model's own dtypes; int8 comes with a `calibration`. `weights` rounds the constant
    matrices of products. `shapes` fixes or renames symbolic dims, an input at a time, and `values` fixes inputs of one
    integer. `opt_level` 0 builds without
    graph optimization, 1 adds folding and fusion, 2 layout and schedules (the default), 3 allows fast math within the
    verification tolerance. `records` are files and folders of tuning records, which go before the default ones
    (relaxc's own, and those of RELAXC_RECORDS) unless `default_records` is False; what they say is part of the key,
    where they are is not. `require_tuned` refuses a compile where a PrimFunc whose template has parameters (`all`), or
    one of those that take most of the time (`hot`), has no record. `small_weights` declines kernels whose weights take
    more room than the model's. `state` has the output that is the next call's, by input; None finds past and present
    by their names.
    """

    precision: Precision | None = None
    opt_level: int = 2
    shapes: tuple[tuple[str, tuple[Dim, ...]], ...] = ()
    plugins: tuple[str, ...] = field(default=())
    verify: bool = True
    seed: int = 0
    records: tuple[str, ...] = field(default=())
    default_records: bool = True
    require_tuned: Literal["hot", "all"] | None = None
    weights: Literal["int8", "int4"] | None = None
    calibration: Calibration | None = None
    small_weights: bool = False
    values: tuple[tuple[str, int], ...] = ()
    state: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        if self.require_tuned not in (None, "hot", "all"):
            raise InvalidOption(f"require_tuned takes hot or all, not {self.require_tuned!r}", option="require_tuned")
        if self.weights not in (None, "int8", "int4"):
            raise InvalidOption(f"weights takes int8 or int4, not {self.weights!r:.80}", option="weights")
        if self.opt_level not in (0, 1, 2, 3):
            raise InvalidOption(f"-O takes 0, 1, 2 or 3, not {self.opt_level}", option="opt_level")
        if self.precision is not None and not isinstance(self.precision, Precision):
            raise InvalidOption(f"precision {self.precision!r} is not one of {_PRECISIONS}", option="precision")
        if (self.precision is Precision.INT8) != (self.calibration is not None):
            raise InvalidOption(
                "precision int8 and calibration go together: scales come out of samples",
                option="calibration",
                remedy="Give both, as in `--precision int8 --calibration samples.npz`.",
            )
        if not 0 <= self.seed < 2**32:
            raise InvalidOption(f"seed {self.seed} is not in 0..2**32-1", option="seed")
        names = [name for name, _ in self.shapes]
        if len(set(names)) != len(names):
            raise InvalidShape(f"--shape names an input twice: {', '.join(names)}")
        for name, shape in self.shapes:
            for dim in shape:
                if isinstance(dim, int) and dim < 0:
                    raise InvalidShape(f"--shape {name} has the negative size {str(dim)[:40]}", name=name)
                if isinstance(dim, int) and dim > _MAX_DIM:
                    raise InvalidShape(f"--shape {name} has a size over {_MAX_DIM}", name=name)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON values, in the form the HTTP API takes; `from_dict` is its inverse."""
        data: dict[str, Any] = {
            "precision": self.precision.value if self.precision else None,
            "opt_level": self.opt_level,
            "shapes": {name: list(shape) for name, shape in self.shapes},
            "plugins": list(self.plugins),
            "verify": self.verify,
            "seed": self.seed,
            "records": list(self.records),
            "default_records": self.default_records,
            "require_tuned": self.require_tuned,
        }
        if self.weights is not None:  # without it, the dictionary that it was before there was one
            data["weights"] = self.weights
        if self.calibration is not None:  # likewise
            data["calibration"] = self.calibration.to_dict()
        if self.small_weights:  # likewise
            data["small_weights"] = True
        if self.values:  # likewise
            data["values"] = dict(self.values)
        if self.state is not None:  # likewise
            data["state"] = [list(pair) for pair in self.state]  # a key has no entry for a table without rows
        return data

    @staticmethod
    def from_dict(data: dict[str, Any]) -> CompileOptions:
        """Return options from JSON values, every field optional. Raise InvalidOption for an unknown or bad field."""
        known = {option.name for option in fields(CompileOptions)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise InvalidOption(f"unknown options: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        try:
            precision = None if data.get("precision") is None else Precision(data["precision"])
        except ValueError as error:
            raise InvalidOption(
                f"precision {data['precision']!r} is not one of {_PRECISIONS}", option="precision"
            ) from error
        for name, kind in _KINDS.items():
            value = data.get(name)
            if name in data and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
                raise InvalidOption(f"option {name} takes {kind.__name__}, got {value!r}", option=name)
        shapes = tuple(sorted((name, _shape(name, dims)) for name, dims in data.get("shapes", {}).items()))
        return CompileOptions(
            precision=precision,
            opt_level=data.get("opt_level", 2),
            shapes=shapes,
            plugins=tuple(map(str, data.get("plugins", []))),
            verify=data.get("verify", True),
            seed=data.get("seed", 0),
            records=tuple(map(str, data.get("records", []))),
            default_records=data.get("default_records", True),
            require_tuned=data.get("require_tuned"),
            weights=data.get("weights"),
            calibration=None if data.get("calibration") is None else Calibration.from_dict(data["calibration"]),
            small_weights=data.get("small_weights", False),
            values=tuple(sorted((name, _value(name, value)) for name, value in data.get("values", {}).items())),
            state=_state(data.get("state")),
        )


_KINDS: dict[str, type] = {
    "opt_level": int,
    "shapes": dict,
    "plugins": list,
    "verify": bool,
    "seed": int,
    "records": list,
    "default_records": bool,
    "small_weights": bool,
    "values": dict,
}
"""The JSON type of each option that has only one."""


def _state(given: Any) -> tuple[tuple[str, str], ...] | None:
    """Pairs of an input and an output, from a list of these or a table of outputs by input."""
    if given is None:
        return None
    match list(given.items()) if isinstance(given, dict) else given:
        case [*pairs] if all(len(pair) == 2 and all(isinstance(name, str) for name in pair) for pair in pairs):
            return tuple(sorted((past, present) for past, present in pairs))
    raise InvalidOption(f"option state takes outputs by input, got {given!r:.80}", option="state")


def _value(name: str, value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise InvalidOption(f"--value {name} takes an integer of 64 bits, got {value!r:.80}", option="values")
    return value


def _shape(name: str, dims: Any) -> tuple[Dim, ...]:
    if not isinstance(dims, list | tuple) or any(isinstance(d, bool) or not isinstance(d, int | str) for d in dims):
        raise InvalidShape(f"the shape of {name!r} must be a list of sizes and names, got {dims!r}", name=name)
    return tuple(dims)


def model_digest(sha256: str, data: Mapping[str, str]) -> str:
    """Return the digest that names a model: of one file its SHA-256, as sha256sum prints it.

    A model with external data is the SHA-256 of `{"data":{NAME:SHA256,…},"model":SHA256}`, as canonical JSON in UTF-8:
    `sha256` of the model's own file, which has no name in it, and `data` of each file beside it, by plain name. So who
    has the files can compute it without reading one as a model: a server hashes them while they arrive, and believes
    nobody. No file that is a model begins with a brace (`frontend.model_file`), so none passes for such a text.
    """
    if not data:
        return sha256
    return hashlib.sha256(canonical_json({"data": dict(data), "model": sha256}).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model file by content: `digest` is its `model_digest`, `size_bytes` that of all its files.

    `seen` has its files as they were before they were hashed; nothing where nobody else may write to them.
    """

    format: ModelFormat
    digest: str
    size_bytes: int
    path: Path = field(compare=False)
    seen: Seen = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise InvalidOption(f"{self.digest!r} is not a SHA-256 digest")


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One compile: the model by content, the resolved target, the options. CLI and API both build this."""

    model: ModelRef
    target: TargetSpec
    options: CompileOptions

    def to_dict(self) -> dict[str, Any]:
        """Return the request as JSON values, with the model's path; `from_dict` is its inverse but for `seen`."""
        model = self.model
        return {
            "model": {
                "format": model.format.value,
                "digest": model.digest,
                "size_bytes": model.size_bytes,
                "path": str(model.path),
            },
            "target": self.target.to_dict(),
            "options": self.options.to_dict(),
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> CompileRequest:
        """Return the request that `to_dict` described."""
        model = data["model"]
        return CompileRequest(
            ModelRef(ModelFormat(model["format"]), model["digest"], model["size_bytes"], Path(model["path"])),
            TargetSpec.from_dict(data["target"]),
            CompileOptions.from_dict(data["options"]),
        )
