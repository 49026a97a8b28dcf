"""What a function needs and the caller doesn't give."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Optional

import msgspec
import pytest
from served import make_context, make_mount, reply

from callboard import Context, Depends, RegistrationError, Server, ToolError


def make_server(*tools: Callable[..., Any]) -> Server:
    server = Server("desk")
    for tool in tools:
        server.tool(tool)
    return server


async def call(tool: Callable[..., Any], **arguments: Any) -> str:
    """Text that a tool gives."""
    found = await reply(make_server(tool), "tools/call", {"name": tool.__name__, "arguments": arguments})
    text: str = found["content"][0]["text"]
    return text


def schema(tool: Callable[..., Any]) -> dict[str, Any]:
    """Properties of its advertised input schema."""
    definition = msgspec.json.decode(make_server(tool).registry.tools[tool.__name__].definition)
    found: dict[str, Any] = definition["inputSchema"].get("properties", {})
    return found


def plain() -> str:
    return "plain"


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "coroutine"


def generator() -> Iterator[str]:
    yield "generator"


async def async_generator() -> AsyncIterator[str]:
    yield "async generator"


class Settings:
    def __init__(self) -> None:
        self.text = "class"

    def __str__(self) -> str:
        return self.text


class Factory:
    def __call__(self) -> str:
        return "callable object"


@pytest.mark.parametrize(
    ("provider", "value"),
    [
        (plain, "plain"),
        (coroutine, "coroutine"),
        (generator, "generator"),
        (async_generator, "async generator"),
        (Factory(), "callable object"),
        (lambda: "lambda", "lambda"),
    ],
)
@pytest.mark.parametrize("sync", [False, True])
async def test_any_kind_of_function_provides(provider: Callable[..., Any], value: str, sync: bool) -> None:
    async def tool(text: str, got: str = Depends(provider)) -> str:
        return f"{text} {got}"

    def sync_tool(text: str, got: str = Depends(provider)) -> str:
        return f"{text} {got}"

    chosen: Callable[..., Any] = sync_tool if sync else tool
    assert await call(chosen, text="a") == f"a {value}"
    assert schema(chosen).keys() == {"text"}


async def test_the_context_and_others_are_provided_to_a_provider() -> None:
    # A50
    def user(ctx: Context) -> str:
        return ctx.method

    def greeting(who: str = Depends(user), ctx: "Context | None" = None) -> str:
        assert ctx is not None
        return f"hello {who}"

    async def tool(greet: str = Depends(greeting)) -> str:
        return greet

    assert await call(tool) == "hello tools/call"


async def test_one_value_serves_the_whole_call_and_no_other() -> None:
    made: list[object] = []

    def connect() -> object:
        made.append(object())
        return made[-1]

    def first(conn: object = Depends(connect)) -> object:
        return conn

    async def tool(a: object = Depends(first), b: object = Depends(connect), c: object = Depends(connect, use_cache=False)) -> str:
        return f"{a is b} {b is c}"

    server = make_server(tool)
    for _ in range(2):
        found = await reply(server, "tools/call", {"name": "tool"})
        assert found["content"][0]["text"] == "True False"
    assert len(made) == 4


async def test_what_comes_after_yield_runs_when_the_call_is_over_in_reverse() -> None:
    events: list[str] = []

    def first() -> Iterator[str]:
        events.append("open first")
        yield "1"
        events.append("close first")

    async def second(one: str = Depends(first)) -> AsyncIterator[str]:
        events.append("open second")
        yield one + "2"
        events.append("close second")

    async def tool(value: str = Depends(second)) -> str:
        events.append("call")
        return value

    assert await call(tool) == "12"
    assert events == ["open first", "open second", "call", "close second", "close first"]


@pytest.mark.parametrize("error", [ValueError("x"), ToolError("x")])
async def test_a_provider_sees_the_failure_and_cleans_up(error: Exception) -> None:
    seen: list[BaseException] = []

    def connect() -> Iterator[str]:
        try:
            yield "c"
        except Exception as caught:
            seen.append(caught)
            raise

    async def tool(conn: str = Depends(connect)) -> str:
        raise error

    server = make_server(tool)
    if isinstance(error, ToolError):
        assert (await reply(server, "tools/call", {"name": "tool"}))["isError"] is True
    else:
        with pytest.raises(ValueError, match="x"):
            await reply(server, "tools/call", {"name": "tool"})
    assert seen == [error]


async def test_a_cancelled_call_cleans_up() -> None:
    # CN-04, SA25
    closed = asyncio.Event()
    started = asyncio.Event()

    async def connect() -> AsyncIterator[str]:
        try:
            yield "c"
        finally:
            closed.set()

    async def tool(conn: str = Depends(connect)) -> str:
        started.set()
        await asyncio.Event().wait()
        return conn

    task = asyncio.ensure_future(reply(make_server(tool), "tools/call", {"name": "tool"}))
    async with asyncio.timeout(5):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await closed.wait()


async def test_a_provider_may_refuse_in_band() -> None:
    # TL-12
    def user() -> str:
        raise ToolError("Log in first.")

    async def tool(who: str = Depends(user)) -> str:
        return who

    found = await reply(make_server(tool), "tools/call", {"name": "tool"})
    assert found == {"content": [{"type": "text", "text": "Log in first."}], "isError": True}


async def test_a_blocking_provider_does_not_stop_the_loop() -> None:
    # A20: `def` means that it may block
    threads: list[int] = []

    def connect() -> str:
        threads.append(threading.get_ident())
        return "c"

    async def tool(conn: str = Depends(connect)) -> str:
        return conn

    assert await call(tool) == "c"
    assert threads != [threading.get_ident()]


async def test_prompts_resources_and_completions_have_them_too() -> None:
    server = Server("desk")

    @server.prompt
    def greet(who: str, got: str = Depends(plain)) -> str:
        return f"{who} {got}"

    @server.resource("a://{x}")
    async def read(x: str, got: str = Depends(coroutine)) -> str:
        return f"{x} {got}"

    @server.complete("greet", "who")
    def names(value: str, got: str = Depends(generator)) -> list[str]:
        return [value + got]

    assert (await reply(server, "prompts/get", {"name": "greet", "arguments": {"who": "a"}}))["messages"][0]["content"]["text"] == "a plain"
    assert (await reply(server, "resources/read", {"uri": "a://b"}))["contents"][0]["text"] == "b coroutine"
    params = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "a"}}
    assert (await reply(server, "completion/complete", params))["completion"]["values"] == ["agenerator"]


# Injection by annotation


async def generic(ctx: Context[int, str], text: str) -> str:  # type: ignore[type-arg] # from code with a generic context
    return f"{type(ctx).__name__} {text}"


async def optional(text: str, ctx: Optional[Context] = None) -> str:  # noqa: UP045
    return f"{type(ctx).__name__} {text}"


async def union(text: str, ctx: Context | None = None) -> str:
    return f"{type(ctx).__name__} {text}"


async def string(text: str, ctx: "Context") -> str:
    return f"{type(ctx).__name__} {text}"


async def annotated(text: str, ctx: Annotated[Context, "the request"]) -> str:
    return f"{type(ctx).__name__} {text}"


async def keyword_only(*, text: str, ctx: Context) -> str:
    return f"{type(ctx).__name__} {text}"


async def twice(a: Context, text: str, b: Context) -> str:
    assert a is b
    return f"{type(a).__name__} {text}"


@pytest.mark.parametrize("tool", [generic, optional, union, string, annotated, keyword_only, twice])
async def test_a_context_is_injected_whatever_its_annotation_looks_like(tool: Callable[..., Any]) -> None:
    # A50
    assert await call(tool, text="a") == "Context a"
    assert schema(tool).keys() == {"text"}


# Refused when it is registered


def test_a_circle_is_refused_with_its_way() -> None:
    def first(x: str = "") -> str:
        return x

    def second(x: str = Depends(first)) -> str:
        return x

    first.__defaults__ = (Depends(second),)

    async def tool(x: str = Depends(first)) -> str:
        return x

    with pytest.raises(RegistrationError, match=r"circle.*first.*second.*first"):
        make_server(tool)


def test_a_provider_that_needs_what_nobody_gives_is_refused() -> None:
    def provider(name: str) -> str:
        return name

    async def tool(x: str = Depends(provider)) -> str:
        return x

    with pytest.raises(RegistrationError, match=r"provider.*name"):
        make_server(tool)


async def test_a_class_provides_its_instances() -> None:
    async def tool(settings: Settings = Depends(Settings)) -> str:
        return str(settings)

    assert await call(tool) == "class"


async def test_contexts_of_requests_are_their_own() -> None:
    mount = make_mount()
    assert make_context(mount) is not make_context(mount)


async def test_what_a_cancelled_call_opened_on_a_thread_is_closed_all_the_same() -> None:
    # CN-04, SA25: the thread opens it after the call has gone
    entered, release, closed = threading.Event(), threading.Event(), threading.Event()

    def connect() -> Iterator[str]:
        entered.set()
        assert release.wait(10)
        yield "c"
        closed.set()

    async def tool(conn: str = Depends(connect)) -> str:
        return conn

    task = asyncio.ensure_future(reply(make_server(tool), "tools/call", {"name": "tool"}))
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, entered.wait, 10)
    task.cancel()
    await asyncio.wait([task], timeout=0.01)
    release.set()
    assert await loop.run_in_executor(None, closed.wait, 2)
    with pytest.raises(asyncio.CancelledError):
        await task
