"""`Server`: its options, its decorators, and what becomes of a crash."""

import logging
import re
from typing import Any

import pytest
from asgi_driver import make_meta
from served import reply

from callboard import Context, Fail, NotFound, Reason, RegistrationError, Server, types
from callboard.core.outcome import CacheHint
from callboard.server.component import Facts, Tool
from callboard.stores.memory import MemoryStore
from callboard.tasks import MemoryTasks


async def echo(text: str) -> str:
    return text


def test_a_server_says_who_it_is() -> None:
    # IC-01
    server = Server(
        "desk",
        version="1.2",
        title="The desk",
        description="Where calls come in.",
        website="https://desk.example",
        icons=[types.Icon(src="https://desk.example/i.png")],
    )
    assert server.name == "desk"
    assert (server.info.version, server.info.title, server.info.website_url) == ("1.2", "The desk", "https://desk.example")
    assert Server("bare").info.title is types.UNSET


def test_every_decorator_works_with_and_without_parentheses() -> None:
    server = Server("desk")

    @server.tool
    async def a() -> None: ...

    @server.tool()
    async def b() -> None: ...

    @server.prompt
    def c() -> str:
        return ""

    @server.prompt()
    def d() -> str:
        return ""

    assert list(server.registry.tools) == ["a", "b"]
    assert list(server.registry.prompts) == ["c", "d"]


def test_one_function_may_be_several_components() -> None:
    server = Server("desk")
    server.tool(echo)
    server.tool(name="again")(echo)
    server.prompt(echo)
    server.add(Tool(echo, facts=Facts(name="third")))
    assert list(server.registry.tools) == ["echo", "again", "third"]


def test_a_uri_with_variables_is_a_template() -> None:
    server = Server("desk")

    @server.resource("a://{text}")
    @server.resource("a://static")
    def read(text: str = "") -> str:
        return text

    assert list(server.registry.resources) == ["a://static"]
    assert list(server.registry.templates) == ["a://{text}"]


@pytest.mark.parametrize(
    "options",
    [
        {"completion_cap": 0},
        {"completion_cap": 101},
        {"page_size": 0},
        {"threads": 0},
        {"icons": 5},
        {"icons": types.Icon(src="https://desk.example/i.png")},
        {"tasks": True},
        {"tasks": MemoryTasks},
        {"store": {}},
        {"store": MemoryStore},
        {"store": print},
    ],
)
def test_an_option_that_can_not_work_is_refused_with_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError, match=next(iter(options))):
        Server("desk", **options)


@pytest.mark.parametrize(("ttl_ms", "scope"), [(-1, "public"), (0, "everyone")])
def test_a_caching_hint_that_is_none_is_refused(ttl_ms: int, scope: Any) -> None:
    # CA-01: ttlMs >= 0, cacheScope public or private
    with pytest.raises((RegistrationError, ValueError), match=r"cache|ttl_ms|scope"):
        Server("desk", cache=CacheHint(ttl_ms, scope))


async def test_components_come_and_go_while_it_serves() -> None:
    server = Server("desk")
    server.add(echo)
    assert [tool["name"] for tool in (await reply(server, "tools/list"))["tools"]] == ["echo"]
    server.remove("tools", "echo")
    assert (await reply(server, "tools/list"))["tools"] == []
    server.add(echo)
    assert (await reply(server, "tools/call", {"name": "echo", "arguments": {"text": "x"}}))["content"][0]["text"] == "x"


async def test_what_a_server_lists_depends_on_nothing_but_itself() -> None:
    # TL-02, RS-02, PM-02, MT-06, JR-21
    server = Server("desk")
    server.add(echo)
    first = await reply(server, "tools/list", meta=make_meta({"elicitation": {}}, clientInfo={"name": "a", "version": "1"}))
    await reply(server, "tools/call", {"name": "echo", "arguments": {"text": "x"}})
    assert await reply(server, "tools/list", meta=make_meta(clientInfo={"name": "b", "version": "2"})) == first


# Crashes


def test_what_a_function_raises_stays_on_this_side(caplog: pytest.LogCaptureFixture) -> None:
    # SA35, LG-06
    server = Server("desk")
    fail = server.crash("tools/call", KeyError("password=hunter2"))
    assert fail.reason is Reason.INTERNAL
    assert "hunter2" not in fail.text
    error_id = re.search(r"id ([0-9a-f]{8})", fail.text)
    assert error_id is not None
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert error_id[1] in record.getMessage()
    assert "tools/call" in record.getMessage()
    assert "hunter2" in caplog.text


def test_error_ids_differ() -> None:
    server = Server("desk")
    assert server.crash("tools/call", ValueError()).text != server.crash("tools/call", ValueError()).text


def test_masking_can_be_turned_off() -> None:
    # SA35
    fail = Server("desk", mask_errors=False).crash("tools/call", ValueError("no such table"))
    assert "ValueError: no such table" in fail.text


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_a_text_is_an_error_all_the_same() -> None:
    # SA35
    for mask in (True, False):
        assert Server("desk", mask_errors=mask).crash("tools/call", UnspeakableError()).reason is Reason.INTERNAL


@pytest.mark.parametrize("fail", [NotFound("a://b"), Fail(Reason.INVALID_PARAMS, "No."), Fail.custom(5, "Five.")])
def test_a_failure_that_is_raised_is_what_the_client_gets(fail: Fail, caplog: pytest.LogCaptureFixture) -> None:
    # EC-12
    server = Server("desk")
    assert server.crash("tools/call", fail) is fail
    assert server.crash("tools/call", ExceptionGroup("", [ExceptionGroup("", [fail])])) is fail
    assert not caplog.records


def test_several_failures_at_once_are_a_crash() -> None:
    fail = Server("desk").crash("tools/call", ExceptionGroup("both", [NotFound(), NotFound()]))
    assert fail.reason is Reason.INTERNAL


async def test_a_function_may_refuse_by_raising() -> None:
    # EC-06, MT-07
    server = Server("desk")

    @server.tool
    async def ship(ctx: Context) -> str:
        if "sampling" not in ctx.client_capabilities:
            raise Fail(Reason.MISSING_CAPABILITY, data={"requiredCapabilities": {"sampling": {}}})
        return "shipped"

    with pytest.raises(Fail) as caught:
        await reply(server, "tools/call", {"name": "ship"})
    assert caught.value.data == {"requiredCapabilities": {"sampling": {}}}


# Registration: an error names the culprit and the way out


UNTYPED: Any = Server("desk")


@pytest.mark.parametrize(
    ("use", "argument", "way_out"),
    [
        pytest.param(UNTYPED.resource, echo, r"resource\(", id="resource without parentheses"),
        pytest.param(UNTYPED.tool, "name", "name=", id="tool with a name in first place"),
        pytest.param(UNTYPED.prompt, "name", "name=", id="prompt with a name in first place"),
        pytest.param(UNTYPED.add, None, "add", id="nothing added"),
    ],
)
def test_what_is_used_the_wrong_way_says_how(use: Any, argument: Any, way_out: str) -> None:
    with pytest.raises(RegistrationError, match=way_out):
        use(argument)


@pytest.mark.parametrize("uri", ["", "no uri", "relative/path", "/absolute/path", "://x"])
def test_a_resource_has_an_absolute_uri(uri: str) -> None:
    # RS-07
    def read(x: str = "") -> str:
        return x

    with pytest.raises(RegistrationError, match="URI"):
        Server("desk").resource(uri)(read)
