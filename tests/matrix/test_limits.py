"""Sizes of messages and answers, bytes that are held, and rates, through the public API, in both eras."""

import asyncio
import json
from typing import Any

import pytest
from asgi_driver import JSON, Client, make_headers, make_meta, make_request
from legacy_driver import Legacy
from virtual_time import now, settle, virtual_time

import callboard
from callboard import Context, Handler, Server, asgi
from callboard.client.errors import ClientError
from callboard.limits import PER_ADDRESS, Limits
from callboard.transport.asgi import App
from callboard.transport.rates import Rates

MIB = 1024 * 1024


def make_app(limits: Limits, **options: Any) -> App:
    """A few tools that say a lot, or wait."""
    server = Server("hall")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def count(numbers: list[int]) -> int:
        return len(numbers)

    @server.tool
    async def shout(size: int) -> str:
        return "x" * size

    @server.tool
    async def flood(ctx: Context, times: int, size: int = 10) -> str:
        for number in range(times):
            ctx.progress(number, message="x" * size)
            ctx.log("info", "x" * size)
        return "flooded"

    @server.tool
    async def drip(ctx: Context, size: int) -> str:
        ctx.progress(1, message="x" * size)
        await asyncio.sleep(1000)
        return "dripped"

    return asgi(server, limits=limits, principal=lambda scope: scope["state"].get("principal"), **options)


async def both(app: App, tool: str, arguments: JSON) -> list[Any]:
    """The same call in both eras."""
    session = await Legacy(app).connect()
    return [await Client(app).call(tool, arguments), await session.call(tool, arguments)]


# Sizes


async def test_an_answer_of_ten_megabytes_is_fine_and_one_past_the_limit_is_that_calls_error() -> None:
    # SA07
    for answer in await both(make_app(Limits()), "shout", {"size": 10 * MIB}):
        assert len(answer.text) == 10 * MIB
    app = make_app(Limits(max_result=2 * MIB))
    for answer in await both(app, "shout", {"size": 2 * MIB + 1}):
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert "more than the 2097152 that one may have (max_result)" in answer.error["message"]
    for answer in await both(app, "echo", {"text": "fine"}):
        assert answer.text == "fine"


async def test_arguments_have_a_limit_of_their_own() -> None:
    app = make_app(Limits(max_arguments=1000))
    for answer in await both(app, "echo", {"text": "x" * 900}):
        assert answer.text == "x" * 900
    for answer, status in zip(await both(app, "echo", {"text": "x" * 1000}), (400, 200), strict=True):
        assert (answer.status, answer.error["code"]) == (status, -32602)
        assert "max_arguments" in answer.error["message"]


async def test_values_of_a_message_are_counted() -> None:
    app = make_app(Limits(max_items=1000))
    for answer in await both(app, "count", {"numbers": [1] * 900}):
        assert answer.text == "900"
    for answer in await both(app, "count", {"numbers": [1] * 1000}):
        assert (answer.status, answer.error["code"]) == (400, -32600)
        assert "max_items" in answer.error["message"]
    for answer in await both(app, "echo", {"text": "[,{" * 5000}):
        assert answer.text == "[,{" * 5000, "in a text they are no values"


async def test_levels_of_a_message_are_counted() -> None:
    deep: Any = []
    for _ in range(20):
        deep = [deep]
    for limits, code in ((Limits(), None), (Limits(max_depth=10), -32700)):
        for answer in await both(make_app(limits), "count", {"numbers": [], "more": deep}):
            assert answer.message.get("error", {}).get("code") == code


async def test_limits_hold_in_memory_too() -> None:
    server = Server("hall")
    server.tool(name="echo")(lambda text: text)
    async with callboard.Client(server, limits=Limits(max_arguments=100, max_result=1000)) as client:
        assert not (await client.call_tool("echo", {"text": "x"})).is_error
        with pytest.raises(ClientError, match="max_arguments"):
            await client.call_tool("echo", {"text": "x" * 100})
    async with callboard.Client(server, limits=Limits(max_result=100)) as client:
        with pytest.raises(ClientError, match="max_result"):
            await client.call_tool("echo", {"text": "x" * 100})
    async with callboard.Client(server, limits=Limits(max_line=10_000, max_items=100)) as client:
        with pytest.raises(ClientError, match="max_items"):
            await client.call_tool("echo", {"text": [1] * 100})


@pytest.mark.parametrize("target", ["http://127.0.0.1:9/mcp", ["python", "-c", "pass"]])
def test_limits_are_the_servers_and_not_for_one_elsewhere(target: Any) -> None:
    with pytest.raises(ValueError, match="limits= is for servers in memory"):
        callboard.Client(target, limits=Limits())


class Slow(Handler):
    """A server written as a class."""

    name = "slow"

    async def list_tools(self, ctx: Any, state: Any) -> list[Any]:
        return [{"name": "wait", "inputSchema": {"type": "object"}}]

    async def call_tool(self, name: str, arguments: JSON, ctx: Any, state: Any) -> str:
        await asyncio.sleep(1)
        return "x" * 1000


@virtual_time
async def test_limits_hold_for_handlers_too() -> None:
    app = asgi(Slow, limits=Limits(max_in_flight=2, max_arguments=100, max_result=500))
    client, session = Client(app), await Legacy(app).connect()
    calls = [asyncio.create_task(client.call("wait")), asyncio.create_task(session.call("wait"))]
    await settle()
    assert (await client.call("wait")).status == 503
    for call in calls:
        assert "max_result" in (await call).error["message"]
    assert "max_arguments" in (await client.call("wait", {"text": "x" * 100})).error["message"]


# Bytes that are held


class Upload:
    """A client that sends a body in parts, whenever it is told to."""

    def __init__(self, app: App, text: str) -> None:
        message = make_request("tools/call", {"name": "echo", "arguments": {"text": text}}, meta=make_meta())
        self._body = json.dumps(message).encode()
        headers = [(name.encode(), value.encode()) for name, value in make_headers(message).items()]
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[Any] = []
        self.task = asyncio.create_task(app(Client(app).scope("POST", headers), self._parts.get, self._send))

    async def _send(self, event: Any) -> None:
        self.sent.append(event)

    def give(self, size: int | None = None) -> None:
        """Send some bytes, or the rest."""
        part, self._body = (self._body, b"") if size is None else (self._body[:size], self._body[size:])
        self._parts.put_nowait({"type": "http.request", "body": part, "more_body": bool(self._body)})

    def leave(self) -> None:
        """Go away in the middle of it."""
        self._parts.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


@virtual_time
async def test_bodies_that_are_held_are_bounded_together() -> None:
    """Overload sheds with 503 before memory does; who came first is served."""
    app = make_app(Limits(max_buffered=250_000))
    uploads = [Upload(app, "x" * 120_000) for _ in range(3)]
    for upload in uploads:
        upload.give(100_000)
    await settle()
    assert app.endpoint.load.buffered == 200_000, "the third has been told to come back"
    for upload in uploads:
        upload.give()
    await asyncio.gather(*(upload.task for upload in uploads))
    assert [upload.status for upload in uploads] == [200, 200, 503]
    assert (b"retry-after", b"1") in uploads[-1].sent[0]["headers"]
    assert b"(max_buffered)" in uploads[-1].sent[1]["body"]
    assert app.endpoint.load.buffered == 0
    assert (await Client(app).call("echo", {"text": "x"})).text == "x"


@virtual_time
async def test_where_too_much_is_held_nothing_more_is_read() -> None:
    app = make_app(Limits(max_buffered=1000))
    client = Client(app)
    async with client.open("tools/call", {"name": "drip", "arguments": {"size": 1, "more": "x" * 1000}}):
        await settle()
    assert (await client.call("echo", {"text": "x"})).text == "x"
    app.endpoint.load.unread = 1001
    late = await client.call("echo", {"text": "x"})
    assert (late.status, late.headers["retry-after"]) == (503, "1")
    assert "max_buffered" in late.error["message"]


@virtual_time
async def test_a_client_that_leaves_in_the_middle_of_a_body_holds_nothing() -> None:
    app = make_app(Limits())
    upload = Upload(app, "x" * 1000)
    upload.give(500)
    await settle()
    assert app.endpoint.load.buffered == 500
    upload.leave()
    await upload.task
    assert (app.endpoint.load.buffered, upload.sent) == (0, [])


@virtual_time
async def test_the_body_of_a_call_counts_until_it_is_answered() -> None:
    app = make_app(Limits())
    client = Client(app)
    async with client.open("tools/call", {"name": "drip", "arguments": {"size": 1}}) as call:
        await settle()
        assert 100 < app.endpoint.load.buffered < 1000
        call.disconnect()
        await call.gone()
    assert app.endpoint.load.buffered == 0


class Stalled:
    """A client that asks for a stream, and reads nothing of it.

    Attributes:
        status: Of the answer.
        task: The application, serving it.
    """

    def __init__(self, app: App, size: int) -> None:
        params = {"name": "drip", "arguments": {"size": size}}
        message = make_request("tools/call", params, meta=make_meta(progressToken="p"))
        headers = [(name.encode(), value.encode()) for name, value in make_headers(message).items()]
        self._body = [{"type": "http.request", "body": json.dumps(message).encode(), "more_body": False}]
        self.status = 0
        self.task = asyncio.create_task(app(Client(app).scope("POST", headers), self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._body:
            await asyncio.Event().wait()
        return self._body.pop()

    async def _send(self, event: Any) -> None:
        self.status = event.get("status", self.status)
        if event["type"] == "http.response.body":
            await asyncio.Event().wait()


@virtual_time
async def test_those_who_read_nothing_lose_their_streams_before_others_are_refused() -> None:
    # SA25
    app = make_app(Limits(max_buffered=400_000))
    big, small = Stalled(app, 300_000), Stalled(app, 1)
    await asyncio.sleep(1.5)
    assert app.endpoint.load.unread > 300_000
    assert not big.task.done()
    bigger = Stalled(app, 350_000)
    await asyncio.sleep(2)
    assert bigger.task.done(), "who holds most goes first, and that is enough"
    assert not big.task.done()
    assert not small.task.done()
    assert (await Client(app).call("echo", {"text": "x"})).text == "x"
    for client in (big, small):
        client.task.cancel()
    await asyncio.gather(big.task, small.task, return_exceptions=True)
    await asyncio.sleep(2)
    assert app.endpoint.load.unread == 0


# What one call tells its client


@virtual_time
async def test_a_flood_of_progress_and_logs_is_paced_and_the_result_arrives() -> None:
    # SA26, PR-06, LG-06
    app = make_app(Limits())
    session = await Legacy(app).connect()
    meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "info"}
    answers = [
        await Client(app).call("flood", {"times": 100_000}, meta=make_meta(progressToken="p", logLevel="info")),
        await session.call("flood", {"times": 100_000}, token=meta["progressToken"]),
    ]
    for answer in answers:
        assert answer.text == "flooded"
        notes = [note["params"] for note in answer.notes]
        progress = [note["progress"] for note in notes if "progress" in note]
        assert len(progress) <= 1002
        assert progress[-1] == 99_999, "the last one arrives"
        logs = [note["data"] for note in notes if "level" in note]
        assert len(logs) <= 1002
        assert "99000 log messages were dropped" in logs[-1]


@virtual_time
async def test_the_pace_of_a_call_is_a_setting() -> None:
    app = make_app(Limits(log_rate=None))
    answer = await Client(app).call("flood", {"times": 500, "size": 1}, meta=make_meta(progressToken="p", logLevel="info"))
    assert len(answer.notes) == 1000


# Rates


def tame(app: App) -> App:
    """Let the rates follow the loop's clock."""
    app.rates = Rates(app.limits, now)
    return app


def too_many(answer: Any, setting: str, seconds: int) -> None:
    """See a 429: when to come back, a code outside JSON-RPC's range, and which setting says so."""
    assert (answer.status, answer.headers["retry-after"]) == (429, str(seconds))
    assert (answer.error["code"], answer.error["data"]) == (429, {"retryAfter": seconds})
    assert f"({setting})" in answer.error["message"]


@virtual_time
async def test_an_address_has_so_many_requests() -> None:
    # SA27
    app = tame(make_app(Limits(address_rate=PER_ADDRESS)))
    client = Client(app)
    for _ in range(60):
        assert (await client.call("echo", {"text": "x"})).text == "x"
    too_many(await client.call("echo", {"text": "x"}), "address_rate", 1)
    assert (await Client(app, peer=("127.0.0.2", 1)).call("echo", {"text": "x"})).text == "x"
    assert (await client.send(b"", {"host": "localhost"}, verb="PUT")).status == 405, "what is no use costs nothing"
    await asyncio.sleep(1)
    session = Legacy(app)
    assert (await session.try_initialize()).status == 200
    too_many(await session.try_initialize(), "address_rate", 1)


@virtual_time
async def test_the_address_is_counted_before_anybody_asks_who_it_is() -> None:
    """Whoever guesses credentials is slowed down, too."""
    asked: list[Any] = []

    def principal(scope: Any) -> str | None:
        asked.append(scope)
        return None

    server = Server("hall")
    app = tame(asgi(server, limits=Limits(address_rate=(2, 60)), principal=principal))
    statuses = [(await Client(app).request("server/discover")).status for _ in range(4)]
    assert (statuses, len(asked)) == ([200, 200, 429, 429], 2)


@virtual_time
async def test_a_principal_has_so_many_messages_whatever_the_era_and_the_address() -> None:
    app = tame(make_app(Limits(message_rate=(4, 40), uncounted_methods={"ping"})))
    ada = Client(app, state={"principal": "ada"})
    session = await Legacy(app, state={"principal": "ada"}, peer=("127.0.0.2", 1)).connect()
    for _ in range(3):
        assert (await ada.call("echo", {"text": "x"})).text == "x"
    too_many(await session.call("echo", {"text": "x"}), "message_rate", 10)
    too_many(await ada.call("echo", {"text": "x"}), "message_rate", 10)
    assert (await session.notify("notifications/roots/list_changed")).status == 202, "notifications are free"
    assert (await session.request("ping")).status == 200
    async with session.listen():
        pass
    assert (await Client(app, state={"principal": "bob"}).call("echo", {"text": "x"})).text == "x"
    assert (await Client(app).call("echo", {"text": "x"})).text == "x"
    await asyncio.sleep(10)
    assert (await session.call("echo", {"text": "x"})).text == "x"


@virtual_time
async def test_who_cancels_without_end_is_counted() -> None:
    app = tame(make_app(Limits(message_rate=(3, 30))))
    session = await Legacy(app).connect()
    assert [(await session.cancel("none")).status for _ in range(3)] == [202, 202, 429]


@virtual_time
async def test_what_is_no_message_is_counted_as_one() -> None:
    app = tame(make_app(Limits(message_rate=(2, 20))))
    headers = {"host": "localhost", "content-type": "application/json", "accept": "application/json"}
    assert [(await Client(app).send(b'{"jsonrpc": "2.0", "id": 1, "method": 5}', headers)).status for _ in range(3)] == [400, 400, 429]


@pytest.mark.parametrize("rate", ["address_rate", "message_rate"])
async def test_what_is_off_counts_nothing(rate: str) -> None:
    app = make_app(Limits())
    assert getattr(app.limits, rate) is None
    assert [(await Client(app).call("echo", {"text": "x"})).status for _ in range(70)] == [200] * 70
