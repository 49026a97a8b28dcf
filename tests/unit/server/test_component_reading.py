"""Compiled prompts, resources, templates and completions: what they say of themselves, and what becomes of what they return."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from oracles import mcp_types_validate
from served import ask, definition, refusal, reply

from callboard import NotFound, Reason, RegistrationError, Server, embed, image, text, types
from callboard.core.outcome import CacheHint

PNG = b"\x89PNG\r\n"


# Prompts


def test_a_prompt_says_of_itself_what_it_was_told() -> None:
    # PM-03, IC-01
    server = Server("desk")

    @server.prompt(title="Pack", icons=[types.Icon(src="https://x.example/i.png")], meta={"com.example/a": 1})
    def pack(city: str, days: int = 3) -> str:
        """Pack for a city.

        Args:
            city: Where to.
        """
        return city

    found = definition(server, "prompts", "pack", "Prompt")
    assert found["arguments"] == [{"name": "city", "description": "Where to.", "required": True}, {"name": "days"}]
    assert (found["title"], found["description"], found["_meta"]) == ("Pack", "Pack for a city.", {"com.example/a": 1})


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [("user", "text")]),
        (["a", "b"], [("user", "text"), ("user", "text")]),
        (image(PNG, "image/png"), [("user", "image")]),
        (("a", embed("a://b", b"\x00")), [("user", "text"), ("user", "resource")]),
        ([types.PromptMessage(role="assistant", content=text("x")), "y"], [("assistant", "text"), ("user", "text")]),
        ([], []),
    ],
)
async def test_a_prompt_gives_messages(value: Any, messages: list[tuple[str, str]]) -> None:
    # PM-03, PM-05
    server = Server("desk")

    @server.prompt
    async def pack() -> Any:
        return value

    found = await reply(server, "prompts/get", {"name": "pack"})
    mcp_types_validate("GetPromptResult", {**found, "resultType": "complete"})
    assert [(message["role"], message["content"]["type"]) for message in found["messages"]] == messages


@pytest.mark.parametrize("value", [None, 5, {"a": 1}, [1]])
async def test_what_is_no_message_is_an_error(value: Any) -> None:
    server = Server("desk")

    @server.prompt
    async def pack() -> Any:
        return value

    with pytest.raises(TypeError, match="prompt returns"):
        await reply(server, "prompts/get", {"name": "pack"})


# Resources and templates


def test_a_resource_says_of_itself_what_it_was_told() -> None:
    # RS-03, IC-01
    server = Server("desk")

    @server.resource(
        "file:///a.md",
        name="a.md",
        title="A",
        mime_type="text/markdown",
        size=12,
        annotations=types.Annotations(audience=["user"], priority=0.5),
        icons=[types.Icon(src="https://x.example/i.png")],
        meta={"com.example/a": 1},
    )
    def read() -> str:
        """The first file."""
        return "# A"

    assert definition(server, "resources", "file:///a.md", "Resource") == {
        "uri": "file:///a.md",
        "name": "a.md",
        "title": "A",
        "description": "The first file.",
        "mimeType": "text/markdown",
        "size": 12,
        "annotations": {"audience": ["user"], "priority": 0.5},
        "icons": [{"src": "https://x.example/i.png"}],
        "_meta": {"com.example/a": 1},
    }


def test_a_template_says_of_itself_what_it_was_told() -> None:
    # RS-03
    server = Server("desk")

    @server.resource("a://{x}", mime_type="text/plain")
    def read(x: str) -> str:
        return x

    assert definition(server, "templates", "a://{x}", "ResourceTemplate") == {
        "uriTemplate": "a://{x}",
        "name": "read",
        "mimeType": "text/plain",
    }


@pytest.mark.parametrize(
    ("value", "contents"),
    [
        ("text", [{"text": "text", "mimeType": "text/plain"}]),
        ("", [{"text": "", "mimeType": "text/plain"}]),
        (b"\x00\xff", [{"blob": "AP8=", "mimeType": "application/octet-stream"}]),
        (bytearray(b""), [{"blob": "", "mimeType": "application/octet-stream"}]),
        ({"a": 1}, [{"text": '{"a":1}', "mimeType": "application/json"}]),
        ([], [{"text": "[]", "mimeType": "application/json"}]),
        ([1, "a"], [{"text": '[1,"a"]', "mimeType": "application/json"}]),
        (5, [{"text": "5", "mimeType": "application/json"}]),
    ],
)
async def test_a_resource_gives_contents(value: Any, contents: list[dict[str, Any]]) -> None:
    # RS-04, RS-08
    server = Server("desk")

    @server.resource("a://b")
    async def read() -> Any:
        return value

    found = await reply(server, "resources/read", {"uri": "a://b"})
    assert found["contents"] == [{"uri": "a://b", **content} for content in contents]


async def test_several_contents_may_be_given_in_the_protocols_words() -> None:
    # RS-04
    server = Server("desk")

    @server.resource("a://dir")
    async def read() -> list[types.ResourceContents]:
        return [types.ResourceContents(uri="a://dir/1", text="1"), types.ResourceContents(uri="a://dir/2", blob="AA==")]

    found = await reply(server, "resources/read", {"uri": "a://dir"})
    assert found["contents"] == [{"uri": "a://dir/1", "text": "1"}, {"uri": "a://dir/2", "blob": "AA=="}]


async def test_no_contents_are_an_error() -> None:
    # RS-05: never an empty `contents`
    server = Server("desk")

    @server.resource("a://b")
    async def read() -> None: ...

    with pytest.raises(TypeError, match="NotFound"):
        await reply(server, "resources/read", {"uri": "a://b"})


async def test_a_resource_may_say_that_it_is_gone() -> None:
    # RS-05
    server = Server("desk")

    @server.resource("a://{x}")
    async def read(x: str) -> str:
        raise NotFound if x == "1" else NotFound("a://other")

    first, second = await refusal(server, "resources/read", {"uri": "a://1"}), await refusal(server, "resources/read", {"uri": "a://2"})
    assert (first.reason, first.data) == (Reason.RESOURCE_NOT_FOUND, {"uri": "a://1"})
    assert second.data == {"uri": "a://other"}


async def test_the_mime_type_of_a_resource_is_that_of_its_contents() -> None:
    server = Server("desk")

    @server.resource("a://b", mime_type="text/csv")
    def read() -> str:
        return "a,b"

    assert (await reply(server, "resources/read", {"uri": "a://b"}))["contents"][0]["mimeType"] == "text/csv"


@pytest.mark.parametrize(
    ("template", "uri", "value"),
    [
        ("search://{q}", "search://hello%20world", "hello world"),
        ("search://{q}", "search://caf%C3%A9", "café"),
        ("search://{q}", "search://a+b", "a+b"),
        ("search://{q}", "search://%2541", "%41"),
        ("file:///{+q}", "file:///a/b/c", "a/b/c"),
        ("d://{n}", "d://5", 5),
    ],
)
async def test_a_templates_values_are_decoded_once(template: str, uri: str, value: Any) -> None:
    # A46, A47
    server = Server("desk")

    async def takes_q(q: str) -> Any:
        return [q]

    async def takes_n(n: int) -> Any:
        return [n]

    server.resource(template)(takes_n if isinstance(value, int) else takes_q)
    found = await reply(server, "resources/read", {"uri": uri})
    assert msgspec.json.decode(found["contents"][0]["text"]) == [value]


@pytest.mark.parametrize(
    "uri",
    [
        "file:///..%2f..%2fetc%2fpasswd",
        "file:///%2e%2e/x",
        "file:///%5c..%5cx",
        "file:///C:%5cx",
        "file:///a%00b",
        "file:////host/x",
        "file:///a/../b",
        "file:///..",
    ],
)
async def test_a_value_that_leads_out_is_refused_before_the_function(uri: str) -> None:
    # SA32, RS-08, PM-07
    server, ran = Server("desk"), []

    @server.resource("file:///{+path}")
    async def read(path: str) -> str:
        ran.append(path)
        return path

    fail = await refusal(server, "resources/read", {"uri": uri})
    assert fail.reason in {Reason.INVALID_PARAMS, Reason.RESOURCE_NOT_FOUND}
    assert ran == []


@pytest.mark.parametrize(
    ("uri", "culprit"),
    [("a://b", "x"), ("a://{y}", "y"), ("a://{", "{"), ("a://{x!}", "x!")],
)
def test_a_uri_that_does_not_fit_its_function_is_refused(uri: str, culprit: str) -> None:
    server = Server("desk")

    def read(x: str) -> str:
        return x

    with pytest.raises(RegistrationError) as caught:
        server.resource(uri)(read)
    assert culprit in str(caught.value)
    assert "read() at" in str(caught.value)


@pytest.mark.parametrize("hint", [CacheHint(5000, "public"), None])
async def test_a_resource_has_its_own_caching_hint_or_the_servers(hint: CacheHint | None) -> None:
    # CA-01
    server = Server("desk", cache=CacheHint(7, "private"))

    @server.resource("a://b", cache=hint)
    def read() -> str:
        return ""

    outcome: Any = await ask(server, "resources/read", {"uri": "a://b"})
    assert outcome.cache == (hint or CacheHint(7, "private"))


# Completions


async def complete(server: Server, value: str = "", arguments: dict[str, str] | None = None) -> dict[str, Any]:
    params: dict[str, Any] = {"ref": {"type": "ref/prompt", "name": "pack"}, "argument": {"name": "city", "value": value}}
    if arguments is not None:
        params["context"] = {"arguments": arguments}
    found = await reply(server, "completion/complete", params)
    mcp_types_validate("CompleteResult", {**found, "resultType": "complete"})
    completion: dict[str, Any] = found["completion"]
    return completion


def make_completed(fn: Callable[..., Any], **options: Any) -> Server:
    server = Server("desk", **options)

    @server.prompt
    def pack(city: str) -> str:
        return city

    server.complete("pack", "city")(fn)
    return server


@pytest.mark.parametrize(
    ("found", "total", "more"), [(0, 0, False), (99, 99, False), (100, 100, False), (101, 101, True), (5000, 5000, True)]
)
async def test_a_completion_gives_a_hundred_at_most(found: int, total: int, more: bool) -> None:
    # CP-03
    completion = await complete(make_completed(lambda value: [str(n) for n in range(found)]))
    assert completion["values"] == [str(n) for n in range(min(found, 100))]
    assert (completion["total"], completion["hasMore"]) == (total, more)


async def test_the_cap_can_be_lower() -> None:
    # CP-03
    completion = await complete(make_completed(lambda value: ["a", "b", "c"], completion_cap=2))
    assert (completion["values"], completion["hasMore"]) == (["a", "b"], True)
    for cap in (0, 101):
        with pytest.raises(RegistrationError, match="completion_cap"):
            Server("desk", completion_cap=cap)


async def test_a_completion_sees_the_other_arguments() -> None:
    # CP-02
    server = make_completed(lambda value, arguments: [f"{value} {sorted(arguments.items())}"])
    assert (await complete(server, "a", {"country": "no"}))["values"] == ["a [('country', 'no')]"]
    assert (await complete(server, "a"))["values"] == ["a []"]


@pytest.mark.parametrize("found", [None, (), iter(["a"]), {"a": 1}])
async def test_what_a_completion_gives_may_be_any_iterable(found: Any) -> None:
    completion = await complete(make_completed(lambda value: found))
    assert completion["values"] in ([], ["a"])


@pytest.mark.parametrize("found", ["oslo", [1, 2], [None], [["a"]]])
async def test_what_is_no_list_of_texts_is_an_error(found: Any) -> None:
    # CP-03: it must not reach the wire
    with pytest.raises(TypeError, match="completion"):
        await complete(make_completed(lambda value: found))


@pytest.mark.parametrize("fn", [lambda: None, lambda a, b, c: []])
def test_a_completion_takes_the_text_and_the_others(fn: Callable[..., Any]) -> None:
    with pytest.raises(RegistrationError, match="completion takes"):
        make_completed(fn)


async def test_one_exception_for_all_carries_nothing_from_one_request_to_the_next() -> None:
    # RS-05, A10
    gone, server = NotFound(), Server("desk")

    @server.resource("a://{x}")
    async def read(x: str) -> str:
        raise gone

    for uri in ("a://1", "a://2"):
        assert (await refusal(server, "resources/read", {"uri": uri})).data == {"uri": uri}
