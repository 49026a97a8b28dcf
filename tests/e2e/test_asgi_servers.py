"""The application on the ASGI servers people run: uvicorn, granian and hypercorn, in every HTTP version that each speaks.

What is asked of all: a plain call, a stream whose notes arrive while the call still runs, a listen stream that hears of a change, and
a handler that is cancelled when its client goes away.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from e2e.asgi_servers import SETUPS, Endpoint, running
from e2e.http_clients import Answer, HttpClient, frames, whole

PROTOCOL = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
LIMIT = 10.0  # seconds for one test's conversation


@pytest.fixture(scope="module", params=list(SETUPS))
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


def message(method: str, params: Mapping[str, Any], *, token: str | None = None) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request of the current protocol."""
    meta = {f"{PROTOCOL}protocolVersion": VERSION, f"{PROTOCOL}clientCapabilities": {}}
    if token is not None:
        meta["progressToken"] = token
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
    }
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return headers, json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}).encode()


def call(tool: str, *, token: str | None = None, **arguments: Any) -> tuple[dict[str, str], bytes]:
    """Headers and body of a call."""
    return message("tools/call", {"name": tool, "arguments": arguments}, token=token)


async def ask(client: HttpClient, tool: str, **arguments: Any) -> str:
    """The text that a tool answers with."""
    async with client.request("POST", *call(tool, **arguments)) as answer:
        (block,) = json.loads(await whole(answer))["result"]["content"]
        return str(block["text"])


class Listener:
    """Messages of an event stream, one at a time."""

    def __init__(self, answer: Answer) -> None:
        self._frames = frames(answer)

    async def message(self) -> dict[str, Any]:
        return dict(json.loads(await anext(self._frames)))

    async def at_end(self) -> bool:
        return await anext(self._frames, None) is None


async def test_a_call_answers_json(endpoint: Endpoint) -> None:
    async with asyncio.timeout(LIMIT), endpoint.client() as client, client.request("POST", *call("add", a=2, b=3)) as answer:
        head = await answer.head()
        assert (head.status, head.headers["content-type"]) == (200, "application/json")
        assert json.loads(await whole(answer))["result"]["structuredContent"] == {"total": 5}


async def test_a_refusal_keeps_its_status(endpoint: Endpoint) -> None:
    async with asyncio.timeout(LIMIT), endpoint.client() as client, client.request("POST", *call("no_such_tool")) as answer:
        assert (await answer.head()).status == 400
        assert json.loads(await whole(answer))["error"]["code"] == -32602


async def test_notes_arrive_while_the_call_runs(endpoint: Endpoint) -> None:
    """`perform` waits for its cue after the first note: a server that holds pieces back never gets it."""
    async with asyncio.timeout(LIMIT), endpoint.client() as client, client.request("POST", *call("perform", token="t")) as answer:
        head = await answer.head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        stream = Listener(answer)
        first = await stream.message()
        assert (first["method"], first["params"]["message"]) == ("notifications/progress", "enters")
        assert await ask(client, "prompt_actor", line="speaks") == "whispered"
        assert (await stream.message())["params"]["message"] == "speaks"
        assert (await stream.message())["result"]["content"] == [{"type": "text", "text": "bows"}]
        assert await stream.at_end()


async def test_a_listener_hears_of_a_change(endpoint: Endpoint) -> None:
    wanted = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with asyncio.timeout(LIMIT), endpoint.client() as client, client.request("POST", *wanted) as answer:
        assert (await answer.head()).status == 200
        stream = Listener(answer)
        acknowledged = await stream.message()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
        await ask(client, "announce", name="encore")
        changed = await stream.message()
        assert changed["method"] == "notifications/tools/list_changed"
        assert changed["params"]["_meta"] == {f"{PROTOCOL}subscriptionId": 1}


async def test_a_client_that_goes_away_cancels_its_call(endpoint: Endpoint) -> None:
    if endpoint.setup.silent:
        pytest.skip(endpoint.setup.silent)
    async with asyncio.timeout(LIMIT), endpoint.client() as client:
        async with client.request("POST", *call("hold", token="t", name="gone")) as answer:
            assert (await Listener(answer).message())["params"]["message"] == "holding"
        began = time.monotonic()
        assert await ask(client, "released") == "gone"
        assert time.monotonic() - began < 0.5  # SA25


async def test_listeners_that_went_away_make_room(endpoint: Endpoint) -> None:
    """The server takes 20 at a time, and asks those past that to try again: so 100 get in only if the departed are noticed."""
    if endpoint.setup.silent:
        pytest.skip(endpoint.setup.silent)
    wanted = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with asyncio.timeout(LIMIT), endpoint.client() as client:
        heard = 0
        while heard < 100:
            async with client.request("POST", *wanted) as answer:
                status = (await answer.head()).status
                assert status in {200, 503}
                if status == 200:
                    await Listener(answer).message()
                    heard += 1


async def test_many_calls_share_a_client(endpoint: Endpoint) -> None:
    async with asyncio.timeout(LIMIT), endpoint.client() as client:
        answers = await asyncio.gather(*(ask(client, "double", number=number) for number in range(50)))
        assert answers == [str(2 * number) for number in range(50)]
