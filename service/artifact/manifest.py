"""What an artifact says of itself: canonical JSON in its ELF section, read without loading code and without tvm."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from relaxc.service.artifact import decode
from relaxc.service.artifact.elf import Section, loaded_digest, read_sections
from relaxc.service.artifact.parts import Part, decoded
from relaxc.service.artifact.weights_table import WeightsTable, decoded_table
from relaxc.service.errors import ArtifactCorrupt, ArtifactNotFound
from relaxc.service.request import TargetSpec, canonical_json
from relaxc.service.signature import Signature

__all__ = [
    "BLOCKS_SECTION",
    "FORMAT",
    "MANIFEST_SECTION",
    "WEIGHTS",
    "WEIGHTS_SECTION",
    "Manifest",
    "Requires",
    "WeightsTable",
    "check_code",
    "code_extent",
    "digest_of",
    "weights_extent",
]

FORMAT = 1
"""The version of everything in the file that a reader must understand; raised when an old reader would misread it."""

MANIFEST_SECTION = ".relaxc.manifest"
WEIGHTS_SECTION = ".relaxc.weights"
BLOCKS_SECTION = ".relaxc.blocks"
WEIGHTS = "weights"
"""The digest of the weights' image among an artifact's: one that has it has digests of its blocks, too."""

_MAX_BYTES = 64 << 20
_NOT_VERIFIED = "not verified: "


class _Reported(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Requires:
    """What a machine must have: the CPU's `arch` and `features`, a compute capability (`9.0`), TVM's version."""

    arch: str
    features: tuple[str, ...]
    compute_capability: str | None
    runtime: str

    @staticmethod
    def of(target: TargetSpec, runtime: str) -> Requires:
        """Return what code compiled for `target` with TVM `runtime` needs."""
        cpu = target.host or target
        digits = target.arch.removeprefix("sm_").removesuffix("a")
        return Requires(
            arch=cpu.triple.partition("-")[0],
            features=tuple(sorted(cpu.features)),
            compute_capability=f"{digits[:-1]}.{digits[-1]}" if target.kind == "cuda" else None,
            runtime=runtime,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return these needs as JSON values."""
        return {
            "arch": self.arch,
            "features": list(self.features),
            "compute_capability": self.compute_capability,
            "runtime": self.runtime,
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a file says of itself; equal requests give equal manifests, so no time, host or date is in it.

    `digests` holds SHA-256 of `model`, `options`, `tuning`, and of `code`: what the dynamic loader maps of the file
    (`code.N` is the library of part N), and of the `weights`; `artifact.blocks` covers all. `versions` has those of
    relaxc, tvm, tvm_ffi, llvm and the C++ compiler. `schedule` has one row for each PrimFunc, `passes` is the
    optimizer's report. `verification` is a report with `passed`, or `not verified: REASON`. `command` rebuilds the
    file. Of an artifact for several GPUs all this is of the first part, which is the file's own code, but `weights`,
    which are those of all parts: the first has `own_weights` of them. `others` are the other parts.
    """

    signature: Signature
    target: TargetSpec
    requires: Requires
    digests: Mapping[str, str]
    versions: Mapping[str, str]
    options: Mapping[str, Any]
    command: str
    schedule: Sequence[Mapping[str, Any]] = ()
    passes: Mapping[str, Any] = field(default_factory=dict)
    verification: Mapping[str, Any] | str = _NOT_VERIFIED + "nobody asked"
    weights: WeightsTable = field(default_factory=WeightsTable)
    own_weights: int | None = None
    others: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        ordered = replace(
            self.signature,
            dims=tuple(sorted(self.signature.dims, key=lambda row: row[0])),
            constants=tuple(sorted(self.signature.constants, key=lambda row: row[0])),
        )
        object.__setattr__(self, "signature", ordered)
        for name in ("digests", "versions", "options", "schedule", "passes", "verification"):
            object.__setattr__(self, name, json.loads(canonical_json(getattr(self, name))))

    @property
    def verified(self) -> bool | None:
        """Whether the numbers were right, of all parts; None when they were not compared."""
        reports = [self.verification, *(part.verification for part in self.others)]
        found = [bool(report["passed"]) for report in reports if not isinstance(report, str)]
        return all(found) if len(found) == len(reports) or not all(found) else None

    @property
    def parts(self) -> tuple[Manifest, ...]:
        """The manifest of each part as if it were an artifact of its own."""
        if not self.others:
            return (self,)
        first = replace(self, own_weights=None, others=(), weights=self.weights.of(range(self.own_weights or 0)))
        return (first, *(first._of(part, self.weights.of(part.weights)) for part in self.others))

    def _of(self, part: Part, weights: WeightsTable) -> Manifest:
        return replace(
            self,
            target=part.target,
            requires=Requires.of(part.target, self.requires.runtime),
            digests={**self.digests, "tuning": part.tuning},
            schedule=part.schedule,
            passes=part.passes,
            verification=part.verification,
            weights=weights,
        )

    @property
    def targets(self) -> tuple[TargetSpec, ...]:
        """What it has code for."""
        return (self.target, *(part.target for part in self.others))

    @property
    def target_names(self) -> str:
        """The names of its targets, with commas between them."""
        return ",".join(target.name for target in self.targets)

    def with_verification(self, result: _Reported | str) -> Manifest:
        """Return this manifest with a comparison's result, or with the reason why there is none."""
        if isinstance(result, str):
            return replace(self, verification=_NOT_VERIFIED + result.removeprefix(_NOT_VERIFIED))
        return replace(self, verification=result.to_dict())

    def with_weights(self, weights: WeightsTable) -> Manifest:
        """Return this manifest with another table of weights."""
        return replace(self, weights=weights)

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values."""
        several = {"own_weights": self.own_weights, "others": [part.to_dict() for part in self.others]}
        return {
            **(several if self.others else {}),
            "format": FORMAT,
            "signature": self.signature.to_dict(),
            "target": self.target.to_dict(),
            "requires": self.requires.to_dict(),
            "digests": self.digests,
            "versions": self.versions,
            "options": self.options,
            "command": self.command,
            "schedule": self.schedule,
            "passes": self.passes,
            "verification": self.verification,
            "weights": self.weights.to_dict(),
        }

    def to_json(self) -> str:
        """Return canonical JSON: equal manifests give equal bytes."""
        return canonical_json(self.to_dict())

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        """Return the manifest that `to_json` wrote. Raise ArtifactCorrupt for anything else."""
        try:
            return _manifest(json.loads(text, parse_constant=_no_constant, parse_float=_finite))
        except (ValueError, RecursionError) as error:
            raise ArtifactCorrupt(f"the manifest is not JSON: {error}") from error

    @staticmethod
    def read(path: Path | str) -> Manifest:
        """Return the manifest of the artifact at `path`; none of its code is loaded.

        Raise ArtifactNotFound, or ArtifactCorrupt for a file that is damaged or not one of ours.
        """
        path = Path(path)
        section = read_sections(path).get(MANIFEST_SECTION)
        if section is None:
            raise ArtifactCorrupt(f"{path} was not compiled by relaxc: it has no {MANIFEST_SECTION}", path=str(path))
        if section.size_bytes > _MAX_BYTES:
            raise ArtifactCorrupt(f"the manifest of {path} is larger than {_MAX_BYTES} bytes", path=str(path))
        with path.open("rb") as file:
            file.seek(section.offset)
            text = file.read(section.size_bytes)
        try:
            return Manifest.from_json(text)
        except ArtifactCorrupt as error:
            raise ArtifactCorrupt(f"{path}: {error.message}", path=str(path)) from error


def code_extent(path: Path, manifest: Manifest, place: int) -> tuple[int, int] | None:
    """Return the offset and the size of the library of a part of the artifact at `path`; None for the first, the file.

    Raise ArtifactCorrupt.
    """
    if place == 0:
        return None
    name = manifest.others[place - 1].section
    section = read_sections(path).get(name)
    if section is None:
        raise ArtifactCorrupt(f"{path} has no {name}", path=str(path))
    return section.offset, section.size_bytes


def check_code(path: Path, manifest: Manifest, place: int) -> None:
    """Raise ArtifactCorrupt where the code of a part of the artifact at `path` is not what was packed.

    Files that older versions packed do not say what was.
    """
    extent = code_extent(path, manifest, place)
    wanted = manifest.digests.get(f"code.{place}" if place else "code")
    if wanted is None:
        return
    if (loaded_digest(path) if extent is None else digest_of(path, *extent)) != wanted:
        raise ArtifactCorrupt(f"{path} is damaged: its code has another digest than its manifest says", path=str(path))


def digest_of(path: Path, offset: int, size_bytes: int) -> str:
    """Return the SHA-256 of these bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(offset)
        for start in range(0, size_bytes, 1 << 20):
            digest.update(file.read(min(1 << 20, size_bytes - start)))
    return digest.hexdigest()


def weights_extent(path: Path, manifest: Manifest) -> tuple[Path, Section]:
    """Return the file that holds the weights of the artifact at `path`, and which bytes of it.

    A sidecar is looked for under the artifact's own name first, so that the two may be renamed together.
    Raise ArtifactNotFound or ArtifactCorrupt.
    """
    table = manifest.weights
    if table.file is None:
        section = read_sections(path).get(WEIGHTS_SECTION)
        if section is None:
            raise ArtifactCorrupt(f"{path} has no {WEIGHTS_SECTION}", path=str(path))
        return path, section
    for beside in (path.with_suffix(Path(table.file).suffix), path.with_name(table.file)):
        if beside.is_file():
            size = beside.stat().st_size
            if size != table.size_bytes:
                raise ArtifactCorrupt(f"{beside} has {size} bytes, not {table.size_bytes}", path=str(beside))
            return beside, Section(0, size)
    raise ArtifactNotFound(f"the weights of {path} are in {table.file}, which is not beside it", path=str(path))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def _manifest(data: Any) -> Manifest:
    fields = decode.Fields(data, "the manifest")
    version = fields.take("format", int)
    if version != FORMAT:
        raise ArtifactCorrupt(f"the manifest has format {version}; this relaxc reads format {FORMAT}")
    weights = decoded_table(fields.take("weights", dict))
    own, others = (fields.take("own_weights", int), fields.take("others", list)) if "others" in fields else (None, [])
    if own is not None and not (others and 0 <= own <= len(weights.tensors)):
        raise ArtifactCorrupt("the manifest has other parts, and does not say which weights are the first one's")
    manifest = Manifest(
        signature=decode.signature(fields.take("signature", dict)),
        target=decode.target(fields.take("target", dict)),
        requires=_requires(fields.take("requires", dict)),
        digests=fields.table("digests"),
        versions=fields.table("versions"),
        options=fields.take("options", dict),
        command=fields.take("command", str),
        schedule=decode.schedule(fields.take("schedule", list)),
        passes=fields.take("passes", dict),
        verification=decode.verification(fields.take("verification", (dict, str))),
        weights=weights,
        own_weights=own,
        others=decoded(others, len(weights.tensors)),
    )
    fields.done()
    return manifest


def _requires(value: Any) -> Requires:
    fields = decode.Fields(value, "requires")
    found = Requires(
        arch=fields.take("arch", str),
        features=fields.strings("features"),
        compute_capability=fields.maybe("compute_capability", str),
        runtime=fields.take("runtime", str),
    )
    fields.done()
    return found
