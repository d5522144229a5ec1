"""Every damaged, hostile or unsupported ONNX file gives its documented error, quickly."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import pytest

from service.errors import ModelError, by_code
from service.frontend import digest, identify, load
from tests.malformed_onnx import MALFORMED_ONNX


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """The service's workers have these imported before they see a model."""
    importlib.import_module("service.frontend.onnx_import")


@pytest.mark.parametrize("name", MALFORMED_ONNX)
def test_documented_error(name: str, tmp_path: Path) -> None:
    builder, code = MALFORMED_ONNX[name]
    path = builder(tmp_path)
    start = time.monotonic()
    with pytest.raises(ModelError) as caught:
        format = identify(path)
        digest(path, format)
        load(path, format)
    assert caught.value.code == code, caught.value.message
    assert by_code()[code] is type(caught.value)
    assert "\n" not in caught.value.message
    assert time.monotonic() - start < 10


def test_table_is_large_enough() -> None:
    assert len(MALFORMED_ONNX) >= 22
