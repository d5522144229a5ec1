"""The form that carries a model, for OpenAPI."""

from __future__ import annotations

from typing import Any

__all__ = ["compile_form", "model_form"]

_OPTIONS_EXAMPLE = '{"precision": "fp32", "opt_level": 2, "shapes": {"x": [1, 3, 224, 224]}, "verify": true, "seed": 0}'
_MODEL = {
    "model": {
        "type": "string",
        "format": "binary",
        "description": "An ONNX file, or a .pt2 of torch.export.save.",
    },
    "data": {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "description": "ONNX external data, and samples to calibrate with, each under its plain file name.",
    },
}
_COMPILE = {
    "options": {
        "type": "string",
        "description": "JSON with any of precision, calibration, weights, small_weights, opt_level, shapes, state,"
        " verify, seed.",
        "example": _OPTIONS_EXAMPLE,
    },
    "target": {
        "type": "string",
        "description": "auto, a name that /v1/targets lists, several CUDA devices of them with commas, or target JSON.",
        "default": "auto",
        "example": "x86-64-v4",
    },
}


def model_form() -> dict[str, Any]:
    """Return `openapi_extra` of a call that takes a model."""
    return _form(_MODEL)


def compile_form() -> dict[str, Any]:
    """Return `openapi_extra` of a call that takes a model and how to compile it."""
    return _form(_MODEL | _COMPILE)


def _form(properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": ["model"], "properties": properties, "additionalProperties": False}
    encoding = {"model": {"contentType": "application/octet-stream"}}
    return {
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": {"schema": schema, "encoding": encoding}},
        }
    }
