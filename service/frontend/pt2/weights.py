"""The tensors of a `.pt2`, as views of the mapped file: raw bytes plus a checked shape, stride and offset each."""

from __future__ import annotations

import io
import warnings
import zipfile
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import ModelMalformed, ModelTooLarge, ModelUnsafe, UnsupportedModel
from relaxc.service.frontend.pt2 import schema as pt2_schema
from relaxc.service.frontend.pt2.archive import Archive
from relaxc.service.frontend.pt2.check import check_weight_name

__all__ = ["load_constants", "load_weights"]

_WEIGHTS = "data/weights/"
_CONSTANTS = "data/constants/"
_MAX_RANK = 64
_PICKLED = "torch.load of its pickle would run code that the file carries"


def load_weights(archive: Archive, model: str) -> dict[str, Any]:
    """Return parameters and buffers by name. Raise ModelUnsafe for pickled entries, ModelMalformed for what does not
    fit.
    """
    return _load(archive, _WEIGHTS, f"{model}_weights_config.json", model)


def load_constants(archive: Archive, model: str) -> dict[str, Any]:
    """Return lifted tensor constants by name. Raise as `load_weights` does, and ModelUnsafe for custom objects."""
    return _load(archive, _CONSTANTS, f"{model}_constants_config.json", model)


def _load(archive: Archive, folder: str, config: str, model: str) -> dict[str, Any]:
    from torch._export.serde.schema import PayloadConfig

    if f"{folder}{model}.pt" in archive:
        return _legacy(archive, f"{folder}{model}.pt")
    payloads = pt2_schema.parse(PayloadConfig, archive.json(folder + config), config).config
    _check_total(payloads)
    storages: dict[str, Any] = {}
    tensors = {}
    for name, payload in payloads.items():
        check_weight_name(name)
        _check_payload(name, payload)
        if payload.path_name not in storages:
            storages[payload.path_name] = _storage(archive, folder + payload.path_name)
        tensors[name] = _parameter(_tensor(name, storages[payload.path_name], payload.tensor_meta), payload.is_param)
    return tensors


def _check_payload(name: str, payload: Any) -> None:
    if payload.use_pickle or not payload.path_name.startswith(("weight_", "tensor_")):
        raise ModelUnsafe(f"{name} is stored as a pickled object: {_PICKLED}", name=name, entry=payload.path_name)
    if payload.tensor_meta is None:
        raise ModelMalformed(f"{name} has no shape", name=name)


def _check_total(payloads: dict[str, Any]) -> None:
    """A stride of zero makes any size out of one number, so the sizes are limited as the archive is."""
    total, limit = 0, settings().max_unpacked_bytes
    for payload in payloads.values():
        if payload.tensor_meta is not None:
            count = 1
            for size in payload.tensor_meta.sizes:
                count *= max(_whole("a weight", size), 0)
            total += count
    if total > limit:
        raise ModelTooLarge(f"the weights have {total} elements; RELAXC_MAX_UNPACKED_BYTES allows {limit} bytes")


def _storage(archive: Archive, entry: str) -> Any:
    import torch

    data = archive.read(entry)
    if len(data) == 0:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of read-only memory: only a reference run could write, and maps it writable
        return torch.frombuffer(data, dtype=torch.uint8)


def _tensor(name: str, storage: Any, meta: Any) -> Any:
    import torch
    from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

    if meta.layout.name != "Strided":
        raise UnsupportedModel(f"{name} has the layout {meta.layout.name}; only dense tensors are taken", name=name)
    if meta.dtype not in _SERIALIZE_TO_TORCH_DTYPE:
        raise ModelMalformed(f"{name} has the unknown dtype {int(meta.dtype)}", name=name)
    dtype = _SERIALIZE_TO_TORCH_DTYPE[meta.dtype]
    sizes = [_whole(name, dim) for dim in meta.sizes]
    strides = [_whole(name, dim) for dim in meta.strides]
    offset = _whole(name, meta.storage_offset)
    if len(sizes) != len(strides) or len(sizes) > _MAX_RANK or min([*sizes, *strides, offset], default=0) < 0:
        raise ModelMalformed(f"{name} has the sizes {sizes}, the strides {strides} and the offset {offset}", name=name)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    needed = 0 if 0 in sizes else (last + 1) * dtype.itemsize
    if needed > storage.numel():
        raise ModelMalformed(
            f"{name} needs {needed} bytes, its entry has {storage.numel()}", name=name, size_bytes=storage.numel()
        )
    if storage.data_ptr() % dtype.itemsize:  # a zip that torch did not write need not align its entries
        storage = storage.clone()
    flat = storage[: storage.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return torch.as_strided(flat, sizes, strides, offset)


def _whole(name: str, dim: Any) -> int:
    if str(dim.type) != "as_int":
        raise ModelMalformed(f"{name} has a symbolic size, which a stored tensor cannot have", name=name)
    return int(dim.as_int)


def _parameter(tensor: Any, is_parameter: bool) -> Any:
    import torch

    return torch.nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor


def _legacy(archive: Archive, entry: str) -> dict[str, Any]:
    """The weights as torch 2.7 and 2.8 wrote them, by torch's unpickler that makes tensors and nothing else."""
    import pickle

    import torch

    data = bytes(archive.read(entry))
    if not data:
        return {}
    _check_inner(entry, data)
    try:
        found = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise ModelUnsafe(f"{entry} holds more than tensors: {_PICKLED}", entry=entry) from error
    except (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError) as error:
        raise ModelMalformed(f"{entry} is damaged: {str(error)[:200]}", entry=entry) from error
    if not isinstance(found, dict) or not all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in found.values()):
        raise ModelUnsafe(f"{entry} holds more than tensors by name", entry=entry)
    for name in found:
        check_weight_name(str(name))
    return {str(name): tensor.detach() for name, tensor in found.items()}


def _check_inner(entry: str, data: bytes) -> None:
    """torch.save wrote a zip of its own, whose claims are checked before it is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            size = sum(info.file_size for info in inner.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ModelUnsafe(f"{entry} is not a zip of tensors: {_PICKLED}", entry=entry) from error
    if size > settings().max_unpacked_bytes:
        raise ModelTooLarge(f"{entry} would unpack to {size} bytes (RELAXC_MAX_UNPACKED_BYTES)", size_bytes=size)
