"""What goes wrong, and what a hostile client sends: nothing of it reaches a client, and in the log it is what it is."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from asgi_driver import JSON, Client, make_headers, make_meta, make_request
from hypothesis import given, settings
from hypothesis import strategies as st
from legacy_driver import V11, Legacy, Session
from log_lines import FORGED, NASTY, Taken, watch_logs
from rounds import EVERYTHING, Rounds
from shapes import respond

from callboard import Context, Depends, Server, asgi
from callboard.handler import Channel, Handler

SECRET = "tr0ub4dor-and-3"


class MuteError(Exception):
    """Can't say what it is."""

    def __str__(self) -> str:
        raise SystemExit(SECRET)


class StrangeError(BaseException):
    """Not even an Exception."""


class Model(pydantic.BaseModel):
    """What validates."""

    n: int


class Cart(msgspec.Struct):
    """A state."""


def raise_msgspec() -> None:
    """An error whose text is a library's."""
    msgspec.convert({"n": SECRET}, dict[str, int])


def raise_pydantic() -> None:
    """An error whose text has the value."""
    Model(n=SECRET)  # type: ignore[arg-type] # on purpose


def nest(depth: int, error: Exception) -> Exception:
    """Groups in groups."""
    for _ in range(depth):
        error = ExceptionGroup(SECRET, [error])
    return error


def thrower(error: BaseException) -> Callable[[], None]:
    """What raises."""

    def throw() -> None:
        raise error

    return throw


RAISES: dict[str, Callable[[], None]] = {
    "msgspec": raise_msgspec,
    "pydantic": raise_pydantic,
    "value": thrower(ValueError(SECRET)),
    "many lines": thrower(ValueError(f"{SECRET}\n{FORGED}\n" * 20_000)),
    "control characters": thrower(ValueError(NASTY + SECRET)),
    "exit": thrower(SystemExit(SECRET)),
    "not an exception": thrower(StrangeError(SECRET)),
    "group": thrower(ExceptionGroup(SECRET, [ValueError(SECRET), KeyError(SECRET)])),
    "deep group": thrower(nest(3_000, ValueError(SECRET))),
    "mute": thrower(MuteError(SECRET)),
    "lookup": thrower(KeyError(SECRET)),
    "recursion": thrower(RecursionError(SECRET)),
    "unicode": thrower(UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET)),
}


def check_masked(answer: Any, taken: Taken) -> None:
    """Nothing of an exception is in what the client got, and its id leads to one record with the traceback."""
    text = json.dumps(answer)
    assert "tr0ub4dor" not in text
    assert "Traceback" not in text
    assert "Error" not in text.replace("Internal error", "")
    error_id = text.partition("(id ")[2].partition(")")[0]
    assert error_id
    crashed = [record for record in taken.of("callboard") if error_id in record["message"]]
    assert len(crashed) == 1
    assert crashed[0]["error"]["traceback"]


async def call_both(server: Server, method: str, params: JSON) -> list[JSON]:
    """The answers of both eras."""
    modern = await Client(asgi(server)).request(method, params)
    session = await Legacy(asgi(server)).connect(capabilities=EVERYTHING)
    return [modern.message, (await session.request(method, params)).message]


@pytest.mark.parametrize("kind", RAISES)
async def test_every_exception_is_masked_in_a_tool(kind: str) -> None:
    # SA35
    server = Server("s")

    @server.tool
    async def tool() -> str:
        RAISES[kind]()
        return ""

    @server.prompt
    async def prompt() -> str:
        RAISES[kind]()
        return ""

    for method, name in (("tools/call", "tool"), ("prompts/get", "prompt")):
        with watch_logs() as taken:
            answers = await call_both(server, method, {"name": name})
        for answer in answers:
            check_masked(answer, taken)


@pytest.mark.parametrize("kind", RAISES)
async def test_what_is_not_masked_is_one_bounded_line_all_the_same(kind: str) -> None:
    server = Server("s", mask_errors=False)

    @server.tool
    async def tool() -> str:
        RAISES[kind]()
        return ""

    with watch_logs():
        for answer in await call_both(server, "tools/call", {"name": "tool"}):
            text = answer["error"]["message"]
            assert text.isprintable()
            assert len(text) < 3_000
            assert FORGED not in text.split("\n")


def in_tool(server: Server) -> None:
    server.tool(explode, name="t")


def on_a_thread(server: Server) -> None:
    @server.tool
    def t() -> str:
        raise ValueError(SECRET)


def in_a_dependency(server: Server) -> None:
    @server.tool
    async def t(x: str = Depends(explode)) -> str:
        return x


def in_a_teardown(server: Server) -> None:
    async def opened() -> AsyncIterator[str]:
        yield ""
        raise ValueError(SECRET)

    @server.tool
    async def t(x: str = Depends(opened)) -> str:
        return x


def in_the_result(server: Server) -> None:
    @server.tool
    async def t() -> int:
        return SECRET  # type: ignore[return-value] # on purpose


def in_the_encoding(server: Server) -> None:
    @server.tool
    async def t() -> Any:
        return {"x": type(SECRET, (), {})()}


async def explode() -> str:
    """Raise."""
    raise ValueError(SECRET)


@pytest.mark.parametrize("place", [in_tool, on_a_thread, in_a_dependency, in_a_teardown, in_the_result, in_the_encoding])
async def test_errors_around_a_tool_are_masked(place: Callable[[Server], None]) -> None:
    # SA35
    server = Server("s")
    place(server)
    with watch_logs() as taken:
        answers = await call_both(server, "tools/call", {"name": "t", "arguments": {}})
    for answer in answers:
        check_masked(answer, taken)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "a://x"}),
        ("resources/read", {"uri": "b://y"}),
        ("prompts/get", {"name": "p"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "q"}, "argument": {"name": "x", "value": ""}}),
    ],
)
async def test_errors_of_other_components_are_masked(method: str, params: JSON) -> None:
    # SA35
    server = Server("s")
    server.resource("a://x")(explode)
    server.prompt(explode, name="p")

    @server.resource("b://{y}")
    async def template(y: str) -> str:
        raise ValueError(SECRET)

    @server.prompt
    async def q(x: str) -> str:
        return x

    @server.complete("q", "x")
    async def complete(value: str) -> list[str]:
        raise ValueError(SECRET)

    with watch_logs() as taken:
        answers = await call_both(server, method, params)
    for answer in answers:
        check_masked(answer, taken)


async def test_errors_of_middleware_lifespan_options_and_state_are_masked() -> None:
    # SA35
    async def layer(_request: Any, _context: Any, _service: Any) -> Any:
        raise ValueError(SECRET)

    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[dict[str, Any]]:
        raise ValueError(SECRET)
        yield {}

    def options(_caller: Any) -> Any:
        raise ValueError(SECRET)

    def principal(_scope: Any) -> str:
        raise ValueError(SECRET)

    def begin(_hello: Any) -> Cart:
        raise ValueError(SECRET)

    apps = {
        "middleware": asgi(Server("s", middleware=[lambda service: lambda request, context: layer(request, context, service)])),
        "lifespan": asgi(Server("s", lifespan=lifespan)),
        "options": asgi(Server("s"), options=options),
        "principal": asgi(Server("s"), principal=principal),
        "state": asgi(Server("s", state=begin)),
        "session id": asgi(Server("s"), session_id=lambda: 1 / 0),  # type: ignore[arg-type, return-value] # on purpose
    }
    for name, app in apps.items():
        with watch_logs() as taken:
            answers = [await Client(app).request("tools/list"), await Legacy(app).try_initialize()]
            for answer in answers:
                assert "tr0ub4dor" not in str(answer.body), name
                assert "Error" not in str(answer.body).replace("Internal error", ""), name
        assert any(record.get("error") for record in taken.of("callboard")), name


async def test_errors_of_hooks_providers_and_predicates_are_masked() -> None:
    # SA35
    async def hook(*_: Any) -> None:
        raise ValueError(SECRET)

    def visible(_ctx: Context) -> bool:
        raise ValueError(SECRET)

    async def provide(_ctx: Context) -> list[Any]:
        raise ValueError(SECRET)

    server = Server("s", set_log_level=hook, subscribe=hook, unsubscribe=hook, terminate=hook)
    server.provide(provide)
    server.tool(explode, name="hidden", visible=visible)
    server.resource("a://x")(explode)
    app = asgi(server)
    with watch_logs() as taken:
        session = await Legacy(app).connect(capabilities=EVERYTHING)
        for method, params in (
            ("logging/setLevel", {"level": "debug"}),
            ("resources/subscribe", {"uri": "a://x"}),
            ("resources/unsubscribe", {"uri": "a://x"}),
        ):
            check_masked((await session.request(method, params)).message, taken)
        for method, params in (("tools/list", {}), ("tools/call", {"name": "hidden"})):
            for answer in (await session.request(method, params), await Client(app).request(method, params)):
                assert "tr0ub4dor" not in str(answer.body)
        await session.delete()
        await app.aclose()
    messages = " ".join(record["message"] for record in taken.of("callboard"))
    for said in ("visible= of", "The provider", "The terminate hook failed."):
        assert said in messages


async def test_errors_of_a_task_are_masked() -> None:
    # SA35
    server = Server("s")

    @server.tool(task="always")
    async def work() -> str:
        raise ValueError(SECRET)

    client, meta = Client(asgi(server)), make_meta({"extensions": {"io.modelcontextprotocol/tasks": {}}})
    with watch_logs() as taken:
        task = (await client.call("work", {}, meta=meta)).result["taskId"]
        answer: Any = None
        for _ in range(50):
            answer = (await client.request("tasks/get", {"taskId": task}, meta=meta)).message
            if answer["result"]["status"] == "failed":
                break
            await asyncio.sleep(0.01)
        check_masked(answer, taken)
    error_id = json.dumps(answer).partition("(id ")[2].partition(")")[0]
    (line,) = [line for line in taken.requests if line.get("tool") == "work"]
    assert line["request"] == error_id  # the task goes on under the id of the call


class Broken(Handler[Any]):
    """Fails wherever it can."""

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
        raise ValueError(SECRET)

    async def list_tools(self, ctx: Channel, state: Any) -> Any:
        raise ValueError(SECRET)


@pytest.mark.parametrize(("method", "params"), [("tools/call", {"name": "x"}), ("tools/list", {})])
async def test_errors_of_a_handler_are_masked(method: str, params: JSON) -> None:
    # SA35
    app = asgi(Broken)
    with watch_logs() as taken:
        session = await Legacy(app).connect(capabilities=EVERYTHING)
        for answer in ((await Client(app).request(method, params)).message, (await session.request(method, params)).message):
            check_masked(answer, taken)


# Hostile clients

HOSTILE = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.just(NASTY.replace("\ud800\udfff", "")))


def make_victim() -> Server:
    """Where a client can say something everywhere."""
    server = Server("s")

    @server.tool
    async def echo(text: str = "") -> str:
        raise ValueError(text)

    @server.tool
    async def ask(ctx: Context, text: str = "") -> str:
        return (await ctx.elicit(text or "?", str)).value

    @server.resource("a://{x}")
    async def read(x: str) -> str:
        raise ValueError(x)

    @server.prompt
    async def prompt(x: str) -> str:
        raise ValueError(x)

    @server.complete("prompt", "x")
    async def complete(value: str) -> list[str]:
        raise ValueError(value)

    return server


def attacks(text: str) -> list[tuple[str, JSON]]:
    """Everywhere that a text can be put."""
    reference = {"type": "ref/prompt", "name": text}
    return [
        (text, {}),
        ("tools/call", {"name": text}),
        ("tools/call", {"name": "echo", "arguments": {"text": text}}),
        ("tools/call", {"name": "echo", "arguments": {text: text}}),
        ("tools/call", {"name": "ask", "requestState": text, "inputResponses": {text: {"action": "accept"}}}),
        ("resources/read", {"uri": text}),
        ("resources/read", {"uri": f"a://{text}"}),
        ("resources/subscribe", {"uri": text}),
        ("prompts/get", {"name": text}),
        ("prompts/get", {"name": "prompt", "arguments": {"x": text}}),
        ("completion/complete", {"ref": reference, "argument": {"name": text, "value": text}}),
        ("completion/complete", {"ref": {**reference, "name": "prompt"}, "argument": {"name": "x", "value": text}}),
        ("tools/list", {"cursor": text}),
        ("tasks/get", {"taskId": text}),
        ("logging/setLevel", {"level": text}),
        ("subscriptions/listen", {"notifications": text}),
    ]


def as_header(text: str) -> bytes:
    """A text as it can come in a header, whatever the server before us lets through."""
    return text.encode("utf-8", "surrogatepass").replace(b"\n", b"\x0b").replace(b"\r", b"\x0b")


async def throw(client: Client, body: bytes, headers: Any, **more: Any) -> None:
    """Send something and let pass whatever comes."""
    exchange = client.start(body, headers, **more)
    await asyncio.wait([exchange.task], timeout=5)
    exchange.gate.set()
    exchange.disconnect()
    await exchange.task


async def attack_modern(text: str) -> None:
    """Send a text wherever the current protocol has room for it."""
    client = Client(asgi(make_victim()))
    for method, params in attacks(text):
        meta = make_meta(clientInfo={"name": text, "version": text}, traceparent=text, progressToken=text)
        message = make_request(method, params, request_id=text, meta=meta)
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in make_headers(message).items()]
        body = json.dumps(message).encode()
        await throw(client, body, [*headers, (b"x-request-id", as_header(text)), (b"traceparent", as_header(text))])
        await throw(client, body, [(name, as_header(text) if name.startswith(b"mcp-") else value) for name, value in headers])
    for name in (b"host", b"origin", b"content-type", b"accept"):
        await throw(client, b"{}", [(b"host", b"localhost"), (b"content-type", b"application/json"), (name, as_header(text))])
    await throw(client, b"{}", [(b"host", b"localhost")], verb=text or "GET", path="/mcp")
    await throw(client, text.encode("utf-8", "surrogatepass"), make_headers(make_request("ping")))


async def attack_session(session: Session, text: str) -> None:
    """Send a text wherever a session has room for it."""
    for method, params in attacks(text):
        message = session.make(method, {**params, "_meta": {"progressToken": text, "traceparent": text}}, request_id=text)
        exchange = session.start(message, **{"x-request-id": "".join(map(chr, as_header(text)))})
        await asyncio.wait([exchange.task], timeout=0.05)
        await session.notify("notifications/cancelled", {"requestId": text, "reason": text})
        await exchange.drop()
    await session.notify(text or "x", {text: text})
    await session.post({"jsonrpc": "2.0", "id": text, "error": {"code": 1, "message": text}})


@settings(max_examples=15, deadline=None)
@given(HOSTILE)
def test_nothing_that_a_client_sends_forges_a_line_on_the_current_protocol(text: str) -> None:
    # SA13
    with watch_logs() as taken:
        asyncio.run(attack_modern(text))
    assert taken.requests


@settings(max_examples=8, deadline=None)
@given(HOSTILE)
def test_nothing_that_a_client_sends_forges_a_line_in_a_session(text: str) -> None:
    # SA13
    async def attack() -> None:
        app = asgi(make_victim())
        params = {"clientInfo": {"name": text, "version": text}, "capabilities": {text: {}}}
        session = Session(Legacy(app), (await Legacy(app).try_initialize(params=params)).headers["mcp-session-id"], V11)
        await attack_session(session, text)
        session.id = "".join(map(chr, as_header(text)))
        await session.post(session.make("tools/list"))
        await app.aclose()

    with watch_logs() as taken:
        asyncio.run(attack())
    assert taken.requests


async def test_a_hostile_answer_to_a_question_is_no_line_of_its_own() -> None:
    def answer(_key: str, _request: JSON) -> JSON:
        return {"action": "accept", "content": {"value": NASTY.replace("\ud800\udfff", ""), FORGED: 1}}

    with watch_logs() as taken:
        await Rounds(asgi(make_victim()), answer).call("ask")
        await Rounds(asgi(make_victim()), respond).call("ask", {"text": NASTY.replace("\ud800\udfff", "")})
    assert taken.requests


async def test_a_request_is_one_record_whatever_it_says() -> None:
    text = NASTY.replace("\ud800\udfff", "")
    for method, params in attacks(text):
        with watch_logs(logging.INFO) as taken:
            message = make_request(method, params)
            headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in make_headers(message).items()]
            await Client(asgi(make_victim())).send(json.dumps(message).encode(), headers)
        assert len(taken.requests) == 1, method


def take_all(a: int, b: Literal["x", "y"], c: list[int], d: dict[str, int], e: Cart, f: bool) -> str:
    """Arguments of every kind, by msgspec."""
    return ""


def take_model(a: Model, b: list[Model], c: pydantic.PositiveInt, d: pydantic.HttpUrl | int) -> str:
    """Arguments of every kind, by pydantic."""
    return ""


def take_raw(arguments: dict[str, Any]) -> str:
    """Arguments by a schema."""
    return ""


RAW = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}, "c": {"const": 1}, "d": {"pattern": "^x$"}}}
WRONG: list[Any] = [SECRET, [SECRET], {"n": SECRET}, {"x": [SECRET]}, [{"n": SECRET}], SECRET * 500]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
async def test_values_of_arguments_are_never_told_nor_logged_below_debug(wrong: Any) -> None:
    # SA35, TL-13
    server = Server("s")
    server.tool(take_all)
    server.tool(take_model)
    server.tool(take_raw, input_schema=RAW)
    for tool in ("take_all", "take_model", "take_raw"):
        with watch_logs(logging.INFO) as taken:
            answers = await call_both(server, "tools/call", {"name": tool, "arguments": dict.fromkeys("abcdef", wrong)})
        for answer in answers:
            assert answer["result"]["isError"] is True
            assert "tr0ub4dor" not in json.dumps(answer)
        assert "tr0ub4dor" not in taken.text
