"""What a line of a request says, piece by piece."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from asgi_driver import Client
from hypothesis import given
from hypothesis import strategies as st
from log_lines import watch_logs

from callboard import Context, Fail, Server, asgi
from callboard.core.era import Envelope, Request
from callboard.errors import REASONS, Reason
from callboard.logs import REQUEST
from callboard.server.journal import Journal, describe_fail, name_request, open_noted, show_plainly
from callboard.server.mount import Caller
from callboard.wire.methods import METHODS

TRACE = "0af7651916cd43dd8448eb211c80319c"


@given(st.one_of(st.binary(max_size=80), st.from_regex(rb"[A-Za-z0-9_.-]{1,70}", fullmatch=True)))
def test_an_id_of_a_request_is_one_word(given_id: bytes) -> None:
    found = name_request({b"x-request-id": given_id})
    assert found.isascii()
    assert found.replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert 8 <= len(found) <= 64
    assert name_request({b"traceparent": given_id}).isalnum()


@pytest.mark.parametrize(
    "meta",
    [
        b'{"traceparent": 1}',
        b'{"traceparent": null}',
        b'{"traceparent": "x"}',
        b'{"traceparent',
        b"[]",
        b"{}",
        b'{"traceparent":' + b"[" * 9000,
    ],
)
def test_a_strange_trace_in_meta_is_none(meta: bytes) -> None:
    assert len(name_request(None, msgspec.Raw(meta))) == 8


def test_a_trace_is_taken_from_header_or_meta() -> None:
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    assert name_request({b"traceparent": parent.encode()}) == TRACE
    assert name_request(None, msgspec.Raw(msgspec.json.encode({"a": 1, "traceparent": parent}))) == TRACE
    assert name_request({b"x-request-id": b"12345678", b"traceparent": parent.encode()}) == "12345678"


@given(st.text(), st.text())
def test_hashes_tell_names_apart_and_show_nothing(name: str, other: str) -> None:
    journal = Journal(["k" * 32])
    assert journal.hash(name) == Journal(["k" * 32, "l" * 32]).hash(name)
    assert (journal.hash(name) == journal.hash(other)) == (name == other)
    assert journal.hash(name) != Journal(["l" * 32]).hash(name)
    assert journal.hash(None) is None


@pytest.mark.parametrize("keys", [None, [], (), "k" * 32, b"k" * 32, [""], [b""], [1], [None], 5])
def test_without_a_good_key_hashes_are_of_this_process(keys: Any) -> None:
    """What can't be keys is refused by those who seal with them; here it is no key."""
    assert Journal(keys).hash("x") != Journal(keys).hash("x")


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason in REASONS])
def test_every_reason_has_the_code_of_its_client(reason: Reason) -> None:
    rule = REASONS[reason]
    assert describe_fail(Fail(reason), modern=True) == {"code": rule.code, "reason": reason.name}
    assert describe_fail(Fail(reason), modern=False) == {"code": rule.legacy_code, "reason": reason.name}


def test_a_code_of_the_author_is_in_the_line() -> None:
    assert describe_fail(Fail.custom(4013, "x"), modern=True) == {"code": 4013, "reason": "CUSTOM"}


async def test_an_opening_that_is_cancelled_has_a_line() -> None:
    async def never() -> Any:
        await asyncio.sleep(60)

    with watch_logs(logging.INFO) as taken:
        task = asyncio.create_task(open_noted(never(), Journal(None), "2025-11-25", "ada", is_pipe=False))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    (line,) = taken.requests
    assert (line["method"], line["outcome"], line["transport"]) == ("initialize", "cancelled", "http")
    assert REQUEST.get() is None


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("note://index", "note://index"),
        ("note://7", "note://{number}"),
        ("doc://private/name.txt", "doc:..."),
        ("https://ada:secret@example.com/x", "https:..."),
        ("no scheme at all", "..."),
        ("\n://x", "..."),
        (":x", "..."),
    ],
)
async def test_a_resource_is_shown_without_values(uri: str, shown: str) -> None:
    server = Server("s")

    @server.resource("note://index")
    async def index() -> str:
        return ""

    @server.resource("note://{number}")
    async def note(number: int) -> str:
        return ""

    with watch_logs(logging.INFO) as taken:
        headers = {"mcp-name": None} if "\n" in uri else {}
        await Client(asgi(server)).request("resources/read", {"uri": uri}, **headers)
    assert [line.get("resource", shown) for line in taken.requests] == [shown]


def test_what_can_not_say_what_it_is() -> None:
    class Mute:
        def __str__(self) -> str:
            raise SystemExit

    assert show_plainly(Mute()) is None
    assert show_plainly(ValueError("x")) == "x"


def test_a_request_does_not_show_what_it_holds() -> None:
    # AR-10
    row = METHODS["tools/call"]
    params = row.decode(msgspec.Raw(b'{"name": "t", "arguments": {"a": "secret"}, "requestState": "secret"}'))
    request = Request(1, "tools/call", params, row, Envelope("2026-07-28", {}), {b"authorization": b"Bearer secret"})
    assert repr(request) == "<Request 1 'tools/call' of 2026-07-28>"
    assert "secret" not in repr(Caller({"authorization": "Bearer secret"}, "ada", {"token": "secret"}))


async def test_a_context_does_not_show_what_it_holds() -> None:
    # AR-10
    shown: list[str] = []
    server = Server("s", keys=["secret" * 6])

    @server.tool
    async def tool(ctx: Context, a: str) -> str:
        shown.extend(map(repr, (ctx, ctx.request, ctx.mount, ctx.exchange, ctx.server, ctx.server.seals, ctx.server.journal)))
        return ""

    await Client(asgi(server)).call("tool", {"a": "secret"}, authorization="Bearer secret")
    assert len(shown) == 7
    assert "secret" not in " ".join(shown)
