"""Several servers as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from virtual_time import virtual_time

from callboard import Client, Server, types
from callboard.client.config import ConfigError, ServerSpec, find, parse
from callboard.client.errors import ClientError, ConnectionFailed, InvalidRequest, Origin, RequestCancelled, ServerError
from callboard.client.group import Group, form
from callboard.client.inputs import Inputs
from callboard.client.member import FIRST_COOLDOWN, MOST_COOLDOWN
from callboard.client.negotiate import check_versions
from callboard.client.opening import Hello
from callboard.client.peer import Peer
from callboard.client.subscription import Subscription
from callboard.client.target import connect_to
from callboard.client.tasks import EXTENSION
from callboard.tasks import MemoryTasks
from callboard.types import Implementation

NOWHERE = {"command": "/there/is/no/such/program"}


def make_peer(spec: ServerSpec) -> Peer:
    link = connect_to(spec.target, max_message=1_000_000, headers=spec.headers, env=spec.env, cwd=spec.cwd, auth=None, connect_timeout=5)
    hello = Hello(check_versions(spec.versions), {}, Implementation(name="t", version="1"), None, 5.0)
    return Peer(link, hello, Inputs(None, None, None), None, None, None)


@asynccontextmanager
async def grouped(
    servers: dict[str, Any], make: Callable[[ServerSpec], Peer] = make_peer, **options: Any
) -> AsyncIterator[tuple[Client, Group]]:
    client = Client(Server("any"), **options)
    group = form(parse({"mcpServers": servers}, {}), make, 30.0)
    client._peer = group
    async with client:
        yield client, group


def old(server: Server) -> Callable[[ServerSpec], Peer]:
    """Makes peers that speak 2025-11-25 with one server."""

    def make(spec: ServerSpec) -> Peer:
        return make_peer(msgspec.structs.replace(spec, versions=("2025-11-25",)) if spec.target is server else spec)

    return make


def weather() -> Server:
    server = Server("weather", instructions="Ask for days.")

    @server.tool
    def forecast(days: int) -> dict[str, int]:
        return {"days": days}

    @server.tool
    async def wait() -> str:
        await asyncio.Event().wait()
        return ""

    @server.resource("sky://now")
    def sky() -> str:
        return "blue"

    @server.resource("sky://{city}/later")
    def later(city: str) -> str:
        return f"grey in {city}"

    @server.prompt
    def ask(day: str) -> str:
        return f"What is the weather on {day}?"

    return server


def maps() -> Server:
    server = Server("maps")

    @server.tool
    def forecast(place: str) -> dict[str, str]:
        return {"place": place}

    @server.resource("sky://now")
    def sky() -> str:
        return "a map of it"

    @server.resource("map://{name}")
    def chart(name: str) -> str:
        return f"map of {name}"

    return server


def text(read: Any) -> str:
    return str(read.contents[0].text)


async def test_names_begin_with_the_server() -> None:
    # TL-16
    async with grouped({"weather": weather(), "my maps": maps()}) as (client, group):
        assert [tool.name for tool in await client.list_tools()] == ["weather_forecast", "weather_wait", "my_maps_forecast"]
        assert (await client.call_tool("weather_forecast", {"days": 3})).data == {"days": 3}
        assert (await client.call_tool("my_maps_forecast", {"place": "x"})).data == {"place": "x"}
        assert [prompt.name for prompt in await client.list_prompts()] == ["weather_ask"]
        assert (await client.get_prompt("weather_ask", {"day": "Monday"})).messages[0].content.text == "What is the weather on Monday?"  # type: ignore[union-attr]
        for name in ("forecast", "weather", "weather_", "atlas_forecast"):
            with pytest.raises(InvalidRequest, match="no server of that name: names begin with weather_, my_maps_"):
                await client.call_tool(name)
        with pytest.raises(ServerError, match="none"):
            await client.call_tool("weather_none")
        with pytest.raises(InvalidRequest, match="no pages"):
            await client.list_tools("x")
        assert group.failures == {}


async def test_a_lone_server_has_its_prefix_too() -> None:
    async with grouped({"weather": weather()}) as (client, _):
        assert [tool.name for tool in await client.list_tools()] == ["weather_forecast", "weather_wait"]
        assert await client.request("resources/read", {"uri": "sky://now"})
        with pytest.raises(ServerError, match="skills/list"):
            await client.request("skills/list")


async def test_a_name_that_two_servers_may_have() -> None:
    # TL-16
    one, other = Server("one"), Server("other")

    @one.tool(name="b_c")
    def first() -> dict[str, int]:
        return {"of": 1}

    @other.tool(name="d")
    def second() -> dict[str, int]:
        return {"of": 2}

    for names in (("a", "a_b"), ("a_b", "a")):
        targets: dict[str, Server] = {"a": one, "a_b": other}
        async with grouped({name: targets[name] for name in names}) as (client, _):
            assert (await client.call_tool("a_b_c")).data == {"of": 1}
            assert (await client.call_tool("a_b_d")).data == {"of": 2}
            with pytest.raises(ServerError):
                await client.call_tool("a_b_e")


async def test_resources_keep_their_uris(caplog: pytest.LogCaptureFixture) -> None:
    async with grouped({"weather": weather(), "maps": maps()}) as (client, _):
        assert text(await client.read_resource("map://x")) == "map of x"
        assert text(await client.read_resource("sky://now")) == "blue", "the first that has it counts"
        assert text(await client.read_resource("sky://x/later")) == "grey in x"
        for _time in range(2):
            assert [resource.uri for resource in await client.list_resources()] == ["sky://now"]
        assert [template.uri_template for template in await client.list_resource_templates()] == ["sky://{city}/later", "map://{name}"]
        with pytest.raises(ServerError, match="not found"):
            await client.read_resource("other://x")
    assert caplog.text.count("'sky://now' of server 'maps' is left out: 'weather' has it, too") == 1


async def test_a_resource_that_nobody_lists_is_asked_for_everywhere() -> None:
    hidden = Server("hidden")

    @hidden.resource("secret://x")
    def secret() -> str:
        return "found"

    async with grouped({"weather": weather(), "hidden": hidden}) as (client, group):
        await client.list_resources()
        group._uris.clear()
        group._looked = True
        assert text(await client.read_resource("secret://x")) == "found"


async def test_one_that_fails_does_not_take_the_others_with_it(caplog: pytest.LogCaptureFixture) -> None:
    async with grouped({"gone": NOWHERE, "weather": weather()}) as (client, group):
        assert [tool.name for tool in await client.list_tools()] == ["weather_forecast", "weather_wait"]
        assert (await client.call_tool("weather_forecast", {"days": 1})).data == {"days": 1}
        for _ in range(2):
            with pytest.raises(ConnectionFailed, match="/there/is/no/such/program"):
                await client.call_tool("gone_x")
        assert text(await client.read_resource("sky://now")) == "blue"
        await client.ping()
        assert client.version == "2026-07-28"
        assert list(group.failures) == ["gone"]
        assert isinstance(group.failures["gone"], ConnectionFailed)
    assert caplog.text.count("Server 'gone' is left out") == 1


async def test_when_all_fail_there_is_nothing_to_speak_to() -> None:
    with pytest.raises(ConnectionFailed, match=r"no server can be used: one: .*; other: "):
        async with grouped({"one": NOWHERE, "other": NOWHERE}):
            pass


@virtual_time
async def test_one_that_failed_is_tried_again_after_a_while() -> None:
    tries: list[float] = []
    server = weather()

    def make(spec: ServerSpec) -> Peer:
        tries.append(asyncio.get_running_loop().time())
        return make_peer(parse({"mcpServers": {"gone": NOWHERE}}).servers[0] if spec.target is server and len(tries) <= 4 else spec)

    async with grouped({"maps": maps(), "weather": server}, make) as (client, group):
        began = tries[-1]
        found: list[types.Tool] = []
        for _ in range(200):
            if not group.failures:
                break
            await asyncio.sleep(1)
            found = await client.list_tools()
        assert [round(when - began) for when in tries] == [0, 0, 5, 15, 35]
        assert [tool.name for tool in found] == ["maps_forecast", "weather_forecast", "weather_wait"]
        assert (await client.call_tool("weather_forecast", {"days": 1})).data == {"days": 1}
    assert FIRST_COOLDOWN == 5
    assert MOST_COOLDOWN == 60


async def test_who_stops_waiting_for_a_server_leaves_others_alone() -> None:
    began = asyncio.Event()
    go_on = asyncio.Event()

    class Slow(Peer):
        async def open(self) -> None:
            began.set()
            await go_on.wait()
            await super().open()

    def make(spec: ServerSpec) -> Peer:
        made = make_peer(spec)
        if spec.name == "weather":
            made.__class__ = Slow
        return made

    group = form(parse({"mcpServers": {"weather": weather(), "maps": maps()}}), make, 30.0)
    first, second = (asyncio.create_task(group._members[0].open()) for _ in range(2))
    await began.wait()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    go_on.set()
    assert isinstance(await second, Peer)
    await group.close()


async def test_a_client_that_closes_while_a_server_opens() -> None:
    class Silent(Peer):
        async def open(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                closed.append(self.target)

    def make(spec: ServerSpec) -> Peer:
        made = make_peer(spec)
        if spec.name == "silent":
            made.__class__ = Silent
        return made

    closed: list[str] = []
    group = form(parse({"mcpServers": {"silent": maps(), "weather": weather()}}), make, 30.0)
    opening = asyncio.create_task(group.open())
    await asyncio.sleep(0.05)
    opening.cancel()
    await asyncio.wait([opening])
    assert closed == ["maps"]
    with pytest.raises(ClientError, match="the client was closed"):
        await group._members[0].open()


async def test_a_task_is_asked_for_where_it_was_made() -> None:
    # TX-13
    def errands(made: str) -> Server:
        server = Server(made, tasks=MemoryTasks())

        @server.tool(task="always")
        async def run() -> dict[str, str]:
            return {"of": made}

        return server

    def make(spec: ServerSpec) -> Peer:
        link = connect_to(spec.target, max_message=1_000_000)
        hello = Hello(check_versions(None), {"extensions": {EXTENSION: {}}}, Implementation(name="t", version="1"), None, 5.0)
        return Peer(link, hello, Inputs(None, None, None), None, None, None)

    async with grouped({"a": errands("one"), "b": errands("other")}, make, tasks=True) as (client, group):
        assert (await client.call_tool("b_run")).data == {"of": "other"}
        task = await client.start_tool("b_run")
        assert task.task_id is not None
        assert (await task.result()).data == {"of": "other"}
        group._tasks.clear()
        again = client.task(task.task_id, "b_run")
        assert (await again.status()).status == "completed"
        assert (await again.result()).data == {"of": "other"}
        with pytest.raises(InvalidRequest, match="no server knows this task"):
            await client.task("none").status()


def test_what_cannot_be_connected_to_is_said_at_once() -> None:
    async def build(servers: dict[str, Any]) -> None:
        form(parse({"mcpServers": servers}, {}), make_peer, 30.0)

    with pytest.raises(ConfigError, match="server 'b': cwd: there is no folder /there/is/none"):
        asyncio.run(build({"a": {"command": "x"}, "b": {"command": "x", "cwd": "/there/is/none"}}))
    with pytest.raises(ConfigError, match=r"server 'b': .*needs a host"):
        asyncio.run(build({"b": {"url": "http://"}}))


async def test_what_it_is_is_what_all_are() -> None:
    server = maps()
    async with grouped({"weather": weather(), "maps": server}, old(server)) as (client, _):
        found = await client.discover()
        assert found.instructions == "weather: Ask for days."
        assert found.capabilities.prompts
        assert found.capabilities.tools
        assert client.version == "weather: 2026-07-28, maps: 2025-11-25"
        await client.ping()
        await client.set_log_level("debug")
        assert (await client.call_tool("maps_forecast", {"place": "x"})).data == {"place": "x"}
        assert (await client.request("server/discover"))["instructions"] == "weather: Ask for days."
        with pytest.raises(InvalidRequest, match="nothing says which is meant"):
            await client.request("skills/list")


async def test_requests_are_known_by_server_and_id() -> None:
    async with grouped({"weather": weather(), "spare": weather()}) as (client, _):
        calls = {name: asyncio.create_task(client.call_tool(f"{name}_wait")) for name in ("weather", "spare")}
        async with asyncio.timeout(10):
            while len(client.in_flight) < 2:  # noqa: ASYNC110 nobody says when a request is out
                await asyncio.sleep(0)
        ids = {str(origin.request_id).partition(":")[0]: origin.request_id for origin in client.in_flight}
        assert ids.keys() == calls.keys()
        spare = ids["spare"]
        assert spare is not None
        assert client.cancel(spare)
        with pytest.raises(RequestCancelled):
            await calls["spare"]
        assert not client.cancel(spare)
        assert not client.cancel(1)
        assert len(client.in_flight) == 1
        calls["weather"].cancel()


async def test_changes_of_all_are_heard() -> None:
    # SB-03, SB-15
    first, second = weather(), maps()
    async with (
        grouped({"weather": first, "maps": second, "gone": NOWHERE}, old(second)) as (client, _),
        client.listen(tools=True, uris=["sky://now"]) as changes,
    ):
        assert changes.granted is not None
        assert changes.granted.tools_list_changed
        assert changes.granted.resource_subscriptions == ["sky://now"]
        for server in (first, second):

            @server.tool(name="more")
            def more() -> str:
                return ""

            assert isinstance(await asyncio.wait_for(anext(changes), 10), types.ToolListChangedNotification)


@virtual_time
async def test_a_stream_that_ends_is_opened_anew_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # SB-09, SB-10
    heard: list[str] = []
    hear = Peer.hear

    async def counted(self: Peer, wanted: Any, on_note: Any) -> None:
        heard.append(self.target)
        try:
            async with asyncio.timeout(30 if self.target == "maps" else None):
                await hear(self, wanted, on_note)
        except TimeoutError:
            return

    monkeypatch.setattr(Peer, "hear", counted)
    async with grouped({"weather": weather(), "maps": maps()}) as (client, _), client.listen(tools=True) as changes:
        await asyncio.sleep(29)
        assert sorted(heard) == ["maps", "weather"]
        change = await asyncio.wait_for(anext(changes), 20)
        assert isinstance(change, types.ToolListChangedNotification), "what was missed is told of as changed"
        assert sorted(heard) == ["maps", "maps", "weather", "weather"]


class Reloads:
    """Ends streams as servers do that are reloaded, and counts them.

    Args:
        lives: Server -> seconds that each of its streams lasts, the first one first; -1 for none, as the server is away just then. Then they stay.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **lives: list[float]) -> None:
        self.heard: list[str] = []
        hear = Peer.hear

        async def hear_for_a_while(peer: Peer, wanted: Any, on_note: Any) -> None:
            self.heard.append(peer.target)
            life = lives[peer.target].pop(0) if lives.get(peer.target) else None
            if life == -1:
                raise ConnectionFailed("it is away", Origin(peer.target))
            with suppress(TimeoutError):
                async with asyncio.timeout(life):
                    await hear(peer, wanted, on_note)

        monkeypatch.setattr(Peer, "hear", hear_for_a_while)


def add_more(server: Server) -> None:
    @server.tool(name="more")
    def more() -> str:
        return ""


async def drain(changes: Subscription) -> int:
    """How many changes have been told, and are told within ten minutes."""
    count = 0
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(600):
                await anext(changes)
            count += 1
    return count


@virtual_time
@pytest.mark.parametrize("lives", [[10, 1, 1], [10, -1, -1, -1], [10, 1, -1, 2, -1], [1, 1], [-1, 1]])
async def test_a_server_that_is_reloaded_twice_in_a_row_is_heard_again(monkeypatch: pytest.MonkeyPatch, lives: list[float]) -> None:
    # SB-09, SB-10
    charts, opened, all_anew = maps(), len(lives) + 1, lives[0] == 10
    reloads = Reloads(monkeypatch, maps=lives)
    async with grouped({"weather": weather(), "maps": charts}) as (client, _), client.listen(tools=True) as changes:
        assert await drain(changes) > 0, "what was missed is told of as changed"
        assert reloads.heard.count("maps") == opened
        assert reloads.heard.count("weather") == (2 if all_anew else 1), "who stays is not asked again because of it"
        add_more(charts)
        assert isinstance(await asyncio.wait_for(anext(changes), 10), types.ToolListChangedNotification)


@virtual_time
@pytest.mark.parametrize("life", [0.001, -1])
async def test_a_server_that_gives_no_lasting_stream_is_asked_ever_more_rarely(monkeypatch: pytest.MonkeyPatch, life: float) -> None:
    # CA-08: and nobody else is lost because of it
    steady = weather()
    reloads = Reloads(monkeypatch, maps=[life] * 1000)
    async with grouped({"weather": steady, "maps": maps()}) as (client, _), client.listen(tools=True) as changes:
        await asyncio.sleep(3600)
        assert 60 < reloads.heard.count("maps") < 100, "once in a minute, in the end"
        assert reloads.heard.count("weather") == 1
        while changes._waiting:
            await anext(changes)
        add_more(steady)
        assert isinstance(await asyncio.wait_for(anext(changes), 1), types.ToolListChangedNotification)


@virtual_time
@pytest.mark.parametrize("life", [0.001, -1])
async def test_where_no_server_gives_a_lasting_stream_listening_ends(monkeypatch: pytest.MonkeyPatch, life: float) -> None:
    # CA-08: as with one server
    reloads = Reloads(monkeypatch, maps=[10] + [life] * 1000, weather=[10] + [life] * 1000)
    async with grouped({"weather": weather(), "maps": maps()}) as (client, _), client.listen(tools=True) as changes:
        with suppress(ConnectionFailed, StopAsyncIteration):
            async with asyncio.timeout(600):
                while True:
                    await anext(changes)
    assert len(reloads.heard) < 100


async def test_a_target_that_is_a_configuration(tmp_path: Any) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    for target in (path, str(path), {"servers": {"a": {"command": "x"}}}):
        found = find(target)
        assert found is not None
        assert [spec.name for spec in found.servers] == ["a"]
    for other in (weather(), ["a.json"], "http://h/mcp.json", tmp_path / "a.py", None):
        assert find(other) is None
    with pytest.raises(ConfigError, match="can't be read"):
        find(tmp_path / "none.json")


async def test_closing_closes_all(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with grouped({"weather": weather(), "maps": maps()}) as (client, _):
            call = asyncio.create_task(client.call_tool("weather_wait"))
            await asyncio.sleep(0.01)
        with pytest.raises(ClientError):
            await call
        with pytest.raises(ClientError):
            await client.list_tools()
    assert not caplog.records
