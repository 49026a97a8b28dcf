"""What broke asking the client, or tried to: the same program on the current protocol and in a session of 2025 comes to the same."""

import asyncio
import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from asgi_driver import JSON, Client, make_headers, make_meta, make_request
from both_eras import add_asking_tool, connect, on_both, question, same_crash, same_text
from rounds import EVERYTHING, Rounds, accept
from shapes import respond
from virtual_time import settle, virtual_time

from callboard import Context, NeedInput, Outcome, Reply, Request, Server, Service, ToolError, asgi
from callboard.errors import RegistrationError

KEY: Final = "k" * 32


# By hand, beside other asks


@pytest.mark.parametrize("key", [None, "name"])
@virtual_time
async def test_an_ask_before_a_question_by_hand_does_not_answer_it(key: str | None) -> None:
    """It skipped the question: whoever asks for approval by hand must get their answer, and no other."""

    # MR-12, scenario 42
    def declare(server: Server, log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str | NeedInput:
            name = (await ctx.elicit("Name?", str, key=key)).value
            log.append(name)
            return NeedInput({"sure": question()}, state={"n": 1}) if ctx.input is None else f"{name} {ctx.input}"

    text = await same_text(declare)
    assert text == "text Input(state={'n': 1}, responses={'sure': {'action': 'accept', 'content': {}}})"


@virtual_time
async def test_an_ask_after_a_question_by_hand_does_not_lose_its_answer() -> None:
    def declare(server: Server, log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str | NeedInput:
            if ctx.input is None:
                return NeedInput({"sure": question()}, state=[1])
            log.append("asked")
            first = (await ctx.elicit("A?", str)).value
            return f"{first} {(await ctx.elicit('B?', str)).value} {ctx.input.state} {list(ctx.input.responses)}"

    assert await same_text(declare) == "text text [1] ['sure']"


@virtual_time
async def test_a_question_by_hand_under_the_same_key_is_a_new_one() -> None:
    # MR-09
    def declare(server: Server, log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str | NeedInput:
            count = 0 if ctx.input is None else ctx.input.state
            log.append(str(None if ctx.input is None else list(ctx.input.responses)))
            return NeedInput({"sure": question("The same?")}, state=count + 1) if count < 2 else str(ctx.input)

    _, _, logs = await on_both(declare)
    assert logs[0] == logs[1] == ["None", "['sure']", "['sure']"]
    server = Server("s")
    declare(server, [])
    rounds = Rounds(asgi(server), respond)
    state = (await rounds.once("tools/call", {"name": "t"})).result["requestState"]
    more = {"requestState": state, "inputResponses": {"sure": accept()}}
    state = (await rounds.once("tools/call", {"name": "t", **more})).result["requestState"]
    answer = await rounds.once("tools/call", {"name": "t", "requestState": state})
    assert "responses={}" in answer.text, "the answer of the round before is none to this one"


@virtual_time
async def test_state_by_hand_is_json_whatever_it_was() -> None:
    # scenario 42: as it would come back from a client
    state = {"at": dt.datetime(2026, 1, 2), "raw": b"abc", "by": {1: 2}, "big": 2**70, "pair": (1,), "nan": float("nan")}  # noqa: DTZ001

    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str | NeedInput:
            return NeedInput({"sure": question()}, state=state) if ctx.input is None else json.dumps(ctx.input.state)

    assert json.loads(await same_text(declare)) == {
        "at": "2026-01-02T00:00:00",
        "raw": "YWJj",
        "by": {"1": 2},
        "big": 2**70,
        "pair": [1],
        "nan": None,
    }


@pytest.mark.parametrize(
    "request_",
    [{"method": "elicitation/create"}, {"method": "sampling/createMessage", "params": {}}, {"method": ["x"]}, {"method": "ping"}, 5],
)
@virtual_time
async def test_what_is_no_request_is_not_sent(request_: Any) -> None:
    # MR-04: an error of the author's is the author's to see, not the client's
    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str | NeedInput:
            return NeedInput({"k": request_}) if ctx.input is None else "never"

    await same_crash(declare)


@virtual_time
async def test_two_questions_by_hand_that_nobody_answers_fail_in_band() -> None:
    # EL-15
    server = Server("s", ask_timeout=5)

    @server.tool
    async def t(ctx: Context) -> str | NeedInput:
        return NeedInput({"a": question("A?"), "b": question("B?")}) if ctx.input is None else "never"

    session = await connect(server)
    stream = session.start(session.make_call("t", {}))
    assert (await stream.end()).result["isError"] is True


@dataclass
class Count:
    """The state of a session."""

    n: int = 0


@virtual_time
async def test_a_question_by_hand_runs_the_function_anew_with_the_state_too() -> None:
    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context, count: Count) -> str | NeedInput:
            count.n += 1
            return NeedInput({"sure": question()}) if ctx.input is None else str(count.n)

    assert await same_text(declare, state=Count) == "1"


# Layers


def layer_of(around: Callable[[Service, Request, Context], Any]) -> Callable[[Service], Service]:
    def layer(inner: Service) -> Service:
        async def serve(request: Request, ctx: Context) -> Outcome:
            outcome: Outcome = await (around(inner, request, ctx) if request.method == "tools/call" else inner(request, ctx))
            return outcome

        return serve

    return layer


@virtual_time
async def test_a_layer_that_asks_twice_at_once_is_suspended_as_a_whole() -> None:
    """The layer went on with two exceptions for answers; one that is less careful would have let the call through."""

    async def around(inner: Service, request: Request, ctx: Context) -> Outcome:
        both = await asyncio.gather(ctx.elicit("A?"), ctx.elicit("B?"), return_exceptions=True)
        assert not any(isinstance(each, BaseException) for each in both), both
        return await inner(request, ctx)

    _, _, logs = await on_both(add_asking_tool, middleware=[layer_of(around)])
    assert await same_text(add_asking_tool, middleware=[layer_of(around)]) == "text"
    assert logs == [["tool", "tool"], ["tool"]]


@virtual_time
async def test_a_layer_may_run_the_rest_in_a_task_with_a_time_limit() -> None:
    async def around(inner: Service, request: Request, ctx: Context) -> Outcome:
        await ctx.elicit("A?")
        return await asyncio.wait_for(inner(request, ctx), 60)

    assert await same_text(add_asking_tool, middleware=[layer_of(around)]) == "text"


@virtual_time
async def test_a_layer_that_asks_does_not_answer_what_a_function_asks_by_hand() -> None:
    async def around(inner: Service, request: Request, ctx: Context) -> Outcome:
        await ctx.elicit("Allow?")
        return await inner(request, ctx)

    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str | NeedInput:
            return NeedInput({"sure": question()}) if ctx.input is None else str(list(ctx.input.responses))

    assert await same_text(declare, middleware=[layer_of(around)]) == "['sure']"


@virtual_time
async def test_a_layer_may_ask_by_hand() -> None:
    async def around(inner: Service, request: Request, ctx: Context) -> Outcome:
        return NeedInput({"ok": question()}, state=1) if ctx.input is None else await inner(request, ctx)

    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str:
            return str(ctx.input)

    assert (
        await same_text(declare, middleware=[layer_of(around)]) == "Input(state=1, responses={'ok': {'action': 'accept', 'content': {}}})"
    )


@virtual_time
async def test_what_a_layer_makes_of_a_suspended_or_failed_call_counts() -> None:
    async def refuse(inner: Service, request: Request, ctx: Context) -> Outcome:
        outcome = await inner(request, ctx)
        return Reply({"content": [{"type": "text", "text": "not here"}]}) if isinstance(outcome, NeedInput) else outcome

    server = Server("s", middleware=[layer_of(refuse)])
    add_asking_tool(server, [])
    assert (await Rounds(asgi(server), respond).call("t")).text == "not here"

    async def mend(inner: Service, request: Request, ctx: Context) -> Outcome:
        try:
            return await inner(request, ctx)
        except RuntimeError:
            return Reply({"content": [{"type": "text", "text": "mended"}]})

    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> None:
            await ctx.elicit("A?", key="k")
            await ctx.elicit("B?", key="k")

    assert await same_text(declare, middleware=[layer_of(mend)]) == "mended"


@virtual_time
async def test_a_client_that_goes_after_the_suspension_ends_what_the_layers_still_do() -> None:
    # CN-01
    log: list[str] = []

    async def around(inner: Service, request: Request, ctx: Context) -> Outcome:
        outcome = await inner(request, ctx)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise
        return outcome

    server = Server("s", middleware=[layer_of(around)])
    add_asking_tool(server, log)
    message = make_request("tools/call", {"name": "t"}, meta=make_meta(EVERYTHING, progressToken=1))
    exchange = Client(asgi(server, cancel_on_disconnect="always")).start(json.dumps(message).encode(), make_headers(message))
    await settle()
    exchange.disconnect()
    await exchange.gone()
    assert log == ["tool", "cancelled"]


# ctx.once


@virtual_time
async def test_once_does_not_ask() -> None:
    """It waited for ever: no call is suspended while a value is made, and this one is made of the answer."""

    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str:
            async def make() -> str:
                return (await ctx.elicit("Name?", str)).value

            try:
                return await ctx.once("k", make)
            except RuntimeError:
                return "swallowed"

    await same_crash(declare)


async def test_once_whose_function_stops_an_iteration_ends() -> None:
    """It waited for ever: no future can carry StopIteration."""
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> int:
        return await ctx.once("k", lambda: next(iter([])))

    assert (await Rounds(asgi(server), respond).call("t")).error["code"] == -32603


@virtual_time
async def test_once_within_once_and_one_that_fails() -> None:
    def declare(server: Server, log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str:
            async def inner() -> int:
                log.append("inner")
                return 1

            async def outer() -> int:
                return 1 + await ctx.once("inner", inner)

            async def fail() -> int:
                raise ToolError("not now")

            try:
                await ctx.once("fails", fail)
            except ToolError as error:
                log.append(str(error.content))
            return f"{await ctx.once('outer', outer)} {(await ctx.elicit('Name?', str)).value}"

    assert await same_text(declare) == "2 text"


# Keys and texts


@pytest.mark.parametrize("use", ["elicit", "surrogate", "once", "message", "url"])
@virtual_time
async def test_what_is_no_text_is_refused_at_once(use: str) -> None:
    """A number as a key came back as text: the state never opened again, or the call asked for ever."""
    wrong: Any = 5

    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str:
            if use == "once":
                await ctx.once(wrong, lambda: 1)
            elif use == "url":
                await ctx.elicit_url(wrong, "https://pay.example")
            keys = {"elicit": wrong, "surrogate": "\ud800"}
            return (await ctx.elicit(wrong if use == "message" else "Name?", str, key=keys.get(use))).value

    await same_crash(declare)


@virtual_time
async def test_any_text_is_a_key() -> None:
    def declare(server: Server, _log: list[str]) -> None:
        @server.tool
        async def t(ctx: Context) -> str:
            keys = ["", "\0", "a\nb", "__proto__", "é", "k" * 10_000, "elicit-"]
            return str(len(await asyncio.gather(*[ctx.elicit("Name?", str, key=key) for key in keys])))

    assert await same_text(declare) == "7"


# Answers


def add_two(server: Server) -> None:
    @server.tool
    async def t(ctx: Context) -> str:
        count = (await ctx.elicit("How many?", int, key="a")).value
        return f"{count} {(await ctx.elicit('Name?', str, key='b')).value}"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ('{"action": ["accept"]}', None),
        ('{"action": {}}', None),
        ('{"action": true}', None),
        ('{"action": "accept", "content": null}', None),
        ('{"action": "accept", "content": {"value": true}}', None),
        ('{"action": "accept", "content": {"value": %s}}' % ("9" * 6000), None),
        ('{"action": "accept", "content": {"value": 1e400}}', None),
        ('{"action": "accept", "content": {"value": 1, "x": "\\ud800"}}', None),
        ('{"action": "accept", "content": {"value": %s}}' % ("9" * 100), "9" * 100 + " ok"),
        ('{"action": "accept", "content": {"value": 1}, "x": %s}' % ("9" * 400), "1 ok"),
        ('{"action": "accept", "content": {"value": 1}, "x": %s}' % ("[" * 100 + "]" * 100), "1 ok"),
        ('{"action": "accept", "content": {"value": 5.0, "other": {"a": [1]}}}', "5 ok"),
    ],
)
async def test_hostile_answers_fit_or_are_refused(answer: str, text: str | None) -> None:
    # MR-10, EL-14, SA06: and what fits may be remembered, whatever else is in it
    server = Server("s")
    add_two(server)
    rounds = Rounds(asgi(server), respond)
    state = (await rounds.once("tools/call", {"name": "t"})).result["requestState"]
    message = make_request("tools/call", {"name": "t", "requestState": state, "inputResponses": {"a": "@"}}, meta=make_meta(EVERYTHING))
    body = json.dumps(message).replace('"@"', answer).encode()
    second = await rounds.client.send(body, make_headers(message), method="tools/call")
    if text is None:
        assert (second.status, second.error["code"]) == (400, -32602)
        return
    more = {"requestState": second.result["requestState"], "inputResponses": {"b": accept(value="ok")}}
    assert (await rounds.once("tools/call", {"name": "t", **more})).text == text


async def test_a_retry_may_differ_in_what_a_state_is_not_bound_to() -> None:
    # MR-13, MR-15: id, progress token, log level, order of arguments, even capabilities, since nothing is asked any more
    server = Server("s", keys=[KEY])

    @server.tool
    async def t(a: int, b: int, ctx: Context) -> str:
        return f"{a}{b}{(await ctx.elicit('Name?', str, key='k')).value}"

    @server.prompt
    async def p(a: str, b: str, ctx: Context) -> str:
        return a + b + (await ctx.elicit("Name?", str, key="k")).value

    client = Client(asgi(server))
    ways: list[tuple[str, JSON]] = [
        ("tools/call", {"name": "t", "arguments": {"a": 1, "b": 2}}),
        ("prompts/get", {"name": "p", "arguments": {"a": "1", "b": "2"}}),
    ]
    for method, params in ways:
        first = await client.request(method, params, request_id=1, meta=make_meta(EVERYTHING, progressToken="x", logLevel="debug"))
        more = {"requestState": first.result["requestState"], "inputResponses": {"k": accept(value="!")}}
        turned = dict(reversed(params["arguments"].items()))
        again = await client.request(method, {**params, "arguments": turned, **more}, request_id="two", meta=make_meta({}, progressToken=7))
        assert "12!" in json.dumps(again.result)


async def test_a_state_that_may_be_taken_once_is_taken_once_by_many() -> None:
    # MR-08
    server = Server("s", single_use=True)
    log: list[str] = []
    add_asking_tool(server, log)
    client = Client(asgi(server))
    first = await client.call("t", meta=make_meta(EVERYTHING))
    (key,) = first.result["inputRequests"]
    params = {"name": "t", "requestState": first.result["requestState"], "inputResponses": {key: accept(value="v")}}
    answers = await asyncio.gather(*[client.request("tools/call", params, meta=make_meta(EVERYTHING)) for _ in range(20)])
    assert sum("result" in answer.message for answer in answers) == 1
    assert log == ["tool", "tool"]


@pytest.mark.parametrize("ttl", [float("inf"), float("nan"), 0, "5"])
def test_a_time_that_is_none_is_refused_when_the_server_is_made(ttl: Any) -> None:
    with pytest.raises(RegistrationError, match="request_state_ttl"):
        Server("s", request_state_ttl=ttl)


# Failures of several asks at once


async def test_what_a_client_lacks_is_said_also_where_two_asks_of_a_group_miss_it() -> None:
    # MR-05
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sample("2 + 2?"))
            group.create_task(ctx.roots())

    answer = await Rounds(asgi(server), respond, capabilities={"elicitation": {}}).call("t")
    assert (answer.status, answer.error["code"]) == (400, -32021)
    assert answer.error["data"] == {"requiredCapabilities": {"sampling": {}}}


@virtual_time
async def test_a_client_that_answers_none_of_a_group_fails_the_tool_in_band() -> None:
    # EL-15
    server = Server("s", ask_timeout=5)

    @server.tool
    async def t(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.elicit("A?"))
            group.create_task(ctx.elicit("B?"))

    session = await connect(server)
    assert (await session.start(session.make_call("t", {})).end()).result["isError"] is True


@virtual_time
async def test_what_can_not_ask_can_not_ask_in_a_session_either() -> None:
    # MR-02
    server = Server("s")
    _ = server.prompt(_greet, name="p")

    @server.complete("p", "city")
    async def city(text: str, ctx: Context) -> list[str]:
        return [text, (await ctx.elicit("Which?", str)).value]

    params = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "city", "value": ""}}
    modern = await Rounds(asgi(server), respond).once("completion/complete", params)
    old = await (await connect(server)).request("completion/complete", params)
    assert modern.error["code"] == old.error["code"] == -32603


def _greet(city: str) -> str:
    return city
