"""The weights of an artifact as its manifest lists them, and the file that they are in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relaxc.service.artifact import decode
from relaxc.service.errors import ArtifactCorrupt
from relaxc.service.signature import TensorSpec

__all__ = ["WeightsTable", "decoded_table"]


@dataclass(frozen=True, slots=True)
class WeightsTable:
    """The weights in the order in which `main` takes them, and the file they are in.

    `file` None: the artifact's own section. Else a safetensors file of that name, or of the artifact's own name
    with that suffix, beside the artifact. `sha256` and `size_bytes` are those of the image, wherever it is; files that
    older versions packed have no digest of one inside.
    """

    tensors: tuple[TensorSpec, ...] = ()
    file: str | None = None
    sha256: str | None = None
    size_bytes: int = 0

    def of(self, places: Iterable[int]) -> WeightsTable:
        """Return the table of some of the weights, in this order, in the same file."""
        return replace(self, tensors=tuple(self.tensors[place] for place in places))

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        rows = [[t.name, t.dtype, list(t.shape)] for t in self.tensors]
        return {"tensors": rows, "file": self.file, "sha256": self.sha256, "size_bytes": self.size_bytes}


def decoded_table(value: Any) -> WeightsTable:
    """Return the table that `to_dict` described. Raise ArtifactCorrupt."""
    fields = decode.Fields(value, "weights")
    rows = []
    for i, row in enumerate(fields.take("tensors", list)):
        match row:
            case [name, dtype, [*shape]] if all(type(size) is int for size in shape):
                rows.append(decode.tensor({"name": name, "dtype": dtype, "shape": shape}, f"weights.tensors[{i}]"))
            case _:
                raise ArtifactCorrupt(f"weights.tensors[{i}] is not a name, a dtype and a shape")
    file, sha256 = fields.maybe("file", str), fields.maybe("sha256", str)
    if file is not None and (Path(file).name != file or not file.endswith(".safetensors") or sha256 is None):
        raise ArtifactCorrupt(f"weights.file {file!r} is not a safetensors file beside the artifact, with its digest")
    table = WeightsTable(tuple(rows), file, sha256, fields.take("size_bytes", int))
    fields.done()
    if len({row.name for row in rows}) != len(rows):
        raise ArtifactCorrupt("the weights' names are repeated")
    return table
