"""Two processes of one server on one Redis: what one of them counts, seals or tells holds for the other."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Literal

import pytest
from asgi_driver import Answer, Client, make_meta
from legacy_driver import Legacy
from redis_server import RedisServer, needs_redis, redis_server  # noqa: F401 - the fixture
from rounds import Rounds, accept

from callboard import Context, NeedInput, Server, asgi
from callboard.handler import Channel, Handler, Published, Stream
from callboard.limits import Limits
from callboard.stores.redis import RedisStore

pytestmark = needs_redis
DEFAULTS = Limits()
ADA, BOB = {"principal": "ada"}, {"principal": "bob"}
FORM = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
ASK = {"sure": {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": FORM}}}


def make_server(store: RedisStore | None, **options: Any) -> Server:
    """A program; each process runs it."""
    server = Server("desk", store=store, **options)
    child = Server("child")

    @server.tool(rate=(2, 600.0))
    def scarce() -> str:
        """Seldom."""
        return "here"

    @server.tool(rate=(1, 600.0))
    def careful(ctx: Context) -> str | NeedInput:
        """Asks first."""
        return NeedInput(ASK, state=1) if ctx.input is None else "done"

    @server.resource("desk://page/{number}", rate=(2, 600.0))
    def page(number: str) -> str:
        return number

    @server.prompt(rate=(2, 600.0))
    def scarce_prompt() -> str:
        return "x"

    @child.tool(rate=(2, 600.0))
    def inner() -> str:
        return "in here"

    server.mount("child", child)
    return server


class Fleet:
    """The processes of one server, in one process.

    Attributes:
        servers: Of each.
        apps: Of each.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix
        self.servers: list[Server] = []
        self.apps: list[Any] = []

    def store(self, **options: Any) -> RedisStore:
        """What a further process would be given."""
        return RedisStore(self._url, prefix=self._prefix, **options)

    def start(
        self,
        make: Callable[[RedisStore], Any] = make_server,
        *,
        limits: Limits = DEFAULTS,
        sessions: Literal["auto", "off"] = "off",
        **options: Any,
    ) -> Any:
        """Start a process; its application."""
        server = make(self.store(**options))
        self.servers.append(getattr(server, "server", server))
        self.apps.append(asgi(server, sessions=sessions, principal=lambda scope: scope["state"].get("principal"), limits=limits))
        return self.apps[-1]

    async def close(self) -> None:
        """End all."""
        for app in self.apps:
            await app.aclose()


@pytest.fixture
async def fleet(redis_server: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:  # noqa: F811
    made = Fleet(redis_server.url, request.node.name)
    yield made
    await made.close()


def refused(answer: Answer, code: int = 429) -> int:
    """Seconds after which to come back."""
    assert (answer.status, answer.error["code"]) == (code, code)
    return int(answer.headers["retry-after"])


# Rates


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "scarce"}),
        ("tools/call", {"name": "child_inner"}),
        ("prompts/get", {"name": "scarce_prompt"}),
        ("resources/read", {"uri": "desk://page/1"}),
    ],
)
async def test_a_rate_is_of_all_processes(fleet: Fleet, method: str, params: dict[str, Any]) -> None:
    # SA27
    ada = [Client(fleet.start(), state=ADA) for _ in range(2)]
    for client in ada:
        assert "result" in (await client.request(method, params)).message
    for client in ada * 2:
        assert 200 < refused(await client.request(method, params)) <= 300
    assert "result" in (await Client(fleet.apps[1], state=BOB).request(method, params)).message
    assert "result" in (await Client(fleet.apps[1]).request(method, params)).message, "who is nobody has a count, too"
    if params.get("name") == "scarce":
        assert (await ada[0].request("tools/call", {"name": "careful"}, meta=None)).status != 429, "each component has its own"


async def test_a_call_that_goes_on_elsewhere_is_counted_once(fleet: Fleet) -> None:
    # SA27, MR-06
    one, other = (Rounds(fleet.start(), lambda key, asked: accept(sure=True), principal="ada") for _ in range(2))
    state = (await one.once("tools/call", {"name": "careful"})).result["requestState"]
    again = {"name": "careful", "requestState": state, "inputResponses": {"sure": accept(sure=True)}}
    assert (await other.once("tools/call", again)).text == "done"
    for worker in (one, other):
        assert refused(await worker.once("tools/call", again)), "a round that is sent again is a call"


async def test_rates_over_http_are_of_all_processes(fleet: Fleet) -> None:
    # SA27
    limits = Limits(address_rate=(4, 600.0), message_rate=(2, 600.0))
    apps = [fleet.start(limits=limits) for _ in range(2)]
    for app in apps:
        assert (await Client(app, state=ADA).call("scarce")).text == "here"
    answer = await Client(apps[0], state=ADA).request("tools/list")
    assert "(message_rate)" in answer.error["message"]
    assert 200 < refused(answer) <= 300
    assert (await Client(apps[1], state=BOB).request("tools/list")).status == 200
    answer = await Client(apps[0], state=BOB).request("tools/list")
    assert "(address_rate)" in answer.error["message"]
    assert 100 < refused(answer) <= 150
    assert (await Client(apps[1], peer=("127.0.0.2", 1)).request("tools/list")).status == 200


async def test_without_the_store_calls_go_on_and_each_process_counts(fleet: Fleet) -> None:
    with RedisServer() as own:
        alone = Fleet(own.url, "alone")
        app = alone.start(timeout=0.3)
        ada = Client(app, state=ADA)
        assert (await ada.call("scarce")).text == "here"
        own.kill()
        assert (await ada.call("scarce")).text == "here"
        assert refused(await ada.call("scarce"))
        await app.aclose()


# Places


@asynccontextmanager
async def listening(client: Client, **wanted: Any) -> AsyncIterator[Any]:
    """A listen stream that has been acknowledged."""
    async with client.listen(1, **wanted) as stream:
        ack = await stream.message()
        assert ack["method"] == "notifications/subscriptions/acknowledged", ack
        yield stream


async def eventually(client: Client) -> None:
    """Wait until a client may listen."""
    for _ in range(200):
        async with client.listen(1, toolsListChanged=True) as stream:
            if (await stream.head()) == 200:
                return
            await stream.end()
        await asyncio.sleep(0.02)
    raise AssertionError("its place never came back")


@pytest.mark.parametrize(
    ("limits", "option"),
    [
        ({"max_listens_per_principal": 1}, "max_listens_per_principal"),
        ({"max_streams_per_principal": 1}, "max_streams_per_principal"),
        ({"max_listens": 1}, "max_listens"),
        ({"max_streams": 1}, "max_streams"),
    ],
)
async def test_open_streams_are_counted_in_all_processes(fleet: Fleet, limits: dict[str, Any], option: str) -> None:
    one, other = (Client(fleet.start(limits=Limits(**limits)), state=ADA) for _ in range(2))
    async with listening(one, toolsListChanged=True):
        answer = await other.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert f"({option})" in answer.error["message"]
        if "per_principal" in option:
            async with listening(Client(fleet.apps[1], state=BOB), toolsListChanged=True):
                pass
    await eventually(other)
    await eventually(one)


# Changes


async def test_listen_streams_hear_changes_of_every_process(fleet: Fleet) -> None:
    # SB-11, SB-12
    one, other = (Client(fleet.start()) for _ in range(2))
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["desk://page/{number}"]}
    async with listening(one, **wanted) as first, listening(other, **wanted) as second:
        for server in fleet.servers:
            server.resource_updated("desk://page/1")
            server.remove("tools", "scarce")
            notes = [[await stream.message() for _ in range(2)] for stream in (first, second)]
            assert notes[0] == notes[1]
            assert [note["method"].rpartition("/")[2] for note in notes[0]] == ["updated", "list_changed"]
            assert notes[0][0]["params"]["uri"] == "desk://page/1"


async def test_a_process_that_starts_tells_nobody_of_its_components(fleet: Fleet) -> None:
    """Else all clients would fetch all lists whenever a process is started again."""
    one = Client(fleet.start())
    async with listening(one, toolsListChanged=True, promptsListChanged=True, resourcesListChanged=True) as stream:
        late = fleet.start()
        assert (await Client(late).request("tools/list")).status == 200
        fleet.servers[1].tool(name="later")(lambda: "x")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        assert stream.body.count(b"list_changed") == 1


async def test_a_program_that_serves_nothing_is_heard(fleet: Fleet) -> None:
    """A cron job: it has the same server, opens its store, says what it has to say, and ends."""
    one = Client(fleet.start())
    async with listening(one, resourceSubscriptions=["desk://page/{number}"]) as stream:
        job = make_server(fleet.store())
        await job.store.open()
        for number in range(3):
            job.resource_updated(f"desk://page/{number}")
        await job.store.close()
        uris = [(await stream.message())["params"]["uri"] for _ in range(3)]
        assert uris == ["desk://page/0", "desk://page/1", "desk://page/2"]


class Board(Handler[Any]):
    """A handler whose calls hear a topic."""

    name = "board"
    capabilities = MappingProxyType({"tools": {}})

    async def handle_request(self, request: Any, channel: Channel, state: Any) -> Any:
        """Wait for news."""
        channel.subscribe("news")
        channel.progress(1)
        return Stream(state)

    async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
        """Give it."""
        assert isinstance(message, Published)
        return {"content": [{"type": "text", "text": str(message.message)}]}


async def test_what_one_process_publishes_channels_of_another_one_hear(fleet: Fleet) -> None:
    def make(store: RedisStore) -> Board:
        board = Board()
        board.server.keep_in(store)
        return board

    one, two = fleet.start(make), fleet.start(make)
    assert (await Client(two).request("server/discover")).status == 200
    meta = make_meta(progressToken=1)
    async with Client(one).open("tools/call", {"name": "x"}, meta=meta) as call:
        await call.message()  # it hears the topic now
        fleet.servers[1].publish("news", {"n": 1})  # type: ignore[attr-defined]
        assert (await call.end()).text == "{'n': 1}"


async def test_sessions_of_one_process_hear_what_another_one_says(fleet: Fleet) -> None:
    # a topic, a resource, one session and its log
    def make(store: RedisStore) -> Server:
        return make_server(store, channels=["news"])

    one, _ = (fleet.start(make, sessions="auto") for _ in range(2))
    assert (await Client(fleet.apps[1]).request("server/discover")).status == 200
    session = await Legacy(one).connect()
    await session.request("resources/subscribe", {"uri": "desk://page/1"})
    async with session.listen() as stream:
        speaker = fleet.servers[1]
        speaker.broadcast("news", {"method": "notifications/prompts/list_changed"})
        speaker.notify(str(session.id), {"method": "notifications/tools/list_changed"})
        speaker.resource_updated("desk://page/1")
        speaker.log(str(session.id), "error", "look")
        notes = [await stream.message() for _ in range(4)]
    assert [note["method"] for note in notes] == [
        "notifications/prompts/list_changed",
        "notifications/tools/list_changed",
        "notifications/resources/updated",
        "notifications/message",
    ]


# What a client keeps


async def test_a_state_of_one_process_is_taken_once_by_any(fleet: Fleet) -> None:
    # MR-06, MR-08
    def make(store: RedisStore) -> Server:
        return make_server(store, single_use=True)

    workers = [Rounds(fleet.start(make), lambda key, asked: accept(sure=True)) for _ in range(2)]
    state = (await workers[0].once("tools/call", {"name": "careful"})).result["requestState"]
    again = {"name": "careful", "requestState": state, "inputResponses": {"sure": accept(sure=True)}}
    answers = await asyncio.gather(*(worker.once("tools/call", again) for worker in workers * 3))
    assert sorted("result" in answer.message for answer in answers) == [False] * 5 + [True]
    assert {answer.error["code"] for answer in answers if "error" in answer.message} == {-32602}
