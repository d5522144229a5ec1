"""The scrub: it goes round everything stored, a little at a time, and finds what rotted."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

from relaxc.service.artifact.entry import remember
from relaxc.service.artifact.identity import identity_of
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.rows import Owner
from relaxc.service.jobs.scrub import Scrub
from tests.api.conftest import make_onnx

ANN = Owner("k_ann", frozenset({"read", "compile"}))


def test_rot_is_found_whoever_read_the_file_before_and_once_a_day(open_backend: Callable[..., Backend]) -> None:
    backend = open_backend()
    models = [make_onnx(size) for size in (4, 5)]
    for model in models:
        sha256 = hashlib.sha256(model).hexdigest()
        with backend.uploads.open(ANN, sha256, offset=0, total=len(model)) as part:
            part.write(model)
        backend.uploads.finish(ANN, sha256)
    with backend.models.open(sha256) as opened:
        opened.path.write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
        remember(identity_of(opened.path), sha256)  # as if no time had changed
    assert backend.models.is_whole(sha256)
    seconds = itertools.count(0.0, 0.4)
    scrub = Scrub(backend.store, backend.models, lambda: next(seconds))
    for _ in range(6):
        scrub()
    assert scrub.counts["model", "whole"] == scrub.counts["model", "damaged"] == 1
    assert not backend.models.is_whole(sha256)
