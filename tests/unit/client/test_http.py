"""The client over HTTP, against a peer that is nobody's framework."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from unit.client.peers import Asked, HttpPeer, http_client, text_result
from unit.client.wire_peer import self_signed

from callboard import types
from callboard.client.client import Client
from callboard.client.errors import (
    ClientError,
    ConnectionFailed,
    HttpError,
    InputRequired,
    InvalidAnswer,
    RequestTimeout,
    ServerError,
)
from callboard.wire.versions import LATEST


async def ok(asked: Asked) -> None:
    await asked.result(text_result())


async def test_every_request_carries_its_envelope_and_its_headers() -> None:
    """HM-05, HH-01, HH-03, HH-04, HH-16, MT-01, MT-02, MT-03, JR-17."""
    async with http_client(ok, capabilities={"elicitation": {}}) as (client, peer):
        await client.call_tool("Süd", {"a": 1})
    (asked,) = peer.asked
    assert asked.headers["accept"] == "application/json, text/event-stream"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["mcp-protocol-version"] == "2026-07-28"
    assert asked.headers["mcp-method"] == "tools/call"
    assert asked.headers["mcp-name"] == "=?base64?U8O8ZA==?="
    assert asked.params["name"] == "Süd"
    assert asked.params["arguments"] == {"a": 1}
    meta = asked.params["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {}}
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "callboard"


async def test_connections_are_used_again_after_json_and_after_a_stream() -> None:
    async def reply(asked: Asked) -> None:
        if asked.params["name"] == "stream":
            await asked.stream()
            await asked.event(id=asked.message["id"], result=text_result())
            await asked.end()
        else:
            await ok(asked)

    async with http_client(reply) as (client, peer):
        for name in ("json", "stream", "json", "stream", "json"):
            await client.call_tool(name)
        assert peer.connections == 1
        await asyncio.gather(*(client.call_tool("json") for _ in range(5)))
    assert len({asked.message["id"] for asked in peer.asked}) == 10  # JR-03


async def test_a_body_over_one_mebibyte_arrives_whole() -> None:
    text = "é" * 2**20
    async with http_client(ok) as (client, peer):
        await client.call_tool("t", {"text": text})
    assert peer.asked[0].params["arguments"] == {"text": text}


# Errors: each is named, quick, and says which request and which server.


@pytest.mark.parametrize(
    ("status", "body", "content_type", "expected"),
    [
        (500, b"<html><h1>Internal\n\n Server Error</h1>", "text/html", "<html><h1>Internal Server Error</h1>"),
        (502, b"<html>bad gateway</html>", "text/html", "bad gateway"),
        (429, b"", "text/plain", "HTTP 429"),
        (503, b'{"detail": "later"}', "application/json", '{"detail": "later"}'),
        (404, b"Not Found", "text/plain", "path"),
        (401, b"", "text/plain", "authorization: give it a header"),
        (200, b"<html>Log in</html>", "text/html", "text/html"),
    ],
)
async def test_an_answer_that_is_no_message_is_an_http_error(status: int, body: bytes, content_type: str, expected: str) -> None:
    """A42."""

    async def reply(asked: Asked) -> None:
        await asked.body_answer(status, body, content_type)

    async with http_client(reply) as (client, peer):
        with pytest.raises(HttpError) as caught:
            await client.call_tool("t")
    assert caught.value.status == status
    assert expected in str(caught.value)
    assert (caught.value.method, caught.value.request_id, caught.value.target) == ("tools/call", 1, peer.url)
    assert "tools/call" in str(caught.value)
    assert peer.url in str(caught.value)


async def test_an_answer_without_a_body_is_an_invalid_answer() -> None:
    async def reply(asked: Asked) -> None:
        await asked.body_answer(202, b"", "text/plain")

    async with http_client(reply) as (client, peer):
        with pytest.raises(InvalidAnswer, match="HTTP 202") as caught:
            await client.call_tool("t")
    assert (caught.value.method, caught.value.request_id, caught.value.target) == ("tools/call", 1, peer.url)


async def test_a_long_page_is_shown_in_part() -> None:
    async def reply(asked: Asked) -> None:
        await asked.body_answer(500, b"x" * 100_000, "text/html")

    async with http_client(reply) as (client, _):
        with pytest.raises(HttpError) as caught:
            await client.discover()
    assert 100 < len(caught.value.snippet) < 300


async def test_a_redirect_is_not_followed() -> None:
    async def reply(asked: Asked) -> None:
        await asked.body_answer(307, b"", "text/plain", "Location: http://other.example/mcp")

    async with http_client(reply) as (client, peer):
        with pytest.raises(HttpError, match=r"http://other\.example/mcp"):
            await client.discover()
        assert len(peer.asked) == 1


@pytest.mark.parametrize("status", [200, 400, 404, 421])
async def test_a_json_rpc_error_is_a_server_error_whatever_the_status(status: int) -> None:
    """A34: what the server says reaches the user."""

    async def reply(asked: Asked) -> None:
        await asked.error(-32600, "Host not allowed: set hosts=", {"host": "a"}, status)

    async with http_client(reply) as (client, _):
        with pytest.raises(ServerError, match="set hosts=") as caught:
            await client.discover()
    assert (caught.value.code, caught.value.message, caught.value.data, caught.value.status) == (
        -32600, "Host not allowed: set hosts=", {"host": "a"}, status,
    )  # fmt: skip


async def test_an_error_without_id_belongs_to_the_request_it_answers() -> None:
    async def reply(asked: Asked) -> None:
        await asked.body_answer(400, b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"bad"}}')

    async with http_client(reply) as (client, _):
        with pytest.raises(ServerError, match="bad"):
            await client.discover()


@pytest.mark.parametrize(
    ("code", "status", "doubted"), [(-32000, 400, True), (-32600, 400, True), (-32602, 400, False), (-32000, 200, False)]
)
async def test_a_refusal_that_older_servers_give_raises_a_doubt(code: int, status: int, doubted: bool) -> None:
    """VN-16: a client that may speak the current version alone does not ask for others; once answered, it has no doubt."""

    async def refuse(asked: Asked) -> None:
        if asked.params["name"] == "ok":
            await ok(asked)
        else:
            await asked.error(code, "Server not initialized", None, status)

    async with http_client(refuse) as (client, _):
        for expected in (doubted, False):
            with pytest.raises(ServerError, match="Server not initialized") as caught:
                await client.call_tool("t")
            assert ("perhaps the server does not speak 2026-07-28" in str(caught.value)) == expected
            await client.call_tool("ok")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"id": 99, "result": text_result()}, "another request"),
        ({"id": "1", "result": text_result()}, "another request"),
        ({"id": 1, "result": {"resultType": "surprise"}}, "unknown type 'surprise'"),
        ({"id": 1, "result": {"resultType": "complete", "content": 7}}, "does not fit"),
        ({"id": 1, "result": []}, "does not fit"),
        ({"id": 1, "error": {"code": "x"}}, "does not fit"),
        ({"id": 1}, "no JSON-RPC response"),
        ({"id": 1, "method": "ping"}, "no JSON-RPC response"),
    ],
)
async def test_an_answer_against_the_protocol_is_an_invalid_answer(answer: dict[str, Any], expected: str) -> None:
    """SA36, JR-15."""

    async def reply(asked: Asked) -> None:
        await asked.body_answer(200, json.dumps({"jsonrpc": "2.0", **answer}).encode())

    async with http_client(reply) as (client, _):
        with pytest.raises(InvalidAnswer, match=expected):
            await client.call_tool("t")


async def test_a_result_without_type_is_complete() -> None:
    """JR-14."""

    async def reply(asked: Asked) -> None:
        await asked.result({"content": []})

    async with http_client(reply) as (client, _):
        assert (await client.call_tool("t")).content == []


async def test_a_request_for_input_is_an_error_that_holds_it() -> None:
    asks = {"ok": {"method": "elicitation/create", "params": {}}}

    async def reply(asked: Asked) -> None:
        await asked.result({"resultType": "input_required", "inputRequests": asks, "requestState": "s"})

    async with http_client(reply) as (client, _):
        with pytest.raises(InputRequired, match="elicitation/create") as caught:
            await client.call_tool("t")
    assert caught.value.input_requests == asks
    assert caught.value.request_state == "s"


async def test_nobody_listens_there() -> None:
    async with HttpPeer(ok) as peer:
        pass
    async with Client(peer.url, versions=LATEST) as client:
        with pytest.raises(ConnectionFailed, match="is the server running"):
            await client.discover()


@pytest.mark.parametrize(
    ("send", "start"),
    [
        (lambda client: client.call_tool("hi"), "tools/call 'hi' at "),
        (lambda client: client.read_resource("a://b\n"), "resources/read 'a://b\\n' at "),
        (lambda client: client.get_prompt("p" * 200), f"prompts/get '{'p' * 100}...' at "),
        (lambda client: client.complete(types.PromptReference(name="trip"), "city", "O"), "completion/complete 'trip' at "),
        (lambda client: client.request("x/y", {"name": 7}), "x/y at "),
        (lambda client: client.list_tools(), "tools/list at "),
    ],
)
async def test_an_error_says_what_was_asked_for(send: Any, start: str) -> None:
    async def refuse(asked: Asked) -> None:
        await asked.error(-32602, "no")

    async with http_client(refuse) as (client, peer):
        with pytest.raises(ServerError) as caught:
            await send(client)
    assert str(caught.value) == f"{start}{peer.url}: no (error -32602, HTTP 400)"


async def die(asked: Asked) -> None:
    asked.writer.transport.abort()


async def die_in_the_head(asked: Asked) -> None:
    await asked.raw(b"HTTP/1.1 200 OK\r\nContent-Ty")
    asked.writer.close()


async def die_in_the_body(asked: Asked) -> None:
    await asked.raw(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"jsonrpc"')
    asked.writer.close()


async def die_in_the_stream(asked: Asked) -> None:
    await asked.stream()
    await asked.event(method="notifications/progress", params={"progressToken": 1, "progress": 1})
    asked.writer.transport.abort()


async def end_the_stream(asked: Asked) -> None:
    await asked.stream()
    await asked.end()


async def talk_nonsense(asked: Asked) -> None:
    await asked.raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


@pytest.mark.parametrize("answer", [die, die_in_the_head, die_in_the_body, die_in_the_stream, end_the_stream, talk_nonsense])
async def test_a_connection_that_breaks_is_an_error_at_once(answer: Any) -> None:
    """A41, HM-14: the default limit is 30 s, so a hang would show."""
    async with http_client(answer) as (client, _), asyncio.timeout(1):
        with pytest.raises((ConnectionFailed, InvalidAnswer)) as caught:
            await client.call_tool("t")
        assert caught.value.method == "tools/call"


async def test_an_answer_that_can_t_be_read_says_why() -> None:
    async def reply(asked: Asked) -> None:
        answer = b'{"jsonrpc":"2.0","id":%d,"result":{"content":%b%b}}' % (asked.message["id"], b"[" * 200, b"]" * 200)
        if asked.params["name"] == "body":
            await asked.body_answer(200, answer)
        else:
            await asked.stream()
            await asked.chunk(b"data: " + answer + b"\n\n")
            await asked.gone()

    async with http_client(reply) as (client, _), asyncio.timeout(5):
        for name in ("body", "stream"):
            with pytest.raises(InvalidAnswer, match="nests deeper than 128"):
                await client.call_tool(name)


async def test_tls_to_a_server_without_it_is_named() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, Client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", versions=LATEST) as client:
        with pytest.raises(
            ConnectionFailed, match=r"over TLS: (wrong version number|record layer failure|packet length too long); .*https"
        ):
            await client.discover()


async def test_a_certificate_that_nobody_vouches_for_is_named(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(self_signed(tmp_path))
    async with HttpPeer(ok, ssl=context) as peer, Client(peer.url.replace("http:", "https:"), versions=LATEST) as client:
        with pytest.raises(ConnectionFailed, match=r"over TLS: self.signed certificate; .*certificate for it"):
            await client.discover()


# Streams.


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_progress_comes_before_the_answer_however_the_stream_is_cut(size: int) -> None:
    async def reply(asked: Asked) -> None:
        token = asked.params["_meta"]["progressToken"]
        steps = [{"progressToken": token, "progress": 1}, {"progressToken": token, "progress": 2.5, "total": 4, "message": "zwölf"}]
        await asked.stream()
        frames = b": keep-alive\n\n" + b"".join(
            b"data: " + json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": step}).encode() + b"\r\n\r\n"
            for step in [*steps, {"progressToken": "other", "progress": 9}]
        )
        frames += b"data: " + json.dumps({"jsonrpc": "2.0", "id": asked.message["id"], "result": text_result()}).encode() + b"\n\n"
        for at in range(0, len(frames), size):
            await asked.chunk(frames[at : at + size])
        await asked.end()

    seen: list[tuple[float, float | None, str | None]] = []
    async with http_client(reply) as (client, _):
        await client.call_tool("t", on_progress=lambda *step: seen.append(step))
        assert seen == [(1, None, None), (2.5, 4, "zwölf")]

        async def note(*step: Any) -> None:
            await asyncio.sleep(0)
            seen.append(step)

        await client.call_tool("t", on_progress=note)
    assert len(seen) == 4


async def test_the_client_s_own_callbacks_get_what_no_call_claims() -> None:
    async def reply(asked: Asked) -> None:
        await asked.stream()
        await asked.event(method="notifications/message", params={"level": "error", "data": {"a": 1}})
        await asked.event(method="notifications/message", params={"level": "no such level", "data": 1})
        await asked.event(method="notifications/progress", params={"progressToken": asked.message["id"], "progress": 1})
        await asked.event(id=asked.message["id"], result=text_result())
        await asked.end()

    steps: list[Any] = []
    logs: list[types.LoggingMessageNotificationParams] = []
    async with http_client(reply, on_progress=lambda *step: steps.append(step), on_log=logs.append, log_level="debug") as (client, peer):
        await client.call_tool("t")
    assert steps == [(1, None, None)]
    assert [(log.level, log.data) for log in logs] == [("error", {"a": 1})]
    assert peer.asked[0].params["_meta"]["io.modelcontextprotocol/logLevel"] == "debug"


async def test_without_callbacks_nothing_is_asked_for() -> None:
    async with http_client(ok) as (client, peer):
        await client.call_tool("t")
    assert not {"progressToken", "io.modelcontextprotocol/logLevel"} & peer.asked[0].params["_meta"].keys()


async def test_a_callback_that_fails_ends_its_call() -> None:
    gone = asyncio.Event()

    async def reply(asked: Asked) -> None:
        await asked.stream()
        await asked.event(method="notifications/progress", params={"progressToken": asked.message["id"], "progress": 1})
        assert await asked.gone()
        gone.set()

    def fail(*_: Any) -> None:
        raise TimeoutError("mine")

    async with http_client(reply) as (client, _), asyncio.timeout(1):
        with pytest.raises(TimeoutError, match="mine"):
            await client.call_tool("t", on_progress=fail)
        await gone.wait()


async def test_foreign_messages_on_a_stream_are_passed_over() -> None:
    """SA36, JR-05, JR-06: neither a wrong id nor a server's request is ours to answer."""

    async def reply(asked: Asked) -> None:
        await asked.stream()
        await asked.event(id=77, result=text_result("wrong"))
        await asked.event(id=5, method="sampling/createMessage", params={})
        await asked.chunk(b"data: garbage\n\nid: 1\ndata:\n\n")
        await asked.event(id=asked.message["id"], result=text_result("right"))
        await asked.end()

    async with http_client(reply) as (client, peer):
        found = await client.call_tool("t")
    assert found.content == [types.TextContent(text="right")]
    assert len(peer.asked) == 1


async def test_a_large_event_is_delivered_and_one_past_the_limit_names_it() -> None:
    """A45."""

    async def reply(asked: Asked) -> None:
        await asked.stream()
        await asked.event(id=asked.message["id"], result=text_result("x" * 3 * 2**20))
        await asked.end()

    async with http_client(reply) as (client, _):
        (block,) = (await client.call_tool("t")).content
        assert isinstance(block, types.TextContent)
        assert len(block.text) == 3 * 2**20
    async with http_client(reply, max_message=2**20) as (client, _):
        with pytest.raises(InvalidAnswer, match=r"1048576 bytes.*max_message"):
            await client.call_tool("t")


async def test_what_came_whole_before_an_event_past_the_limit_counts() -> None:
    huge = b"data: " + b"x" * 2000

    async def reply(asked: Asked) -> None:
        answer = json.dumps({"jsonrpc": "2.0", "id": asked.message["id"], "result": text_result()}).encode()
        step = {"progressToken": asked.message["id"], "progress": 1}
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": step}).encode()
        await asked.stream()
        await asked.chunk(b"data: " + (answer if asked.params["name"] == "answer" else note) + b"\n\n" + huge)
        await asked.end()

    steps: list[Any] = []
    async with http_client(reply, max_message=1000, on_progress=lambda *step: steps.append(step)) as (client, _):
        assert (await client.call_tool("answer")).content == [types.TextContent(text="ok")]
        with pytest.raises(InvalidAnswer, match=r"1000 bytes.*max_message"):
            await client.call_tool("note")
    assert steps == [(1, None, None)]


async def test_a_body_past_the_limit_names_it() -> None:
    async def reply(asked: Asked) -> None:
        await asked.result(text_result("x" * 2000))

    async with http_client(reply, max_message=1000) as (client, _):
        with pytest.raises(InvalidAnswer, match=r"1000 bytes.*max_message"):
            await client.call_tool("t")


# Cancelling and closing.


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", ["cancel", "time out"])
async def test_cancelling_closes_the_response(how: str, streaming: bool) -> None:
    """CN-01, CN-07, A12."""
    reached, gone = asyncio.Event(), asyncio.Event()

    async def reply(asked: Asked) -> None:
        if streaming:
            await asked.stream()
        reached.set()
        assert await asked.gone()
        gone.set()

    async with http_client(reply) as (client, peer), asyncio.timeout(2):
        if how == "cancel":
            task = asyncio.create_task(client.call_tool("t"))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with pytest.raises(RequestTimeout, match=r"0\.1 s") as caught:
                await client.call_tool("t", timeout=0.1)
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.seconds == 0.1
        await gone.wait()
        assert len(peer.asked) == 1  # no notification


async def test_closing_fails_what_waits_and_any_task_may_do_it() -> None:
    reached = asyncio.Event()

    async def reply(asked: Asked) -> None:
        reached.set()
        await asked.gone()

    async with http_client(reply) as (client, _), asyncio.timeout(2):
        waiting = asyncio.create_task(client.call_tool("t"))
        await reached.wait()
        await asyncio.create_task(client.close())
        with pytest.raises(ConnectionFailed, match="client was closed"):
            await waiting
        await client.close()
        with pytest.raises(ClientError, match="not open"):
            await client.discover()


async def test_a_client_is_opened_once() -> None:
    async with http_client(ok) as (client, _):
        with pytest.raises(ClientError, match="make a new one"):
            async with client:
                pytest.fail("it is open")
        await client.call_tool("t")
    with pytest.raises(ClientError, match="make a new one"):
        await client.__aenter__()


async def test_a_client_that_was_not_opened_says_so() -> None:
    with pytest.raises(ClientError, match="async with"):
        await Client("http://127.0.0.1:9/mcp").discover()
