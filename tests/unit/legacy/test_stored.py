"""Sessions that workers share: how messages travel, and what holds in memory."""

import logging

import pytest
from session_cases import CASES, KEEP, Case
from session_fleet import MemoryFleet, a_record

from callboard.legacy.stored import (
    Changed,
    Finished,
    Message,
    Moved,
    Occurred,
    Read,
    Relayed,
    Turned,
    Yielded,
    decode_message,
    decode_record,
    encode_message,
    encode_record,
    worker_of,
)

MESSAGES: list[Message] = [
    Changed("s"),
    Finished("s"),
    Turned("s", "w:1"),
    Occurred("s", "g0", 7, b"\0\xff", last=True),
    Moved("s", "c1"),
    Yielded("s", "w:2"),
    Read("s", "w:3", 9),
    Relayed("s", "cancel", b"{}"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_travels(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x92\xa4news\xa1s", b"\x92\xa5event\xa1s", b"\x81\xa1a\xa1b"])
def test_a_message_of_another_release_is_logged_and_harms_nobody(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "callboard"):
        assert decode_message(data) is None
    assert "same release" in caplog.text


def test_a_record_is_kept_with_the_news_that_it_has_now() -> None:
    record = a_record("ann", topics=("topic:a",), log_level="error", initialized=True, news="1-0")
    assert decode_record(encode_record(record), "1-0") == record
    assert decode_record(encode_record(record), "2-0").news == "2-0"
    assert worker_of("w:1") == "w"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_in_memory(case: Case) -> None:
    await case(MemoryFleet(KEEP))
