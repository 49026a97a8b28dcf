"""What a session keeps between calls: who sees it, what is written back, and in what order."""

import asyncio
import re
import sys
from typing import Any

import pytest
from asgi_driver import Client
from legacy_driver import V03, VERSIONS, Legacy, Session, ends
from msgspec import Struct
from shop import Cart, Shop
from virtual_time import virtual_time

from callboard import Context, RegistrationError, Server, asgi
from callboard.limits import Limits


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def counted(session: Session, tool: str = "look", **arguments: Any) -> int:
    """The number that a tool says."""
    return int((await session.call(tool, arguments)).text)


# What is kept


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_calls_of_one_session_count_on(shop: Shop, version: str) -> None:
    """Scenario 1."""
    session = await Legacy(asgi(shop.server), version).connect()
    assert [await counted(session, "add") for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_without_sessions_every_call_begins_anew(shop: Shop, version: str) -> None:
    """Scenario 2."""
    session = Legacy(asgi(shop.server, sessions="off"), version).sessionless()
    assert [await counted(session, "add") for _ in range(3)] == [1, 1, 1]
    assert shop.over == []


@virtual_time
async def test_on_the_current_protocol_every_call_begins_anew(shop: Shop) -> None:
    """Scenario 2, as a current client sees it beside a session."""
    app = asgi(shop.server)
    session, client = await Legacy(app).connect(), Client(app)
    await session.call("add", {"amount": 5})
    assert [(await client.call("add")).text for _ in range(2)] == ["1", "1"]
    assert await counted(session) == 5


@virtual_time
async def test_what_a_failure_in_band_did_is_kept(shop: Shop) -> None:
    """Scenario 3."""
    session = await Legacy(asgi(shop.server)).connect()
    answer = await session.call("add_and_refuse")
    assert (answer.result["isError"], answer.text) == (True, "Out of stock.")
    assert await counted(session) == 1


@pytest.mark.parametrize("tool", ["add_and_crash", "add_and_say_nonsense"])
@pytest.mark.parametrize("token", [None, "t"])
@virtual_time
async def test_what_a_crash_did_is_dropped(shop: Shop, tool: str, token: str | None) -> None:
    """Scenarios 4 and 25: what can't be encoded is a crash too (SA07, SA35)."""
    session = await Legacy(asgi(shop.server)).connect()
    assert await counted(session, "add") == 1
    answer = await session.call(tool, token=token)
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert b"hunter2" not in answer.body
    assert await counted(session, "add") == 2


@virtual_time
async def test_what_a_call_with_a_time_limit_did_before_it_is_kept_as_any_failure_in_band(shop: Shop) -> None:
    # DESIGN section 4: "kept when the call returns or raises ToolError ... dropped when it is cancelled"; a tool's own timeout cancels it
    session = await Legacy(asgi(shop.server)).connect()
    answer = await session.call("limited")
    assert answer.result["isError"] is True
    assert await counted(session) == 0


@virtual_time
async def test_arguments_that_do_not_fit_leave_the_state_alone(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    await session.call("add")
    assert (await session.call("add", {"amount": "many"})).result["isError"] is True
    assert (await session.call("add", {"amount": 1, "cart": {"count": 50}})).result["isError"] is True
    assert await counted(session) == 1


@virtual_time
async def test_a_function_on_a_thread_keeps_its_state_too(shop: Shop) -> None:
    """Scenario 1, with `def` functions."""
    session = await Legacy(asgi(shop.server)).connect()
    answers = await asyncio.gather(*(session.call("add_in_a_thread") for _ in range(10)))
    assert [answer.text for answer in answers] == [str(number) for number in range(1, 11)]


@virtual_time
async def test_a_reply_may_bring_the_new_state(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    await session.call("add")
    answer = await session.call("replace", {"count": 40})
    assert '"was":1' in answer.text.replace(" ", "")
    assert await counted(session) == 40


@virtual_time
async def test_resources_prompts_and_completions_keep_it_like_tools(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    assert await counted(session, "add") == 1
    page = await session.request("resources/read", {"uri": "shop://cart"})
    assert page.result["contents"][0]["text"] == "2"
    prompt = await session.request("prompts/get", {"name": "advertise"})
    assert prompt.result["messages"][0]["content"]["text"] == "kind 3"
    ref = {"type": "ref/prompt", "name": "advertise"}
    completion = await session.request("completion/complete", {"ref": ref, "argument": {"name": "tone", "value": "x"}})
    assert completion.result["completion"]["values"] == ["x4"]
    assert await counted(session) == 4
    for shelf, text in (("a", "a"), ("b", "a,b")):
        read = await session.request("resources/read", {"uri": f"shop://shelf/{shelf}"})
        assert read.result["contents"][0]["text"] == text


@virtual_time
async def test_what_a_function_depends_on_sees_the_state(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    await session.call("add", {"amount": 7})
    assert await counted(session, "depend") == 7


@virtual_time
async def test_the_state_is_no_argument_of_a_tool(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    tools = {tool["name"]: tool["inputSchema"] for tool in (await session.request("tools/list")).result["tools"]}
    assert list(tools["add"]["properties"]) == ["amount"]
    assert tools["look"].get("properties", {}) == {}
    assert tools["depend"].get("properties", {}) == {}


@virtual_time
async def test_sessions_share_nothing(shop: Shop) -> None:
    """A10, of state: also of the mutable things in it."""
    app = asgi(shop.server)
    first, second = await Legacy(app).connect(), await Legacy(app, V03).connect()
    await first.call("add", {"amount": 5})
    await first.request("resources/read", {"uri": "shop://shelf/mine"})
    assert await counted(second) == 0
    read = await second.request("resources/read", {"uri": "shop://shelf/other"})
    assert read.result["contents"][0]["text"] == "other"
    assert first.id != second.id


# In what order


@virtual_time
async def test_calls_that_take_the_state_run_one_after_the_other_in_the_order_they_came(shop: Shop) -> None:
    """Scenario 7."""
    session = await Legacy(asgi(shop.server)).connect()
    began = asyncio.get_running_loop().time()
    calls = [session.begin("add_slowly", {"seconds": 1, "name": str(number)}) for number in range(5)]
    answers = await ends(calls)
    assert [answer.text for answer in answers] == ["1", "2", "3", "4", "5"]
    assert (shop.ran, shop.most) == (["0", "1", "2", "3", "4"], 1)
    assert asyncio.get_running_loop().time() - began == pytest.approx(5)


@virtual_time
async def test_a_queue_goes_on_after_failures_and_crashes(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    tools = ["add_slowly", "add_and_crash", "add_and_refuse", "add_and_say_nonsense", "add"]
    answers = await ends([session.begin(tool, {"seconds": 1} if tool == "add_slowly" else {}) for tool in tools])
    assert [("error" in answer.message) for answer in answers] == [False, True, False, True, False]
    assert answers[-1].text == "3"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("ping", None),
        ("tools/list", None),
        ("prompts/list", None),
        ("resources/read", {"uri": "shop://prices"}),
        ("tools/call", {"name": "echo", "arguments": {"text": "x"}}),
        ("tools/call", {"name": "nothing"}),
        ("logging/setLevel", {"level": "error"}),
    ],
)
@virtual_time
async def test_what_takes_no_state_never_waits(shop: Shop, method: str, params: dict[str, Any] | None) -> None:
    """Scenario 6: a session is never blocked by its calls (A20)."""
    session = await Legacy(asgi(shop.server)).connect()
    slow = session.begin("add_slowly", {"seconds": 2})
    began = asyncio.get_running_loop().time()
    answer = await session.request(method, params)
    assert answer.status in {200, 400}
    assert asyncio.get_running_loop().time() - began < 0.1
    assert not slow.ended
    assert (await slow.end()).text == "1"


@virtual_time
async def test_prompts_and_resources_that_take_the_state_stand_in_the_same_queue(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    slow = session.begin("add_slowly", {"seconds": 1})
    prompt = session.start(session.make("prompts/get", {"name": "advertise"}))
    page = session.start(session.make("resources/read", {"uri": "shop://cart"}))
    assert (await prompt.end()).result["messages"][0]["content"]["text"] == "kind 2"
    assert (await page.end()).result["contents"][0]["text"] == "3"
    assert (await slow.end()).text == "1"


@virtual_time
async def test_two_sessions_do_not_wait_for_each_other(shop: Shop) -> None:
    app = asgi(shop.server)
    sessions = [await Legacy(app).connect() for _ in range(3)]
    began = asyncio.get_running_loop().time()
    answers = await ends([session.begin("add_slowly", {"seconds": 1}) for session in sessions])
    assert [answer.text for answer in answers] == ["1", "1", "1"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(1)


# Snapshots


@virtual_time
async def test_what_a_call_on_a_snapshot_did_is_for_itself(shop: Shop) -> None:
    """Scenario 5, with state by declaration: `snapshot=True`."""
    session = await Legacy(asgi(shop.server)).connect()
    await session.call("add")
    answer = await session.call("watch", {"seconds": 1}, token="t")
    assert (answer.is_stream, answer.text) == (True, "1")
    assert await counted(session) == 1


@pytest.mark.parametrize("token", [None, "t"])
@virtual_time
async def test_a_call_on_a_snapshot_runs_beside_one_whose_turn_it_is(shop: Shop, token: str | None) -> None:
    """Scenario 6: at once, on what was there before that one ended; however its answer travels."""
    session = await Legacy(asgi(shop.server)).connect()
    await session.call("add")
    began = asyncio.get_running_loop().time()
    slow = session.begin("add_slowly", {"seconds": 2})
    watching = session.begin("watch", {"seconds": 1}, token=token)
    answer = await watching.end()
    assert (answer.text, answer.is_stream) == ("1", token is not None)
    assert asyncio.get_running_loop().time() - began == pytest.approx(1)
    assert (await slow.end()).text == "2"
    assert asyncio.get_running_loop().time() - began == pytest.approx(2)
    assert await counted(session) == 2


@virtual_time
async def test_many_snapshots_at_once_see_the_same(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server, limits=Limits(session_max_pending=1))).connect()
    await session.call("add")
    answers = await asyncio.gather(*(session.call("watch", {"seconds": 1}, token=number) for number in range(20)))
    assert {answer.text for answer in answers} == {"1"}


@pytest.mark.parametrize(("token", "accept"), [(None, None), ("t", None), ("t", "application/json"), (None, "text/event-stream")])
@virtual_time
async def test_how_the_answer_travels_does_not_decide_what_is_kept(shop: Shop, token: str | None, accept: str | None) -> None:
    """DESIGN section 4; scenario 5 holds of snapshots only."""
    session = await Legacy(asgi(shop.server)).connect()
    session.client.headers = {} if accept is None else {"accept": accept}
    for number in (1, 2):
        assert (await session.call("add_aloud", token=token)).text == str(number)
    assert await counted(session) == 2


# Where it comes from


@virtual_time
async def test_a_factory_sees_who_the_session_is_for() -> None:
    """A33: once per session, at initialize."""
    hellos = []

    def begin(hello: Any) -> Cart:
        hellos.append(hello)
        return Cart(len(hellos) * 10)

    shop = Shop(state=begin)
    app = asgi(shop.server, options={"region": "eu"})
    first = await Legacy(app, V03).connect(capabilities={"roots": {}}, params={"x-more": 1})
    second = await Legacy(app).connect()
    for _ in range(2):
        await first.call("echo", {"text": "x"})
    assert (await counted(first), await counted(second)) == (10, 20)
    assert [hello.session_id for hello in hellos] == [first.id, second.id]
    hello = hellos[0]
    assert (hello.version, hello.client_info.name, hello.capabilities, hello.options) == (V03, "tester", {"roots": {}}, {"region": "eu"})
    assert hello.params["x-more"] == 1


@pytest.mark.parametrize("kind", ["raises", "unencodable", "wrong type"])
@virtual_time
async def test_a_state_that_can_not_begin_is_that_clients_error_and_no_session(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """initialize crash: -32603 at 200, no session, nothing of it on the wire."""
    broken = [True]

    def begin() -> Cart:
        if not broken[0]:
            return Cart()
        if kind == "raises":
            raise ValueError("password=hunter2")
        return Cart(items=[object()]) if kind == "unencodable" else {"count": "hunter2"}  # type: ignore[list-item, return-value]

    shop = Shop(state=begin)
    client = Legacy(asgi(shop.server, limits=Limits(max_sessions=1)))
    for _ in range(3):
        answer = await client.try_initialize(request_id="i")
        assert (answer.status, answer.message["id"], answer.error["code"]) == (200, "i", -32603)
        assert "mcp-session-id" not in answer.headers
        assert b"hunter2" not in answer.body
    assert caplog.records
    assert shop.over == []
    broken[0] = False
    assert await counted(await client.connect(), "add") == 1


@virtual_time
async def test_a_state_that_can_no_longer_be_kept_is_that_calls_error() -> None:
    """SA07, of state: an author's mistake costs its own call, and the session goes on with what it had."""
    server = Server("shop", state=Cart)

    @server.tool
    async def spoil(cart: Cart) -> str:
        cart.items.append(object())  # type: ignore[arg-type]
        return "spoilt"

    @server.tool
    async def add(cart: Cart) -> int:
        cart.count += 1
        return cart.count

    session = await Legacy(asgi(server)).connect()
    await session.call("add")
    answer = await session.call("spoil")
    assert answer.error["code"] == -32603
    assert (await session.call("add")).text == "2"


class Picky(Struct):
    """A state that looks at itself."""

    count: int = 0

    def __post_init__(self) -> None:
        check(self)


def check(picky: Picky) -> None:
    """Be content, unless a test is not."""


@pytest.mark.parametrize("fault", [AssertionError, RuntimeError, KeyError], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("when", ["left", "taken"])
@virtual_time
async def test_whatever_the_states_type_raises_is_that_calls_error(
    when: str, fault: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SA07, of state: as a call leaves it, and as the next one takes it."""
    server = Server("shop", state=Picky)

    @server.tool
    async def add(picky: Picky) -> int:
        picky.count += 1
        return picky.count

    session = await Legacy(asgi(server)).connect()
    kept = 1 if when == "left" else 2
    assert [await counted(session, "add") for _ in range(kept)] == list(range(1, kept + 1))

    def complain(picky: Picky) -> None:
        if picky.count > 1:
            raise fault("password=hunter2")

    monkeypatch.setattr(sys.modules[__name__], "check", complain)
    for _ in range(2):
        caplog.clear()
        error = (await session.call("add")).error
        assert (error["code"], "ended" in error["message"], "hunter2" in error["message"]) == (-32603, False, False)
        found = re.search(r"\(id (\w+)\)", error["message"])
        assert found is not None
        assert [found[1] in record.getMessage() for record in caplog.records] == [True]
    monkeypatch.undo()
    assert await counted(session, "add") == kept + 1


@pytest.mark.parametrize("in_session", [True, False])
@virtual_time
async def test_a_call_that_did_not_declare_the_state_can_not_replace_it(
    shop: Shop, in_session: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost without a word in a session, it must not seem to work without one."""

    @shop.server.tool
    async def assign(ctx: Context) -> str:
        ctx.state = Cart(9)
        return "assigned"

    @shop.server.tool
    async def assign_declared(cart: Cart, ctx: Context) -> str:
        ctx.state = Cart(cart.count + 7)
        return "assigned"

    app = asgi(shop.server)
    session = await Legacy(app).connect()
    caller: Session | Client = session if in_session else Client(app)
    assert (await caller.call("assign")).error["code"] == -32603
    assert "declare it" in caplog.text
    assert await counted(session) == 0
    assert (await caller.call("assign_declared")).text == "assigned"
    assert await counted(session) == (7 if in_session else 0)


def test_a_state_that_could_never_be_kept_is_refused_when_the_server_is_made() -> None:
    class Socket:
        pass

    with pytest.raises(RegistrationError, match="Socket"):
        Server("shop", state=Socket)
    with pytest.raises(RegistrationError, match="snapshot"):

        @Server("shop").tool(snapshot=True)
        async def tool() -> str:
            return ""
