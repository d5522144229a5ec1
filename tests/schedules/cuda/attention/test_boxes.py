"""Boxes of keys and values: where a map has two axes, an element lies where one of four axes has it."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from benchmarks.gpu.attention_cases import AttentionCase, prim_func
from relaxc.schedules.cuda.attention.boxes import boxes_of
from relaxc.schedules.cuda.attention.decoding_sm90 import packed
from relaxc.schedules.cuda.attention.form import match

STEP = AttentionCase(2, 8, 1, 1024, 128, shared=4, layout="bhsd")
_ROWS = 64


def made(case, rows=_ROWS):
    form = packed(match(prim_func(case)))
    return form, boxes_of(form, form.k, form.heads // form.group, rows)


@pytest.mark.parametrize(
    "case",
    [
        STEP, replace(STEP, layout="bshd"), replace(STEP, layout="merged", queries=384, keys=384),
        replace(STEP, layout="flat"), replace(STEP, batch=1, layout="bshd"), replace(STEP, head=96),
        replace(STEP, keys=960, page=64, layout="bhsd"), replace(STEP, page=128, layout="bshd"),
    ],
    ids=["by heads", "by keys", "merged", "flat", "one batch", "96 columns", "pages", "pages by keys"],
)  # fmt: skip
def test_two_axes_name_the_same_place_as_four(case):
    form, boxes = made(case)
    at = form.k
    assert len(boxes.map.dims) == 2
    across, down, beyond = map(int, re.findall(r"(?:head|batch) \* (\d+)", boxes.call))
    (width, height), (pitch,) = boxes.map.dims, boxes.map.strides
    size, count = (at.pages.rows, at.pages.count) if at.pages else (form.keys, form.batch)
    for batch, head, row in itertools.product((0, count - 1), (0, form.heads // form.group - 1), (0, size - _ROWS)):
        head += at.head_at
        x, y = head * across, at.row_at + row + head * down + batch * beyond
        assert y * pitch + x == (at.row_at + row) * at.rows + head * at.heads + batch * at.batches
        assert x + form.head <= width and y + _ROWS <= height
    if at.pages:  # of a page that is not there, all lies outside
        assert all(head * down + count * beyond >= height for head in range(form.heads // form.group))


@pytest.mark.parametrize(
    "case",
    [replace(STEP, keys=1000), replace(STEP, head=96, layout="bshd"), replace(STEP, head=40, layout="bshd")],
    ids=["a box would reach into the next head", "a box would bring the next head's columns", "likewise"],
)
def test_four_axes_bring_zeros_where_two_would_bring_other_rows(case):
    assert len(made(case)[1].map.dims) == 4
