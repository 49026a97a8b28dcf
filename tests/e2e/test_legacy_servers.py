"""Sessions of 2025 on the ASGI servers people run, in every HTTP version that each speaks: calls, the stream of a GET, reconnecting, DELETE.

Over HTTP/2 and 3 all of a client's streams share one connection, so that nothing may hang on a connection's end.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from e2e.asgi_servers import SETUPS, Endpoint, running
from e2e.http_clients import Answer, HttpClient, StreamEvent, events, whole

VERSION, MODERN = "2025-11-25", "2026-07-28"
LIMIT = 10.0  # seconds for one test's conversation


@pytest.fixture(scope="module", params=list(SETUPS))
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


async def status(answer: Answer) -> int:
    """The status of an answer that is read to its end; one that is left half read counts as broken off."""
    head = await answer.head()
    await whole(answer)
    return head.status


class Stream:
    """Events of an answer, one at a time."""

    def __init__(self, answer: Answer) -> None:
        self._events = events(answer)

    async def event(self) -> StreamEvent:
        return await anext(self._events)

    async def message(self) -> dict[str, Any]:
        """The next event that says something."""
        while not (event := await self.event()).data:
            pass
        return dict(json.loads(event.data))

    async def at_end(self) -> bool:
        return await anext(self._events, None) is None


class Session:
    """A client of 2025 that has shaken hands."""

    def __init__(self, client: HttpClient, name: str) -> None:
        self._client = client
        self._headers = {"mcp-session-id": name, "mcp-protocol-version": VERSION}

    @asynccontextmanager
    async def post(self, message: dict[str, Any]) -> AsyncIterator[Answer]:
        headers = {**self._headers, "content-type": "application/json", "accept": "application/json, text/event-stream"}
        async with self._client.request("POST", headers, json.dumps({"jsonrpc": "2.0", **message}).encode()) as answer:
            yield answer

    @asynccontextmanager
    async def call(self, tool: str, *, number: int = 1, token: int | None = None, **arguments: Any) -> AsyncIterator[Answer]:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        async with self.post({"id": number, "method": "tools/call", "params": params}) as answer:
            yield answer

    async def ask(self, tool: str, *, number: int = 2, **arguments: Any) -> str:
        """The text that a tool answers with."""
        async with self.call(tool, number=number, **arguments) as answer:
            (block,) = json.loads(await whole(answer))["result"]["content"]
            return str(block["text"])

    @asynccontextmanager
    async def stream(self, *, after: str | None = None) -> AsyncIterator[Stream]:
        """The stream of a GET: a new one, or one that is taken up after an event."""
        last = {} if after is None else {"last-event-id": after}
        async with self._client.request("GET", {**self._headers, **last, "accept": "text/event-stream"}) as answer:
            head = await answer.head()
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            yield Stream(answer)

    async def status(self, method: str, **headers: str) -> int:
        """How a request without a body is answered."""
        async with self._client.request(method, {**self._headers, "accept": "text/event-stream", **headers}) as answer:
            return await status(answer)


@asynccontextmanager
async def session(endpoint: Endpoint) -> AsyncIterator[Session]:
    hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "e2e", "version": "1"}}
    async with asyncio.timeout(LIMIT), endpoint.client() as client:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).encode()
        async with client.request("POST", headers, body) as answer:
            head = await answer.head()
            assert json.loads(await whole(answer))["result"]["protocolVersion"] == VERSION
        opened = Session(client, head.headers["mcp-session-id"])
        async with opened.post({"method": "notifications/initialized"}) as answer:
            assert await status(answer) == 202
        yield opened


async def test_a_session_remembers_from_call_to_call(endpoint: Endpoint) -> None:
    async with session(endpoint) as client:
        counts = await asyncio.gather(*(client.ask("tally", number=number) for number in range(1, 21)))
        assert sorted(counts, key=int) == [str(number) for number in range(1, 21)]


async def test_a_deleted_session_is_unknown_to_every_method(endpoint: Endpoint) -> None:
    async with session(endpoint) as client:
        assert await client.status("DELETE") == 204
        assert [await client.status(method) for method in ("GET", "DELETE")] == [404, 404]
        async with client.call("add", a=1, b=1) as answer:
            assert await status(answer) == 404


async def test_a_delete_ends_the_streams(endpoint: Endpoint) -> None:
    async with session(endpoint) as client, client.stream() as stream:
        await stream.event()
        assert await client.status("DELETE") == 204
        assert await stream.at_end()


async def test_pushes_arrive_on_the_stream_of_a_get_while_calls_go_on(endpoint: Endpoint) -> None:
    async with session(endpoint) as client, client.stream() as stream:
        first = await stream.event()
        assert (first.id != "", first.data) == (True, "")  # the priming event, from which a client can come back
        for number in range(10):
            assert await client.ask("whisper", line=f"line {number}") == "whispered"
            pushed = await stream.message()
            assert (pushed["method"], pushed["params"]["data"]) == ("notifications/message", f"line {number}")


async def test_a_client_of_the_current_protocol_is_heard_in_a_session(endpoint: Endpoint) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": "shout", "arguments": {"line": "across"}, "_meta": meta}
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "shout", "accept": "application/json"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    async with session(endpoint) as client, client.stream() as stream, endpoint.client() as modern:
        await stream.event()
        async with modern.request("POST", {**headers, "content-type": "application/json"}, body) as answer:
            assert json.loads(await whole(answer))["result"]["content"][0]["text"] == "shouted"
        assert (await stream.message())["params"] == {"level": "notice", "data": "across"}


async def test_a_stream_is_taken_up_where_it_broke_off(endpoint: Endpoint) -> None:
    async with session(endpoint) as client:
        async with client.stream() as stream:
            await stream.event()
            await client.ask("whisper", line="heard")
            heard = await stream.event()
            assert "heard" in heard.data
        await client.ask("whisper", line="missed")
        async with client.stream(after=heard.id) as stream:
            assert (await stream.message())["params"]["data"] == "missed"
            await client.ask("whisper", line="live")
            assert (await stream.message())["params"]["data"] == "live"


async def test_notes_arrive_while_the_call_runs(endpoint: Endpoint) -> None:
    """`perform` waits for its cue after the first note: a server that holds pieces back never gets it."""
    async with session(endpoint) as client, client.call("perform", token=1) as answer:
        stream = Stream(answer)
        assert (await stream.message())["params"]["message"] == "enters"
        assert await client.ask("prompt_actor", line="speaks") == "whispered"
        assert (await stream.message())["params"]["message"] == "speaks"
        assert (await stream.message())["result"]["content"] == [{"type": "text", "text": "bows"}]
        assert await stream.at_end()


async def test_a_call_whose_stream_the_server_closed_is_answered_to_who_comes_back(endpoint: Endpoint) -> None:
    async with session(endpoint) as client:
        async with client.call("interval", token=1) as answer:
            seen = [event async for event in events(answer)]
        assert [json.loads(event.data)["params"]["message"] for event in seen if event.data] == ["the curtain falls"]
        assert seen[-1].retry == "20"
        async with client.stream(after=seen[-1].id) as stream:
            assert (await stream.message())["params"]["message"] == "the curtain rises"
            assert (await stream.message())["result"]["content"] == [{"type": "text", "text": "applause"}]
            assert await stream.at_end()


async def test_nobody_comes_back_for_a_cancelled_call(endpoint: Endpoint) -> None:
    """The official clients try again for ever where the stream ends well, and twice where it is refused."""
    async with session(endpoint) as client:
        async with client.call("hold", token=1, name="cancelled") as answer:
            stream = Stream(answer)
            assert (await stream.message())["params"]["message"] == "holding"
            async with client.post({"method": "notifications/cancelled", "params": {"requestId": 1}}) as accepted:
                assert await status(accepted) == 202
            assert await client.ask("released") == "cancelled"
            assert await stream.at_end()
        assert await client.status("GET", **{"last-event-id": "c1-1"}) == 400


async def test_a_client_that_goes_away_cancels_its_streaming_call(endpoint: Endpoint) -> None:
    if endpoint.setup.silent:
        pytest.skip(endpoint.setup.silent)
    async with session(endpoint) as client:
        async with client.call("hold", token=1, name="gone") as answer:
            assert (await Stream(answer).message())["params"]["message"] == "holding"
        assert await client.ask("released") == "gone"
