"""Programmatic dependent launch: no text lets the next kernel begin before its own wait is over."""

from __future__ import annotations

import re
from pathlib import Path

import relaxc.schedules.cuda

_TEXTS = sorted(Path(relaxc.schedules.cuda.__file__).parent.rglob("*.cuh"))


def test_the_next_kernel_begins_behind_the_wait_for_the_one_before():
    found = [line for text in _TEXTS for line in text.read_text().splitlines() if "griddepcontrol." in line]
    assert len(found) == 1
    assert re.search(r"griddepcontrol\.wait;\\ngriddepcontrol\.launch_dependents;", found[0])


def test_every_text_with_a_kernel_waits_where_it_is_launched_early():
    waits = {text.stem for text in _TEXTS if "earlier_kernels_done();" in text.read_text()}
    assert waits >= {"kernel", "decoding", "rows", "elementwise", "transposed", "slab", "ring", "windows", "blocks"}
