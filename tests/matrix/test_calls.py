"""Tools, resources, prompts and completion through the whole server."""

import asyncio
import json
import time
from typing import Any

import pytest
from asgi_driver import META_PREFIX, Client, make_headers, make_meta, make_request
from desk import Desk

from callboard import Context, Reason, Server, asgi
from callboard.errors import REASONS
from callboard.limits import Limits
from callboard.server.workers import MAX_WAITING


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def client(desk: Desk) -> Client:
    return Client(asgi(desk.server))


# Calling tools


@pytest.mark.parametrize("text", ["12345", '{"a":1}', "null", "1e5", "", " ", "true", "é\u2028\n\x00", "😀", "\\ud800", "x" * 100_000])
@pytest.mark.parametrize("tool", ["echo", "sync_echo"])
async def test_a_text_comes_back_as_it_was(client: Client, tool: str, text: str) -> None:
    # A24
    assert (await client.call(tool, {"text": text})).text == text


async def test_a_structured_result_is_structure_and_text(client: Client) -> None:
    # TL-08, TL-09, TL-10, JR-13, MT-05
    answer = await client.call("forecast", {"city": "Oslo", "days": 2})
    days = [{"name": "Oslo", "high": 20.5, "rain": False}, {"name": "Oslo", "high": 21.5, "rain": False}]
    assert answer.result["structuredContent"] == days
    assert json.loads(answer.text) == days
    assert answer.result["resultType"] == "complete"
    assert answer.result["_meta"] == {f"{META_PREFIX}serverInfo": {"name": "desk", "version": "1.0"}}


async def test_content_blocks_go_out_as_they_are(client: Client) -> None:
    # TL-11, TL-18
    answer = await client.call("blocks")
    assert [block["type"] for block in answer.result["content"]] == ["text", "image", "audio", "resource_link", "resource"]
    assert "structuredContent" not in answer.result


@pytest.mark.parametrize("arguments", [{}, {"text": 5}, {"text": None}, {"text": "a", "more": 1}, {"text": ["a"]}])
async def test_faulty_arguments_are_in_band(desk: Desk, client: Client, arguments: dict[str, Any]) -> None:
    # TL-13, TL-20
    answer = await client.call("echo", arguments)
    assert (answer.status, answer.result["isError"]) == (200, True)
    assert desk.calls == []


async def test_integers_may_be_written_as_numbers(client: Client) -> None:
    # A24: lossless, and only where the schema says so
    assert len((await client.call("forecast", {"city": "x", "days": 2.0})).result["structuredContent"]) == 2
    assert (await client.call("forecast", {"city": "x", "days": 2.5})).result["isError"] is True
    assert (await client.call("forecast", {"city": "x", "days": "2"})).result["isError"] is True


async def test_a_tools_own_failure_is_in_band(client: Client) -> None:
    # TL-12
    answer = await client.call("refuse")
    assert (answer.status, answer.result["isError"], answer.text) == (200, True, "Not today.")


async def test_a_crash_tells_nothing_but_its_id(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    # SA35, HM-19, LG-06
    answer = await client.call("crash")
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert b"hunter2" not in answer.body
    assert "hunter2" in caplog.text
    error_id = answer.error["message"].split("id ")[1].split(")")[0]
    assert error_id in caplog.text
    assert (await client.call("echo", {"text": "still here"})).text == "still here"


@pytest.mark.parametrize(
    ("method", "key", "prefix"), [("tools/call", "name", ""), ("prompts/get", "name", ""), ("resources/read", "uri", "x://")]
)
async def test_unknown_names_are_one_answer(client: Client, method: str, key: str, prefix: str) -> None:
    # SA21, EC-11, TL-13, PM-04, RS-05: it says nothing but the name
    answers = [await client.request(method, {key: prefix + name}) for name in ("nobody", "nothing")]
    assert {(answer.status, answer.error["code"]) for answer in answers} == {(400, -32602)}
    first, second = (answer.error["message"] for answer in answers)
    assert first.replace("nobody", "nothing") == second


@pytest.mark.parametrize("name", ["x" * 10_000, "\x1b[31m", "a\nb"])
async def test_an_unknown_name_is_shown_short_and_harmless(client: Client, name: str) -> None:
    # SA13, SA21
    answer = await client.call(name)
    if answer.status == 400:
        assert len(answer.error["message"]) < 200
        assert answer.error["message"].isprintable()
    else:
        assert answer.status == 431


async def test_only_specified_codes_are_sent(client: Client) -> None:
    # EC-01, EC-02, EC-04, EC-08, JR-11
    answers = [
        await client.call("nobody"),
        await client.call("crash"),
        await client.request("ping"),
        await client.request("tools/list", {"cursor": "x"}),
        await client.request("resources/read", {"uri": "desk://note/gone"}),
        await client.call("need_sampling"),
        await client.request("tools/list", mcp_method="x"),
    ]
    for answer in answers:
        assert answer.error["code"] in {-32600, -32601, -32602, -32603, -32700, -32020, -32021, -32022}
        assert "\n" not in answer.error["message"]


async def test_what_a_client_says_of_itself_reaches_the_tool(client: Client) -> None:
    meta = make_meta({"roots": {}}, clientInfo={"name": "acme", "version": "1"})
    answer = await client.call("who", request_id="q", meta=meta)
    assert answer.result["structuredContent"] == {"id": "q", "client": "acme", "capabilities": {"roots": {}}, "principal": None}


# Results that can't be sent


def make_odd() -> Server:
    server = Server("odd")

    @server.tool
    async def odd(kind: str) -> Any:
        cycle: list[Any] = []
        cycle.append(cycle)
        return {
            "surrogate": "\ud800",
            "nan": float("nan"),
            "bytes": b"\x00",
            "cycle": cycle,
            "object": object(),
            "key": {(1, 2): 3},
            "big": "x" * 10_000_000,
            "deep": deep(100_000),
            "integer": 10**5000,
        }[kind]

    return server


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("kind", ["surrogate", "nan", "bytes", "cycle", "object", "key", "big", "deep", "integer"])
async def test_a_result_that_can_not_be_sent_is_that_calls_error(kind: str) -> None:
    # SA07, TL-20
    client = Client(asgi(make_odd()))
    started = time.process_time()
    odd, other = await asyncio.gather(client.call("odd", {"kind": kind}), client.request("tools/list", request_id=2))
    assert time.process_time() - started < 1
    assert odd.status == 200
    assert odd.message["id"] == 1
    assert other.status == 200
    if kind == "big":
        assert len(odd.text) == 10_000_000
    else:
        assert odd.error["code"] == -32603


@pytest.mark.parametrize("text", ["\\ud800", "a\\udc00b"])
async def test_a_lone_surrogate_in_an_argument_is_refused_with_its_id(desk: Desk, client: Client, text: str) -> None:
    # SA06
    message = make_request("tools/call", {"name": "echo", "arguments": {"text": "TEXT"}})
    answer = await client.send(json.dumps(message).replace("TEXT", text).encode(), make_headers(message))
    assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32602, 1)
    assert desk.calls == []


# Threads


async def test_a_blocking_function_stops_nobody(desk: Desk, client: Client) -> None:
    # A20, SA40
    blocked = [asyncio.create_task(client.call("block", request_id=n)) for n in range(3)]
    async with asyncio.timeout(5):
        await desk.started.wait()
        took = []
        for _ in range(5):  # the best of five: others use this machine too
            started = time.perf_counter()
            assert (await client.call("echo", {"text": "a"})).text == "a"
            took.append(time.perf_counter() - started)
        assert min(took) < 0.1
        desk.release.set()
        assert [answer.text for answer in await asyncio.gather(*blocked)] == ["released"] * 3


async def test_past_the_bound_of_threads_a_call_is_told_to_come_back() -> None:
    # SA40
    desk = Desk()
    client = Client(asgi(desk.server, limits=Limits(threads=1)))
    blocked = asyncio.create_task(client.call("block"))
    async with asyncio.timeout(10):
        await desk.started.wait()
        waiting = [asyncio.create_task(client.call("sync_echo", {"text": "x"}, request_id=n)) for n in range(MAX_WAITING)]
        await asyncio.sleep(0)
        answer = await client.call("block", request_id="more")
        assert (answer.status, answer.error["code"]) == (503, REASONS[Reason.OVERLOADED].code)
        assert answer.headers["retry-after"] == "1"
        assert (await client.call("echo", {"text": "a"})).text == "a"
        desk.release.set()
        assert (await blocked).text == "released"
        assert {(await task).text for task in waiting} == {"x"}


async def test_a_thread_may_report_progress(client: Client) -> None:
    # A20, PR-03
    answer = await client.call("sync_count", {"to": 5}, meta=make_meta(progressToken="p"))
    assert [note["params"]["progress"] for note in answer.notes] == [1, 2, 3, 4, 5]
    assert answer.text == "counted"


# Resources


async def test_resources_are_listed_and_read(client: Client) -> None:
    # RS-03, RS-04, CA-01
    listed = (await client.request("resources/list")).result
    assert [resource["uri"] for resource in listed["resources"]] == ["desk://rules"]
    templates = (await client.request("resources/templates/list")).result["resourceTemplates"]
    assert [template["uriTemplate"] for template in templates] == ["desk://note/{name}", "file:///{+path}"]
    read = (await client.request("resources/read", {"uri": "desk://rules"})).result
    assert read["contents"] == [{"uri": "desk://rules", "mimeType": "text/markdown", "text": "# Rules"}]
    assert (read["ttlMs"], read["cacheScope"]) == (0, "private")


@pytest.mark.parametrize("uri", ["desk://note/gone", "desk://nothing", "desk://note/a/b", "", "x", "http://["])
async def test_a_resource_that_is_not_there_is_named(client: Client, uri: str) -> None:
    # RS-05, RS-08, EC-08, EC-11, A46
    answer = await client.request("resources/read", {"uri": uri})
    assert (answer.status, answer.error["code"]) == (400, -32602)
    assert answer.error["data"] == {"uri": uri}


@pytest.mark.parametrize(
    "path",
    ["..%2f..%2fetc/passwd", "%2e%2e/x", "%5c..%5cx", "C:%5cx", "a%00b", "//host/x", "%2fetc/passwd", "a/%2e%2e/b", "..", "~root/../x"],
)
async def test_a_uri_that_leads_out_reaches_no_function(desk: Desk, client: Client, path: str) -> None:
    # SA32, RS-08
    answer = await client.request("resources/read", {"uri": f"file:///{path}"})
    assert (answer.status, answer.error["code"]) == (400, -32602)
    assert desk.calls == []


@pytest.mark.parametrize(
    "uri", ["file:///" + "a/" * 32_000, "file:///" + "%41" * 21_000, "desk://note/" + "x" * 64_000, "desk://" + "/" * 64_000]
)
async def test_a_long_uri_costs_little(client: Client, uri: str) -> None:
    # SA33
    app_headers = make_headers(make_request("resources/read", {"uri": uri}))
    started = time.process_time()
    for server_client in (client, Client(asgi(Desk().server, limits=Limits(max_headers=200_000)))):
        answer = await server_client.send(
            json.dumps(make_request("resources/read", {"uri": uri})).encode(), app_headers, method="resources/read"
        )
        assert answer.status in {200, 400, 431}
    assert time.process_time() - started < 0.2


# Prompts and completion


async def test_prompts_are_listed_and_got(client: Client) -> None:
    # PM-03
    (prompt,) = (await client.request("prompts/list")).result["prompts"]
    assert prompt == {
        "name": "greet",
        "description": "Greet somebody.",
        "arguments": [{"name": "who", "required": True}, {"name": "tone"}],
    }
    got = (await client.request("prompts/get", {"name": "greet", "arguments": {"who": "Ann"}})).result
    assert [(message["role"], message["content"]["text"]) for message in got["messages"]] == [
        ("user", "Greet Ann, be kind."),
        ("assistant", "Hello."),
    ]


@pytest.mark.parametrize("arguments", [{}, {"tone": "x"}, {"who": "a", "more": "b"}, {"who": 1}])
async def test_faulty_prompt_arguments_are_refused(client: Client, arguments: dict[str, Any]) -> None:
    # PM-04, PM-07
    answer = await client.request("prompts/get", {"name": "greet", "arguments": arguments})
    assert (answer.status, answer.error["code"]) == (400, -32602)


async def test_a_completion_is_capped(client: Client) -> None:
    # CP-03, CP-06
    params = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "a"}}
    result = (await client.request("completion/complete", params)).result
    assert len(result["completion"]["values"]) == 100
    assert (result["completion"]["total"], result["completion"]["hasMore"]) == (150, True)
    assert "ttlMs" not in result


@pytest.mark.parametrize("ref", [{"type": "ref/prompt", "name": "x"}, {"type": "ref/resource", "uri": "x://{y}"}, {"type": "x"}, {}])
async def test_a_bad_reference_is_refused(client: Client, ref: dict[str, str]) -> None:
    # CP-04
    answer = await client.request("completion/complete", {"ref": ref, "argument": {"name": "who", "value": "a"}})
    assert (answer.status, answer.error["code"]) == (400, -32602)


# Lists


async def test_a_long_list_comes_in_pages() -> None:
    # A61, PG-01, PG-05, CA-02, TL-03
    server = Server("long")
    for number in range(120):
        server.tool(name=f"tool{number}")(lambda: "")
    client = Client(asgi(server))
    found: list[str] = []
    params: dict[str, Any] = {}
    pages = 0
    while True:
        result = (await client.request("tools/list", params)).result
        found += [tool["name"] for tool in result["tools"]]
        assert result["cacheScope"] == "private"
        pages += 1
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    assert (pages, found) == (3, [f"tool{number}" for number in range(120)])
    for cursor in ("garbage", "", "dG9vbHM6eA==", "é"):
        answer = await client.request("tools/list", {"cursor": cursor})
        assert (answer.status, answer.error["code"]) == (400, -32602)


async def test_lists_are_the_same_for_everybody(client: Client) -> None:
    # TL-02, TL-03, RS-02, PM-02
    first = [(await client.request(method)).result for method in ("tools/list", "prompts/list", "resources/list")]
    await client.call("echo", {"text": "a"})
    assert [(await client.request(method)).result for method in ("tools/list", "prompts/list", "resources/list")] == first


async def test_discover_says_what_the_server_has(client: Client) -> None:
    # VN-02, VN-03, MT-18, TL-01, RS-01, PM-01, CP-01, LG-02
    result = (await client.request("server/discover")).result
    assert result["capabilities"] == {
        "logging": {},
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "completions": {},
    }
    assert "serverInfo" not in result


# State of a request


async def test_what_middleware_stores_is_what_the_tool_gets() -> None:
    # A49
    pool = object()

    def layer(inner: Any) -> Any:
        async def service(request: Any, ctx: Context) -> Any:
            ctx.locals["pool"] = pool
            return await inner(request, ctx)

        return service

    server = Server("desk", middleware=[layer])

    @server.tool
    async def same(ctx: Context) -> bool:
        return ctx.locals["pool"] is pool and ctx.scope_state["pool"] is pool

    answer = await Client(asgi(server), state={"pool": pool}).call("same")
    assert answer.result["structuredContent"] is True


async def test_timeouts_and_task_groups_work_in_a_tool() -> None:
    # CN-04: what a tool starts in its request's own task ends there
    server = Server("desk")

    async def fail() -> None:
        raise KeyError("x")

    @server.tool
    async def nested(ctx: Context) -> list[str]:
        seen: list[str] = []
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("timeout")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        except* KeyError:
            seen.append("group")
        await asyncio.shield(asyncio.sleep(0))
        task = asyncio.current_task()
        assert task is not None
        return [*seen, str(task.cancelling())]

    answer = await Client(asgi(server)).call("nested")
    assert answer.result["structuredContent"] == ["timeout", "group", "0"]
