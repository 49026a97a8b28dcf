"""What one principal can take of what all share: never all of it, in both eras (issue 6: two principals)."""

import asyncio
import threading
from typing import Any

import pytest
from asgi_driver import Client
from legacy_driver import Legacy, Session
from virtual_time import settle, virtual_time

from callboard import Server, asgi
from callboard.limits import Limits
from callboard.transport.asgi import App


class Room:
    """A server whose calls wait until they are let go.

    Attributes:
        app: It over HTTP; who asks is what the client's ASGI state says.
        go: What `hold` waits for.
        door: What `block` waits for, on its thread.
        inside: How many wait on threads.
    """

    def __init__(self, limits: Limits, **options: Any) -> None:
        self.go = asyncio.Event()
        self.door = threading.Event()
        self.inside = 0
        server = Server("room")

        @server.tool
        async def hold() -> str:
            await self.go.wait()
            return "let go"

        @server.tool
        def block() -> str:
            self.inside += 1
            self.door.wait(20)
            return "let go"

        @server.tool
        async def echo(text: str) -> str:
            return text

        @server.tool
        def work(text: str) -> str:
            return text

        self.server = server
        self.app: App = asgi(server, limits=limits, principal=lambda scope: scope["state"].get("principal"), **options)

    def modern(self, who: str | None) -> Client:
        return Client(self.app, state={"principal": who})

    async def session(self, who: str | None) -> Session:
        return await Legacy(self.app, state={"principal": who}).connect()


def refused(answer: Any, setting: str) -> None:
    """See that there was no room, when to come back, and which setting says so."""
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert f"({setting})" in answer.error["message"]


@virtual_time
async def test_requests_of_one_principal_leave_room_for_others() -> None:
    room = Room(Limits(max_in_flight=3, max_in_flight_per_principal=2))
    ada, bob = room.modern("ada"), room.modern("bob")
    session = await room.session("ada")
    waiting = [asyncio.create_task(ada.call("hold", request_id="a")), asyncio.create_task(session.call("hold"))]
    await settle()
    refused(await ada.call("echo", {"text": "x"}), "max_in_flight_per_principal")
    refused(await session.call("echo", {"text": "x"}), "max_in_flight_per_principal")
    assert (await bob.call("echo", {"text": "x"})).text == "x"
    waiting.append(asyncio.create_task(bob.call("hold", request_id="b")))
    await settle()
    refused(await bob.call("echo", {"text": "x"}), "max_in_flight")
    refused(await room.modern(None).call("echo", {"text": "x"}), "max_in_flight")
    room.go.set()
    assert {(await task).text for task in waiting} == {"let go"}
    assert (await ada.call("echo", {"text": "x"})).text == "x"
    assert (room.app.endpoint.load.in_flight, room.app.endpoint.load._of) == (0, {})


@virtual_time
async def test_calls_without_a_client_still_count() -> None:
    """Who hangs up leaves work behind; that must not be the way around."""
    room = Room(Limits(max_in_flight_per_principal=2), cancel_on_disconnect="never")
    session = await room.session("ada")
    for _ in range(2):
        call = session.begin("hold")
        await settle()
        await call.drop()
    refused(await session.call("echo", {"text": "x"}), "max_in_flight_per_principal")
    refused(await room.modern("ada").call("echo", {"text": "x"}), "max_in_flight_per_principal")
    room.go.set()
    await settle()
    assert (await session.call("echo", {"text": "x"})).text == "x"


@virtual_time
async def test_a_client_that_leaves_gives_its_place_back() -> None:
    room = Room(Limits(max_in_flight=1))
    client = room.modern("ada")
    for _ in range(3):
        async with client.open("tools/call", {"name": "hold"}) as call:
            await settle()
            assert room.app.endpoint.load.in_flight == 1
            call.disconnect()
            await call.gone()
        assert room.app.endpoint.load.in_flight == 0
    assert (await client.call("echo", {"text": "x"})).text == "x"


async def test_blocking_functions_of_one_principal_leave_threads_for_others() -> None:
    """SA40: the pool is full of what one caller sent; other callers' functions run, and coroutines are not even late."""
    room = Room(Limits(threads=4, thread_queue=4))
    ada, bob = room.modern("ada"), room.modern("bob")
    blocked = [asyncio.create_task(ada.call("block", request_id=number)) for number in range(5)]
    async with asyncio.timeout(15):
        while room.inside < 3:  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.001)
        refused_call = await ada.call("work", {"text": "x"})
        refused(refused_call, "thread_queue")
        assert (await bob.call("work", {"text": "x"})).text == "x"
        assert (await room.modern(None).call("work", {"text": "x"})).text == "x"
        assert (await ada.call("echo", {"text": "x"})).text == "x"
        assert room.inside == 3
        room.door.set()
        assert {(await call).text for call in blocked} == {"let go"}


@virtual_time
async def test_sessions_of_one_principal_leave_room_for_others() -> None:
    room = Room(Limits(max_sessions=3, max_sessions_per_principal=2), session_ttl=60)
    first, _ = [await room.session("ada") for _ in range(2)]
    answer = await Legacy(room.app, state={"principal": "ada"}).try_initialize()
    refused(answer, "max_sessions_per_principal")
    bob = await room.session("bob")
    refused(await Legacy(room.app, state={"principal": None}).try_initialize(), "max_sessions")
    assert (await first.delete()).status == 204
    await room.session("ada")
    await asyncio.sleep(61)
    assert (await bob.request("ping")).status == 404
    for _ in range(2):
        await room.session("bob")


@virtual_time
async def test_streams_of_one_principal_leave_room_for_others() -> None:
    """GET streams of sessions and listen streams are of one kind: neither is the way around the other's bound."""
    room = Room(Limits(max_streams=3, max_streams_per_principal=2))
    ada, session = room.modern("ada"), await room.session("ada")
    async with session.listen(), ada.listen("one", toolsListChanged=True) as stream:
        await stream.message()
        refused(await session.get(), "max_streams_per_principal")
        again = await ada.request("subscriptions/listen", {"notifications": {}}, request_id="two")
        refused(again, "max_streams_per_principal")
        assert again.message["id"] == "two"
        assert (await ada.call("echo", {"text": "x"})).text == "x"
        bob = await room.session("bob")
        async with bob.listen():
            refused(await bob.get(), "max_streams")
    await settle()
    assert room.app.endpoint.load.streams.taken == 0
    async with session.listen(), session.listen():
        assert room.app.endpoint.load.streams.taken == 2


@virtual_time
async def test_streams_of_http_sse_count_too() -> None:
    room = Room(Limits(max_streams=1), sse_path="/sse")
    client = room.modern(None)
    stream = client.start(b"", {"host": "localhost", "accept": "text/event-stream"}, verb="GET", path="/sse")
    assert await stream.head() == 200
    refused(await (await room.session(None)).get(), "max_streams")
    stream.disconnect()
    await stream.gone()
    assert room.app.endpoint.load.streams.taken == 0


@pytest.mark.parametrize("who", ["ada", None])
@virtual_time
async def test_what_was_refused_takes_no_place(who: str | None) -> None:
    room = Room(Limits(max_streams=1, max_in_flight=1))
    session = await room.session(who)
    for _ in range(5):
        assert (await session.get("no-such-event")).status == 400
        assert (await session.call("no_such_tool")).error["code"] == -32602
        assert (await room.modern(who).call("no_such_tool")).status == 400
    load = room.app.endpoint.load
    assert (load.streams.taken, load.in_flight, load.buffered) == (0, 0, 0)
