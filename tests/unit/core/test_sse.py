"""Server-sent events: frames by vectors, and the reader against vectors, an independent reader, and every way to cut a stream."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.sse import KEEP_ALIVE, MAX_EVENT, Event, SseDecoder, SseLimitError, comment, frame

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "sse.json").read_text(encoding="utf-8"))


def _rows(name: str) -> list[Any]:
    return [pytest.param(row, id=row["case"]) for row in VECTORS[name]]


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _event(row: list[str]) -> Event:
    data, event, event_id = row
    return Event(_bytes(data), event, event_id)


def read_whole(stream: bytes) -> tuple[list[Event], str, int | None]:
    """The standard's algorithm over a whole stream, as plainly as it reads: events, last event id, retry."""
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))[:-1]
    events: list[Event] = []
    data: list[bytes] = []
    event = current = last = ""
    retry: int | None = None
    for line in lines:
        if line == b"":
            last = current
            if data:
                events.append(Event(b"\n".join(data), event or "message", current))
            data, event = [], ""
            continue
        name, value = [*line.split(b":", 1), b""][:2]
        value = value[1:] if value[:1] == b" " else value
        match name:
            case b"data":
                data.append(value)
            case b"event":
                event = value.decode("utf-8", "replace")
            case b"id" if b"\0" not in value:
                current = value.decode("utf-8", "replace")
            case b"retry" if re.fullmatch(rb"[0-9]{1,12}", value):
                retry = int(value)
            case _:
                pass
    return events, last, retry


# The writer


@pytest.mark.parametrize("row", _rows("frames"))
def test_writes_a_frame_that_the_reader_gives_back(row: dict[str, Any]) -> None:
    """HM-14: without options a frame has no id; what is written is what is read."""
    arguments = dict(row["arguments"])
    wire = frame(_bytes(arguments.pop("data")), **arguments)
    assert wire == _bytes(row["wire"])
    decoder = SseDecoder()
    assert decoder.feed(wire) == [_event(row["event"])]
    assert decoder.retry == arguments.get("retry")


@pytest.mark.parametrize("field", ["event", "id"])
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\r\n", "\0"])
def test_refuses_a_field_that_would_read_as_something_else(field: str, value: str) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=f"{field} of a server-sent event holds a line end or NUL"):
        frame(b"", **arguments)


def test_refuses_a_negative_retry() -> None:
    with pytest.raises(ValueError, match="retry of a server-sent event is -1"):
        frame(b"", retry=-1)


def test_comments_are_nothing_to_the_reader() -> None:
    """HM-13: keep-alives are comments, which clients ignore."""
    assert comment() == KEEP_ALIVE == b": keep-alive\n\n"
    assert comment(b"data: x") == b": data: x\n\n"
    assert SseDecoder().feed(comment(b"data: x") + KEEP_ALIVE) == []


@pytest.mark.parametrize("text", [b"a\ndata: x", b"a\r", b"\n"])
def test_refuses_a_comment_of_several_lines(text: bytes) -> None:
    with pytest.raises(ValueError, match="is one line"):
        comment(text)


# The reader


@pytest.mark.parametrize("row", _rows("streams"))
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_reads_a_stream(row: dict[str, Any], step: int) -> None:
    stream = _bytes(row["stream"])
    decoder = SseDecoder()
    events = [event for start in range(0, len(stream), step) for event in decoder.feed(stream[start : start + step])]
    assert events == [_event(event) for event in row["events"]]
    assert (decoder.last_event_id, decoder.retry) == (row["last_event_id"], row["retry"])


@pytest.mark.parametrize("row", _rows("streams"))
def test_the_plain_reader_agrees_with_the_vectors(row: dict[str, Any]) -> None:
    assert read_whole(_bytes(row["stream"])) == ([_event(event) for event in row["events"]], row["last_event_id"], row["retry"])


PIECES = [
    b"data",
    b"event",
    b"id",
    b"retry",
    b":",
    b" ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"a",
    b"12",
    b"\0",
    b"\xef\xbb\xbf",
    b"\xff",
    b"data: x\n\n",
]
STREAMS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=24).map(b"".join)


@settings(deadline=None)
@given(STREAMS, st.lists(st.integers(0, 80)))
def test_reads_any_stream_like_a_plain_reader_however_it_is_cut(stream: bytes, cuts: list[int]) -> None:
    expected = read_whole(stream)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for chunks in (
        [stream[i : i + 1] for i in range(len(stream))],
        [stream[start:end] for start, end in pairwise(places)],
        [stream],
    ):
        decoder = SseDecoder()
        events = [event for chunk in chunks for event in (*decoder.feed(chunk), *decoder.feed(b""))]
        assert (events, decoder.last_event_id, decoder.retry) == expected


@settings(deadline=None)
@given(st.binary(max_size=40), st.none() | st.text("ab1 é", max_size=5), st.none() | st.text("ab1 é", max_size=5))
def test_a_frame_read_is_the_frame_written(data: bytes, event: str | None, event_id: str | None) -> None:
    (read,) = SseDecoder().feed(frame(data, event=event, id=event_id))
    assert read == Event(re.sub(rb"\r\n|\r", b"\n", data), event or "message", event_id or "")


def test_a_large_event_is_delivered() -> None:
    """A45: 3 MiB are fine by default."""
    data = b"x" * (3 * 1024 * 1024)
    decoder = SseDecoder()
    wire = frame(data)
    events = [event for start in range(0, len(wire), 65536) for event in decoder.feed(wire[start : start + 65536])]
    assert events == [Event(data)]
    assert decoder.max_event == MAX_EVENT == 16 * 1024 * 1024


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    "large",
    [b"data: 12345678901", b"data: 12345678901\n\n", b": a long comment", b"data: 12\ndata: 34\ndata: 567\ndata: 8\n\n", b"data\n" * 20],
)
def test_an_event_over_the_limit_is_an_error_that_names_it(large: bytes, step: int) -> None:
    """A45: whatever the chunks, the events before it are delivered and the limit is named."""
    stream = b"data: a\n\n" + large
    events: list[Event] = []

    def read() -> None:
        decoder = SseDecoder(max_event=15)
        for start in range(0, len(stream), step):
            events.extend(decoder.feed(stream[start : start + step]))

    with pytest.raises(SseLimitError, match=r"max_event \(15 bytes\)") as caught:
        read()
    assert [*events, *caught.value.events] == [Event(b"a")]
    assert caught.value.limit == 15


def test_the_limit_counts_each_event_alone() -> None:
    decoder = SseDecoder(max_event=15)
    assert decoder.feed(b"data: 123456789\n\n" * 50) == [Event(b"123456789")] * 50


def test_closing_drops_what_is_incomplete_and_resumes_with_the_last_id() -> None:
    decoder = SseDecoder()
    decoder.feed(b"retry: 5\nid: 1\ndata: a\n\nid: 2\nevent: x\ndata: lost\nda")
    decoder.close()
    assert (decoder.last_event_id, decoder.retry) == ("1", 5)
    assert decoder.feed(b"\xef\xbb\xbfdata: b\n\n") == [Event(b"b", "message", "1")]
    decoder.feed(b"data: c\r")
    decoder.close()
    assert decoder.feed(b"\ndata: d\n\n") == [Event(b"d", "message", "1")]
