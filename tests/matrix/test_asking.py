"""Asking the client in the middle of a function, on the current protocol: what goes out together, what is remembered, what is refused."""

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from asgi_driver import JSON, Client, make_meta
from rounds import EVERYTHING, Rounds, accept
from shapes import Region, Shapes, respond

from callboard import CacheHint, Context, Fail, NeedInput, Outcome, Request, Server, Service, asgi
from callboard.core.inputs import MAX_ROUNDS
from callboard.errors import Reason

KEY_1, KEY_2 = "k" * 32, "l" * 32


@pytest.fixture
def shapes() -> Shapes:
    return Shapes()


@pytest.mark.parametrize(
    ("tool", "rounds", "text"),
    [
        ("plain", [1], "eu 1"),
        ("guarded", [1], "eu"),
        ("stubborn", [1], "eu"),
        ("together", [2], "eu text"),
        ("after_io", [1, 1], "eu text"),
        ("after_once", [2], "eu fetchedtext"),
        ("grouped", [3], "text text four"),
        ("timed", [1], "eu"),
        ("looped", [1, 1, 1], "text text text"),
        ("keyed", [2], "text text"),
        ("everything", [2], "['file:///a'] accept"),
        ("threaded", [1], "eu"),
        ("depending", [1, 1], "eu text"),
        ("abandoned", [], "done without it"),
    ],
)
async def test_every_shape_of_asking(shapes: Shapes, tool: str, rounds: list[int], text: str) -> None:
    # MR-01, MR-03, MR-04, MR-09, JR-22, JR-26
    client = Rounds(asgi(shapes.server), respond)
    answer = await client.call(tool)
    assert answer.text == text
    assert [len(asked) for asked in client.asked] == rounds
    assert len(set(client.states)) == len(client.states)
    assert "swallowed" not in "".join(shapes.log)


async def test_teardown_runs_in_each_round_and_once_saves_what_it_made(shapes: Shapes) -> None:
    client = Rounds(asgi(shapes.server), respond)
    await client.call("guarded")
    assert shapes.log == ["closed", "closed"]
    shapes.log.clear()
    assert (await client.call("after_once")).text == "eu fetchedtext"
    assert shapes.log == ["fetch"]


async def test_once_and_the_chain_last_through_all_rounds(shapes: Shapes) -> None:
    client = Rounds(asgi(shapes.server), respond)
    first = (await client.call("counted")).text
    assert first.startswith("1 text text ")
    assert shapes.log == ["bump"]
    second = (await client.call("counted")).text
    assert second.startswith("2 text text ")
    assert first.split()[-1] != second.split()[-1], "another call is another chain"


async def test_a_failure_beside_an_ask_is_the_calls(shapes: Shapes) -> None:
    answer = await Rounds(asgi(shapes.server), respond).call("with_failure")
    assert answer.result["isError"] is True
    assert answer.text == "broken"


async def test_equal_asks_that_wait_together_need_keys(shapes: Shapes, caplog: pytest.LogCaptureFixture) -> None:
    answer = await Client(asgi(shapes.server)).call("twice", meta=_meta())
    assert answer.error["code"] == -32603
    assert "give each a key= of its own" in caplog.text


async def test_a_key_names_one_ask(shapes: Shapes, caplog: pytest.LogCaptureFixture) -> None:
    answer = await Rounds(asgi(shapes.server), respond).call("one_key")
    assert answer.error["code"] == -32603
    assert "number them" in caplog.text


ODD: list[tuple[Any, str]] = [
    (lambda ctx: ctx.once("k", 5), r"ctx.once('k') takes a function, async or not, that makes the value, not int."),
    (lambda ctx: ctx.once("k", object), "ctx.once('k'): its value has no JSON form"),
    (lambda _: NeedInput({"k": {"method": "roots/list"}}, object()), "NeedInput: state has no JSON form"),
    (lambda _: NeedInput({"k": {"method": "elicit"}}), "NeedInput: the request of 'k' is a mapping with `params` and a `method`"),
    (lambda _: NeedInput({"k": 5}), "NeedInput: the request of 'k' is a mapping with `params` and a `method`"),
    (lambda _: NeedInput({5: {"method": "roots/list"}}), "NeedInput: a key is a text, not 5"),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("make", "text"), ODD)
async def test_the_log_names_what_makes_no_sense(make: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> Any:
        made = make(ctx)
        return made if isinstance(made, NeedInput) else await made

    answer = await Client(asgi(server)).call("t", meta=_meta())
    assert answer.error["code"] == -32603
    assert "tools/call 't' failed, error id" in caplog.text
    assert text in caplog.text


async def test_rounds_are_bounded(shapes: Shapes) -> None:
    # MR-09
    client = Rounds(asgi(shapes.server), respond)
    answer = await client.call("endless")
    assert answer.error["code"] == -32603
    assert str(MAX_ROUNDS) in answer.error["message"]
    assert len(client.asked) == MAX_ROUNDS


@pytest.mark.parametrize(
    ("tool", "capabilities", "needed"),
    [
        ("plain", {}, {"elicitation": {}}),
        ("plain", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("everything", {"roots": {}, "elicitation": {}}, {"elicitation": {"url": {}}}),
        ("everything", {"elicitation": {"url": {}}}, {"roots": {}}),
        ("grouped", {"elicitation": {}}, {"sampling": {}}),
    ],
)
async def test_what_a_client_did_not_declare_is_not_asked(shapes: Shapes, tool: str, capabilities: JSON, needed: JSON) -> None:
    # MR-05, EL-02, scenario 44
    client = Rounds(asgi(shapes.server), respond, capabilities=capabilities)
    answer = await client.call(tool)
    assert answer.status == 400
    assert answer.error["code"] == -32021
    assert answer.error["data"] == {"requiredCapabilities": needed}
    assert client.asked == []


async def test_a_function_may_do_without(shapes: Shapes) -> None:
    answer = await Rounds(asgi(shapes.server), respond, capabilities={}).call("fallback")
    assert answer.text == "MISSING_CAPABILITY {'requiredCapabilities': {'elicitation': {}}}"


@pytest.mark.parametrize(("action", "text"), [("decline", "The user declined."), ("cancel", "The user gave no answer.")])
async def test_a_user_may_say_no(shapes: Shapes, action: str, text: str) -> None:
    # EL-15
    answer = await Rounds(asgi(shapes.server), lambda _key, _request: {"action": action}).call("plain")
    assert answer.result["isError"] is True
    assert answer.text == text


async def test_missing_answers_are_asked_again_and_unknown_keys_ignored(shapes: Shapes) -> None:
    # MR-10
    seen: list[str] = []

    def forgetful(key: str, request: JSON) -> JSON | None:
        seen.append(request["params"]["message"])
        return None if request["params"]["message"] == "B?" and seen.count("B?") == 1 else respond(key, request)

    shapes.server.tool(_two, name="two")
    client = Rounds(asgi(shapes.server), forgetful)
    assert (await client.call("two")).text == "text text"
    assert [sorted(_messages(asked)) for asked in client.asked] == [["A?", "B?"], ["B?"]]

    first = await client.once("tools/call", {"name": "plain"})
    (key,) = first.result["inputRequests"]
    more = {"inputResponses": {key: accept(region="us"), "other": accept(a=1), "": {}}, "requestState": first.result["requestState"]}
    assert (await client.once("tools/call", {"name": "plain", **more})).text == "us 1"


async def _two(ctx: Context) -> str:
    a, b = await asyncio.gather(ctx.elicit("A?", str), ctx.elicit("B?", str))
    return f"{a.value} {b.value}"


def _messages(asked: JSON) -> list[str]:
    return [request["params"]["message"] for request in asked.values()]


def _meta() -> JSON:
    return make_meta(EVERYTHING)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"action": "maybe"}, "action"),
        ({}, "action"),
        ({"action": "accept"}, "region"),
        (accept(region="secret-place"), "region"),
        (accept(region="eu", count="secret-place"), "count"),
        (accept(region="eu", count=1.5), "count"),
        ({"action": "accept", "content": []}, "fit"),
    ],
)
async def test_answers_that_do_not_fit_are_refused(shapes: Shapes, result: JSON, said: str) -> None:
    # MR-10, EL-14
    for tool in ("plain", "guarded"):
        answer = await Rounds(asgi(shapes.server), lambda _key, _request: result).call(tool)
        assert answer.status == 400
        assert answer.error["code"] == -32602
        assert said in answer.error["message"]
        assert "secret-place" not in answer.error["message"]


@pytest.mark.parametrize("responses", [{"which": 12345}, {"which": None}, {"which": []}, None, [], "x"])
async def test_malformed_responses_are_refused_before_anything_runs(shapes: Shapes, responses: Any) -> None:
    # MR-10
    answer = await Client(asgi(shapes.server)).request("tools/call", {"name": "guarded", "inputResponses": responses}, meta=_meta())
    assert answer.status == 400
    assert answer.error["code"] == -32602
    assert shapes.log == []


async def test_answers_without_a_state_count_by_key_and_schema() -> None:
    # MR-12: a state may have been left out by either side
    server = Server("s")

    @server.tool
    async def name(ctx: Context) -> str:
        return (await ctx.elicit("Name?", Region, key="who")).value.region

    client = Rounds(asgi(server), respond)
    given = {"who": accept(region="us"), "else": accept(), "more": {"action": "x"}}
    assert (await client.once("tools/call", {"name": "name", "inputResponses": given})).text == "us"
    wrongs: list[JSON] = [{"wrong_key": accept(region="us")}, {"who": accept(region="nowhere")}, {"who": {}}]
    for wrong in wrongs:
        again = await client.once("tools/call", {"name": "name", "inputResponses": wrong})
        assert again.result["resultType"] == "input_required"
        assert list(again.result["inputRequests"]) == ["who"]


async def test_an_answer_never_fits_a_changed_question() -> None:
    """A redeploy in the middle: the same key now asks something else."""
    texts = ["Delete the draft?", "Delete everything?"]

    def make() -> Server:
        server = Server("s", keys=[KEY_1])
        text = texts.pop(0)

        @server.tool
        async def delete(ctx: Context) -> str:
            await ctx.elicit(text, key="sure")
            return text

        return server

    before, after = Rounds(asgi(make()), respond), Rounds(asgi(make()), respond)
    first = await before.once("tools/call", {"name": "delete"})
    more = {"inputResponses": {"sure": accept()}, "requestState": first.result["requestState"]}
    again = await after.once("tools/call", {"name": "delete", **more})
    assert again.result["resultType"] == "input_required"
    assert _messages(again.result["inputRequests"]) == ["Delete everything?"]


async def test_resources_and_prompts_ask_too_and_nothing_else_does() -> None:
    # MR-02, MR-16, RS-06, PM-06, scenario 42
    server = Server("s", cache=CacheHint(60_000, "public"))

    @server.resource("doc://a")
    async def doc(ctx: Context) -> str:
        return (await ctx.elicit("Which?", Region)).value.region

    @server.resource("doc://{name}/b")
    async def template(name: str, ctx: Context) -> str:
        return name + (await ctx.elicit("Which?", Region)).value.region

    @server.prompt
    async def ask(ctx: Context, city: str) -> str:
        return city + (await ctx.elicit("Which?", Region)).value.region

    @server.complete("ask", "city")
    async def city(text: str, ctx: Context) -> list[str]:
        return [text + (await ctx.elicit("Which?", Region)).value.region]

    client = Rounds(asgi(server), respond)
    doc_answer = await client.run("resources/read", {"uri": "doc://a"})
    assert doc_answer.result["contents"][0]["text"] == "eu"
    assert (doc_answer.result["ttlMs"], doc_answer.result["cacheScope"]) == (0, "private")
    assert (await client.run("resources/read", {"uri": "doc://x/b"})).result["contents"][0]["text"] == "xeu"
    prompt = await client.run("prompts/get", {"name": "ask", "arguments": {"city": "Ulm"}})
    assert prompt.result["messages"][0]["content"]["text"] == "Ulmeu"
    assert len(client.asked) == 1
    answer = await client.run(
        "completion/complete", {"ref": {"type": "ref/prompt", "name": "ask"}, "argument": {"name": "city", "value": ""}}
    )
    assert answer.error["code"] == -32603


class Manual:
    """A server that asks by hand, on all three methods."""

    def __init__(self, **options: Any) -> None:
        self.seen: list[Any] = []
        self.server = Server("manual", **options)
        request = {"method": "elicitation/create", "params": {"mode": "form", "message": "Sure?", "requestedSchema": _NOTHING}}

        def ask(ctx: Context) -> NeedInput | None:
            self.seen.append(ctx.input)
            return NeedInput({"sure": request}, state={"n": 1, "pair": (1, 2)}) if ctx.input is None else None

        @self.server.tool
        async def tool(ctx: Context, place: str = "") -> str | NeedInput:
            return ask(ctx) or f"{place} {ctx.input}"

        @self.server.resource("doc://{name}")
        async def doc(name: str, ctx: Context) -> str | NeedInput:
            return ask(ctx) or name

        @self.server.prompt
        async def prompt(ctx: Context) -> str | NeedInput:
            return ask(ctx) or "done"


_NOTHING: JSON = {"type": "object", "properties": {}}
_MANUAL: list[tuple[str, JSON]] = [
    ("tools/call", {"name": "tool", "arguments": {"place": "here"}}),
    ("resources/read", {"uri": "doc://x"}),
    ("prompts/get", {"name": "prompt"}),
]


@pytest.mark.parametrize(("method", "params"), _MANUAL)
async def test_by_hand_state_comes_back_as_json(method: str, params: JSON) -> None:
    # scenario 42, MR-07
    manual = Manual()
    await Rounds(asgi(manual.server), respond).run(method, params)
    first, second = manual.seen
    assert first is None
    assert second.state == {"n": 1, "pair": [1, 2]}
    assert second.responses == {"sure": {"action": "accept", "content": {}}}


def _tampered(state: str) -> list[str]:
    return [
        state + "-TAMPERED",
        state[:-2],
        "",
        "v1.",
        state.replace("v1.", "v2."),
        state[:20] + ("A" if state[20] != "A" else "B") + state[21:],
    ]


@pytest.mark.parametrize(("method", "params"), _MANUAL)
async def test_a_state_opens_for_its_own_request_alone(method: str, params: JSON) -> None:
    # scenario 43, SA28, MR-06, MR-07, MR-14, EL-12, SC-04: one frozen error, before anything of the author's runs
    manual = Manual()
    app = asgi(manual.server, principal=lambda scope: scope["state"]["principal"])
    ann, bob = (Rounds(app, respond, principal=name) for name in ("ann", "bob"))
    first = await ann.once(method, params)
    state = first.result["requestState"]
    manual.seen.clear()
    attempts = [(ann, method, params, changed) for changed in _tampered(state)]
    attempts += [(bob, method, params, state)]
    attempts += [(ann, other, others, state) for other, others in _MANUAL if other != method]
    if method == "tools/call":
        attempts += [(ann, method, {**params, "arguments": {"place": "there"}}, state), (ann, method, {"name": "tool"}, state)]
    answers = [await who.once(where, {**what, "requestState": text}) for who, where, what, text in attempts]
    assert manual.seen == []
    assert {answer.status for answer in answers} == {400}
    assert len({str(answer.error) for answer in answers}) == 1
    assert answers[0].error["code"] == -32602


async def test_a_state_ends() -> None:
    now = [1000.0]
    manual = Manual(request_state_ttl=60)
    manual.server.seals.clock = lambda: now[0]
    client = Rounds(asgi(manual.server), respond)
    state = (await client.once("tools/call", {"name": "tool"})).result["requestState"]
    now[0] += 59
    assert (await client.once("tools/call", {"name": "tool", "requestState": state})).result["resultType"] == "complete"
    now[0] += 1
    assert (await client.once("tools/call", {"name": "tool", "requestState": state})).error["code"] == -32602


async def test_a_state_may_be_taken_once_only() -> None:
    # MR-08
    for single_use in (False, True):
        client = Rounds(asgi(Manual(single_use=single_use).server), respond)
        state = (await client.once("tools/call", {"name": "tool"})).result["requestState"]
        first, second = [await client.once("tools/call", {"name": "tool", "requestState": state}) for _ in range(2)]
        assert first.result["resultType"] == "complete"
        assert ("error" in second.message) is single_use


async def test_keys_rotate() -> None:
    # scenario 46
    old, both, new = (Rounds(asgi(Manual(keys=keys).server), respond) for keys in ([KEY_1], [KEY_2, KEY_1], [KEY_2]))
    state = (await old.once("tools/call", {"name": "tool"})).result["requestState"]
    assert (await both.once("tools/call", {"name": "tool", "requestState": state})).result["resultType"] == "complete"
    assert (await new.once("tools/call", {"name": "tool", "requestState": state})).error["code"] == -32602
    state = (await both.once("tools/call", {"name": "tool"})).result["requestState"]
    assert (await new.once("tools/call", {"name": "tool", "requestState": state})).result["resultType"] == "complete"


async def test_states_of_another_process_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    one, other = (Rounds(asgi(Manual().server), respond) for _ in range(2))
    state = (await one.once("tools/call", {"name": "tool"})).result["requestState"]
    for text in (state, state, "garbage"):
        assert (await other.once("tools/call", {"name": "tool", "requestState": text})).error["code"] == -32602
    assert [record.getMessage() for record in caplog.records if "same keys" in record.getMessage()] != []
    assert caplog.text.count("same keys") == 1


@pytest.mark.parametrize("several", [False, True])
async def test_keys_that_are_required_and_absent(several: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    # scenario 45
    if several:
        monkeypatch.setenv("WEB_CONCURRENCY", "4")
    client = Rounds(asgi(Manual(keys=None if several else ()).server), respond)
    with caplog.at_level(logging.ERROR):
        answer = await client.once("tools/call", {"name": "tool"})
    assert answer.error["code"] == -32603
    assert "keys" in caplog.text
    assert "keys" not in answer.error["message"]


async def test_a_layer_may_ask() -> None:
    def approving(inner: Service) -> Service:
        async def serve(request: Request, ctx: Context) -> Outcome:
            if request.method != "tools/call":
                return await inner(request, ctx)
            if not (await ctx.elicit("Allow?", key="allow")).accepted:
                return Fail(Reason.INVALID_PARAMS, "not allowed")
            outcome = await inner(request, ctx)
            seen.append(type(outcome).__name__)
            return outcome

        return serve

    seen: list[str] = []
    shapes = Shapes(middleware=[approving])
    client = Rounds(asgi(shapes.server), respond)
    assert (await client.call("plain")).text == "eu 1"
    assert list(client.asked[0]) == ["allow"]
    assert seen == ["NeedInput", "Reply"], "layers see what a suspended call comes to"
    assert (await Rounds(asgi(shapes.server), lambda _k, _r: {"action": "decline"}).call("plain")).error["code"] == -32602


async def test_a_suspended_call_leaves_nothing_behind(shapes: Shapes) -> None:
    client = Rounds(asgi(shapes.server), respond)
    before = asyncio.all_tasks()
    for tool in ("grouped", "together", "timed", "abandoned", "threaded"):
        await client.once("tools/call", {"name": tool})
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_an_address_is_sent_as_it_is_and_accepting_it_says_nothing_more() -> None:
    # EL-03, EL-08
    server = Server("s")

    @server.tool
    async def pay(url: str, ctx: Context) -> str:
        answer = await ctx.elicit_url("Pay here", url)
        return f"{answer.action} {answer.accepted}"

    client = Rounds(asgi(server), respond)
    assert (await client.call("pay", {"url": "https://pay.example/7"})).text == "accept True"
    ((request,),) = [list(asked.values()) for asked in client.asked]
    assert request["params"] == {"mode": "url", "message": "Pay here", "url": "https://pay.example/7"}
    for wrong in ("pay.example", "javascript:alert(1)", "file:///etc/passwd", ""):
        assert (await client.call("pay", {"url": wrong})).error["code"] == -32603


async def test_forms_of_types_never_use_what_will_go() -> None:
    # DP-08
    server = Server("s")

    @server.tool
    async def choose(ctx: Context) -> str:
        chosen: str = (await ctx.elicit("Which?", Annotated[Literal["a", "b"], {"a": "An a", "b": "A b"}])).value
        return chosen

    client = Rounds(asgi(server), lambda _key, _request: accept(value="a"))
    assert (await client.call("choose")).text == "a"
    assert "enumNames" not in str(client.asked)


@pytest.mark.parametrize("make", [lambda: (1, 2), lambda: Region("eu"), {1: 2}.keys])
async def test_once_says_what_it_would_give_back_as_something_else(make: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s")

    @server.tool
    async def remember(ctx: Context) -> str:
        return str(await ctx.once("k", make))

    assert (await Rounds(asgi(server), respond).call("remember")).error["code"] == -32603
    assert "ctx.once('k')" in caplog.text
