"""Damaged and hostile `.pt2` archives: name → how to make the file in a folder, and the code of the error it gives.

Each is a small good archive with one thing changed. The codes are those of `frontend.identify` and then
`frontend.load`; the HTTP tests post the same files.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["MALFORMED", "Payload", "archive", "edited", "payload", "write"]

Builder = Callable[[Path], Path]
Entries = dict[str, bytes]

_MODEL = "models/model.json"
_WEIGHTS = "data/weights/model_weights_config.json"
_CONSTANTS = "data/constants/model_constants_config.json"


class Payload:
    """An object whose unpickling creates the folder `path`: proof that code in an archive was run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def payload(folder: Path) -> bytes:
    """A pickle that creates `folder`/pwned."""
    return pickle.dumps(Payload(folder / "pwned"))


@functools.lru_cache(maxsize=4)
def archive(dynamic: bool = False) -> Entries:
    """The entries of a good archive (Linear, ReLU, Linear, BatchNorm), below its root; `dynamic` in its batch."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.BatchNorm1d(4)).eval()
        shapes = {"input": {0: torch.export.Dim("batch", min=1, max=8)}} if dynamic else None
        program = torch.export.export(module, (torch.randn(2, 8),), dynamic_shapes=shapes)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with zipfile.ZipFile(buffer) as opened:
        return {info.filename.split("/", 1)[1]: opened.read(info) for info in opened.infolist()}


def write(path: Path, entries: Entries, root: str = "m", compress: int = zipfile.ZIP_STORED) -> Path:
    """A zip of `entries` below `root`."""
    with zipfile.ZipFile(path, "w", compress) as opened:
        for name, data in entries.items():
            opened.writestr(f"{root}/{name}", data)
    return path


def edited(folder: Path, entry: str, edit: Callable[[Any], Any], *, dynamic: bool = False) -> Path:
    """The good archive with the JSON of one entry changed in place by `edit`, or replaced by what it returns."""
    entries = dict(archive(dynamic))
    document = json.loads(entries[entry])
    result = edit(document)
    entries[entry] = json.dumps(document if result is None else result).encode()
    return write(folder / "model.pt2", entries)


def _bytes(change: Callable[[bytes], bytes]) -> Builder:
    def build(folder: Path) -> Path:
        path = write(folder / "model.pt2", archive())
        path.write_bytes(change(path.read_bytes()))
        return path

    return build


def _entries(change: Callable[[Entries, Path], None], **how: Any) -> Builder:
    def build(folder: Path) -> Path:
        entries = dict(archive())
        change(entries, folder)
        return write(folder / "model.pt2", entries, **how)

    return build


def _json(entry: str, edit: Callable[[Any], Any], *, dynamic: bool = False) -> Builder:
    return lambda folder: edited(folder, entry, edit, dynamic=dynamic)


def _graph(edit: Callable[[Any], Any], *, dynamic: bool = False) -> Builder:
    return _json(_MODEL, lambda document: edit(document["graph_module"]["graph"]), dynamic=dynamic)


def _first_weight(document: Any) -> Any:
    return next(iter(document["config"].values()))


def _encrypted(data: bytes) -> bytes:
    """Sets the encryption flag of every entry, in its local header and in the central directory."""
    changed = bytearray(data)
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = changed.find(magic)
        while place >= 0:
            changed[place + at] |= 1
            place = changed.find(magic, place + 4)
    return bytes(changed)


def _claiming(size: int) -> Callable[[bytes], bytes]:
    """Writes `size` as both sizes of the first entry into the central directory."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        (directory,) = struct.unpack_from("<I", changed, changed.rfind(b"PK\x05\x06") + 16)
        struct.pack_into("<II", changed, directory + 20, size, size)
        return bytes(changed)

    return change


def _flipped(data: bytes) -> bytes:
    """One bit of a weight."""
    changed = bytearray(data)
    name = changed.find(b"data/weights/weight_0")
    changed[name + len("data/weights/weight_0") + 3] ^= 0x40
    return bytes(changed)


def _twice(folder: Path) -> Path:
    path = write(folder / "model.pt2", archive())
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as opened:
        warnings.simplefilter("ignore")  # zipfile warns of the duplicate
        opened.writestr(f"m/{_MODEL}", b"{}")
    return path


def _add(name: str, data: bytes) -> Callable[[Entries, Path], None]:
    return lambda entries, folder: entries.update({name: data})


def _drop(*prefixes: str) -> Callable[[Entries, Path], None]:
    def change(entries: Entries, folder: Path) -> None:
        for name in [name for name in entries if name.startswith(prefixes)]:
            del entries[name]

    return change


def _legacy_pickle(entries: Entries, folder: Path) -> None:
    entries["data/weights/model.pt"] = payload(folder)


def _legacy_zip_pickle(entries: Entries, folder: Path) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save({"0.weight": Payload(folder / "pwned")}, buffer)
    entries["data/weights/model.pt"] = buffer.getvalue()


def _pickled_weight(entries: Entries, folder: Path) -> None:
    config = json.loads(entries[_WEIGHTS])
    weight = _first_weight(config)
    weight["use_pickle"] = True
    entries[_WEIGHTS] = json.dumps(config).encode()
    entries[f"data/weights/{weight['path_name']}"] = payload(folder)


def _constant(path_name: str, pickled: bool) -> Callable[[Entries, Path], None]:
    def change(entries: Entries, folder: Path) -> None:
        entry = {"path_name": path_name, "is_param": False, "use_pickle": pickled, "tensor_meta": None}
        entries[_CONSTANTS] = json.dumps({"config": {"object": entry}}).encode()
        entries[f"data/constants/{path_name}"] = payload(folder)

    return change


def _target(target: str) -> Builder:
    return _graph(lambda graph: graph["nodes"][0].update(target=target))


def _renamed(old: str, new: str) -> Callable[[Any], Any]:
    return lambda document: json.loads(json.dumps(document).replace(f'"{old}"', json.dumps(new)))


def _reversed(graph: Any) -> None:
    graph["nodes"].reverse()


def _cyclic(graph: Any) -> None:
    first, last = graph["nodes"][0], graph["nodes"][-1]
    first["inputs"][0]["arg"] = {"as_tensor": {"name": last["name"]}}


def _doubled(graph: Any) -> None:
    graph["nodes"].insert(1, graph["nodes"][0])


def _expression(text: str) -> Callable[[Any], Any]:
    def change(graph: Any) -> None:
        graph["tensor_values"]["input"]["sizes"][0]["as_expr"]["expr_str"] = text

    return change


def _train_mode(folder: Path) -> Path:
    import torch

    program = torch.export.export(torch.nn.BatchNorm1d(4).train(), (torch.randn(2, 4),))
    torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2"


def _complex(graph: Any) -> None:
    graph["tensor_values"]["input"]["dtype"] = 10


_EVAL = "__import__('os').system('touch pwned')"
_ZEROS = bytes(64 << 20)

MALFORMED: dict[str, tuple[Builder, str]] = {
    # The zip
    "truncated": (_bytes(lambda data: data[: len(data) // 2]), "model-malformed"),
    "cut in its directory": (_bytes(lambda data: data[:-10]), "model-malformed"),
    "wrong magic": (_bytes(lambda data: b"ZZ" + data[2:]), "unknown-format"),
    "empty zip": (lambda folder: write(folder / "model.pt2", {}), "unknown-format"),
    "no file content": (_bytes(lambda data: b""), "unknown-format"),
    "encrypted entries": (_bytes(_encrypted), "model-malformed"),
    "flipped bit in a weight": (_bytes(_flipped), "model-malformed"),
    "4 GB claim in a small entry": (_bytes(_claiming(0xFFFFFFF0)), "model-malformed"),
    "duplicate entry": (_twice, "model-malformed"),
    "zip bomb": (
        _entries(_add("data/weights/weight_99", _ZEROS), compress=zipfile.ZIP_DEFLATED),
        "model-too-large",
    ),
    "path out of the archive": (_entries(_add("../../etc/cron.d/job", b"x")), "model-unsafe"),
    "absolute path": (_entries(_add("/etc/passwd", b"x")), "model-unsafe"),
    # The archive
    "no program": (_entries(_drop("models/")), "model-malformed"),
    "two programs": (_entries(_add("models/other.json", b"{}")), "unsupported-model"),
    "version from the future": (_entries(_add("archive_version", b"99")), "unsupported-model"),
    "machine code of AOTInductor": (
        _entries(lambda e, f: (_drop("models/")(e, f), _add("data/aotinductor/model/m.so", b"ELF")(e, f))[0]),
        "unsupported-model",
    ),
    "big-endian": (_entries(_add("byteorder", b"big")), "unsupported-model"),
    # Pickles
    "pickled weight": (_entries(_pickled_weight), "model-unsafe"),
    "pickled legacy weights": (_entries(_legacy_pickle), "model-unsafe"),
    "payload in torch.save": (_entries(_legacy_zip_pickle), "model-unsafe"),
    "custom object": (_entries(_constant("custom_obj_0", True)), "model-unsafe"),
    "opaque object": (_entries(_constant("opaque_obj_0", True)), "model-unsafe"),
    "pickled constant": (_entries(_constant("tensor_0", True)), "model-unsafe"),
    # The JSON
    "garbage for JSON": (_entries(_add(_MODEL, b"\xff\x00 not json")), "model-malformed"),
    "deeply nested JSON": (_entries(_add(_MODEL, b"[" * 200_000)), "model-malformed"),
    "another JSON": (_entries(_add(_MODEL, b"[1, 2]")), "model-malformed"),
    "a number for a name": (_graph(lambda graph: graph["nodes"][0].update(target=3)), "model-malformed"),
    "an integer of 80 bits": (
        _graph(lambda graph: graph["tensor_values"]["input"]["sizes"][1].update(as_int=1 << 80)),
        "model-malformed",
    ),
    "schema from the future": (
        _json(_MODEL, lambda document: document["schema_version"].update(major=99)),
        "unsupported-model",
    ),
    "opset from the future": (
        _json(_MODEL, lambda document: document["opset_version"].update(aten=9999)),
        "unsupported-model",
    ),
    "unknown dialect": (_json(_MODEL, lambda document: document.update(verifiers=["MINE"])), "unsupported-model"),
    # Weights
    "weight larger than its entry": (
        _json(_WEIGHTS, lambda d: _first_weight(d)["tensor_meta"]["sizes"][0].update(as_int=4000)),
        "model-malformed",
    ),
    "weight outside its entry": (
        _json(_WEIGHTS, lambda d: _first_weight(d)["tensor_meta"].update(storage_offset={"as_int": 1 << 40})),
        "model-malformed",
    ),
    "weight of negative size": (
        _json(_WEIGHTS, lambda d: _first_weight(d)["tensor_meta"]["sizes"][0].update(as_int=-4)),
        "model-malformed",
    ),
    "weight of a terabyte by stride 0": (
        _json(
            _WEIGHTS,
            lambda d: _first_weight(d)["tensor_meta"].update(
                sizes=[{"as_int": 1 << 20}, {"as_int": 1 << 20}], strides=[{"as_int": 0}, {"as_int": 0}]
            ),
        ),
        "model-too-large",
    ),
    "weight of another dtype": (
        _json(_WEIGHTS, lambda d: _first_weight(d)["tensor_meta"].update(dtype=4)),
        "model-malformed",
    ),
    "unknown dtype": (
        _json(_WEIGHTS, lambda d: _first_weight(d)["tensor_meta"].update(dtype=77)),
        "model-malformed",
    ),
    "missing weight": (_json(_WEIGHTS, lambda d: d["config"].pop("0.weight") and None), "model-malformed"),
    "missing entry of a weight": (_entries(_drop("data/weights/weight_0")), "model-malformed"),
    # The graph
    "unknown operator": (_target("torch.ops.aten.does_not_exist.default"), "unsupported-model"),
    "operator of a domain that we do not have": (_target("torch.ops.mylib.fused.default"), "unsupported-model"),
    "operator that reads files": (_target("torch.ops.aten.from_file.default"), "unsupported-model"),
    "target that is a Python function": (_target("torch.os.system"), "unsupported-model"),
    "target through an attribute": (_target("torch.ops.aten.__class__.mro"), "unsupported-model"),
    "cyclic graph": (_graph(_cyclic), "model-malformed"),
    "nodes in the wrong order": (_graph(_reversed), "model-malformed"),
    "duplicate names": (_graph(_doubled), "model-malformed"),
    "negative size": (
        _graph(lambda graph: graph["tensor_values"]["input"]["sizes"][1].update(as_int=-8)),
        "model-malformed",
    ),
    "zero size": (
        _graph(lambda graph: graph["tensor_values"]["input"]["sizes"][1].update(as_int=0)),
        "model-malformed",
    ),
    "input of another size": (
        _graph(lambda graph: graph["tensor_values"]["input"]["sizes"][1].update(as_int=9)),
        "model-malformed",
    ),
    "complex input": (_graph(_complex), "unsupported-model"),
    "no tree spec": (
        _json(_MODEL, lambda d: d["graph_module"]["module_call_graph"][0]["signature"].update(in_spec="no")),
        "model-malformed",
    ),
    "buffers that change": (_train_mode, "unsupported-model"),
    # Text that torch evaluates or pastes into Python source
    "sympy injection": (_graph(_expression(_EVAL), dynamic=True), "model-unsafe"),
    "sympy injection in a name": (
        _graph(_expression(f"Symbol('s0').__class__({_EVAL!r})"), dynamic=True),
        "model-unsafe",
    ),
    "sympy tower of powers": (
        _graph(_expression("Pow(Integer(9), Pow(Integer(9), Integer(999999)))"), dynamic=True),
        "model-unsafe",
    ),
    "range of a symbol that is code": (
        _json(_MODEL, lambda d: d["range_constraints"].update({_EVAL: {"min_val": 1, "max_val": 2}}), dynamic=True),
        "model-unsafe",
    ),
    "node name that is code": (_json(_MODEL, _renamed("linear", f"x\n    {_EVAL}\n    y")), "model-unsafe"),
    "input name that is code": (_json(_MODEL, _renamed("input", f"x=({_EVAL})")), "model-unsafe"),
    "weight name that is code": (_json(_MODEL, _renamed("0.weight", f'a"); {_EVAL} #')), "model-unsafe"),
}
"""The table. A builder writes one file below the folder that it gets, and returns its path."""
