"""The parser of event streams, on the cases of the standard, in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaxc.service.client import sse
from relaxc.service.client.sse import Message, Parser


def parsed(*chunks: bytes) -> list[Message]:
    parser = Parser()
    return [message for chunk in chunks for message in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "messages"),
    [
        (b"data: a\n\n", [Message("message", "a", "")]),
        (b"data:a\ndata: b\n\n", [Message("message", "a\nb", "")]),
        (b"data:  two spaces\n\n", [Message("message", " two spaces", "")]),
        (b"event: stage\nid: 7\ndata: {}\n\n", [Message("stage", "{}", "7")]),
        (b"id: 7\ndata: a\n\ndata: b\n\n", [Message("message", "a", "7"), Message("message", "b", "7")]),
        (b": ping\n\ndata: a\n\n", [Message("message", "a", "")]),
        (b"event: lost\n\ndata: a\n\n", [Message("message", "a", "")]),
        (b"data\n\n", [Message("message", "", "")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [Message("message", text, "") for text in "abc"]),
        (b"id: a\0b\ndata: x\n\n", [Message("message", "x", "")]),
        (b"retry: 10\nunknown: x\ndata: a\n\n", [Message("message", "a", "")]),
        ("\ufeffdata: ü\n\n".encode(), [Message("message", "ü", "")]),
        (b"data: cut off\n", []),
        (b"", []),
    ],
)
def test_what_the_standard_says(stream: bytes, messages: list[Message]) -> None:
    assert parsed(stream) == messages


@given(st.data())
def test_pieces_do_not_matter(data: st.DataObject) -> None:
    stream = "id: 1\r\nevent: log\r\ndata: größer\r\ndata: 2\r\n\r\n: c\n\nid: 2\rdata: x\r\rdata: y\n\n".encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parsed(*chunks) == [
        Message("log", "größer\n2", "1"),
        Message("message", "x", "2"),
        Message("message", "y", "2"),
    ]


def test_an_event_that_was_cut_off_has_no_id_yet() -> None:
    parser = Parser(last_id="3")
    assert list(parser.feed(b"id: 4\ndata: x\n")) == []
    assert parser.last_id == "3"
    assert list(parser.feed(b"\n")) == [Message("message", "x", "4")]
    assert parser.last_id == "4"


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_CHARS", 100)
    with pytest.raises(ValueError, match="over 100"):
        parsed(b"data: " + b"x" * 50 + b"\ndata: " + b"x" * 60)
