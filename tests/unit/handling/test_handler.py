"""`Handler` without any transport: `handle_method`, what is checked when it is made, and the results that make no sense."""

import copy
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from handlers import Counter, Jobs
from msgspec import Struct
from msgspec.json import decode, encode
from virtual_time import virtual_time

from callboard import Fail, Reason, RegistrationError, Server, ToolError, types
from callboard.core.outcome import Outcome
from callboard.handler import Accepted, Channel, Deferred, Handler, HandlerSession, Hello, NeedInput, Reply, Stop, Stream, handle_method
from callboard.handling.handler import adapt, is_handler
from callboard.server.middleware import Service
from callboard.tasks import MemoryTasks

T = TypeVar("T")


class Cart(Struct):
    """A state that is kept as bytes."""

    items: list[str] = []


class Seat(Struct):
    """A state that can't be made without arguments."""

    number: int


class Returning(Handler[Any]):
    """Returns whatever a test wants."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def list_tools(self, ctx: Channel, state: Any) -> Any:
        return [{"name": "give"}]

    def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Deferring(Returning):
    """Has somewhere that its tasks are kept."""

    server_options = {"tasks": MemoryTasks()}  # noqa: RUF012 - as an author writes it


async def give(value: Any) -> tuple[Outcome, HandlerSession]:
    """What a call comes to that returns a value."""
    return await handle_method(Returning(value), "tools/call", {"name": "give"})


def fields(outcome: Outcome) -> dict[str, Any]:
    """A result as the client reads it."""
    assert isinstance(outcome, Reply), outcome
    plain: dict[str, Any] = decode(encode(outcome.value))
    return plain


# handle_method


@virtual_time
async def test_a_counter_is_tested_as_a_function() -> None:
    """Scenarios 1, 2, 3 and 4."""
    counter = Counter()
    opened, session = await handle_method(counter, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}})
    assert fields(opened)["serverInfo"]["name"] == "counter"
    assert (session.state, session.hello.version, session.hello.capabilities) == (0, "2025-11-25", {"roots": {}})
    for tool, state in (("bump", 1), ("bump", 2), ("fail", 3), ("crash", 3), ("nonsense", 3), ("bump", 4)):
        outcome, session = await handle_method(counter, "tools/call", {"name": tool}, 1, session)
        assert session.state == state
        assert isinstance(outcome, Fail) == (tool in {"crash", "nonsense"})
    alone, stateless = await handle_method(counter, "tools/call", {"name": "bump"})
    assert (fields(alone)["content"][0]["text"], stateless) == ("1", HandlerSession())


@virtual_time
async def test_it_changes_nothing_that_it_was_given() -> None:
    class Shop(Handler[Cart]):
        def list_tools(self, ctx: Channel, state: Cart) -> Any:
            return [{"name": "add"}]

        def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Cart) -> str:
            state.items.append("lamp")
            return str(len(state.items))

    before = HandlerSession(Cart(["chair"]))
    kept = copy.deepcopy(before)
    outcomes = [await handle_method(Shop(), "tools/call", {"name": "add"}, 1, before) for _ in range(2)]
    assert [fields(outcome)["content"][0]["text"] for outcome, _ in outcomes] == ["2", "2"]
    assert [session.state.items for _, session in outcomes] == [["chair", "lamp"]] * 2
    assert before == kept


@pytest.mark.parametrize(
    ("method", "params", "reason"),
    [
        ("tools/fry", {}, Reason.METHOD_NOT_FOUND),
        ("prompts/list", {}, Reason.METHOD_NOT_FOUND),
        ("tools/call", {"name": 5}, Reason.INVALID_PARAMS),
        ("tools/call", {"name": "fry"}, Reason.UNKNOWN_TOOL),
        ("tools/list", {"cursor": "x"}, Reason.CURSOR),
    ],
)
@virtual_time
async def test_what_a_client_gets_wrong_is_a_fail(method: str, params: dict[str, Any], reason: Reason) -> None:
    outcome, _ = await handle_method(Counter(), method, params)
    assert isinstance(outcome, Fail)
    assert outcome.reason is reason


@pytest.mark.parametrize("begin", [Stop("no"), ValueError("hunter2"), Fail.custom(3, "No.")])
@virtual_time
async def test_an_init_that_fails_leaves_no_session(begin: Any) -> None:
    outcome, session = await handle_method(Counter(begin), "initialize")
    assert isinstance(outcome, Fail)
    assert "hunter2" not in outcome.text
    assert session == HandlerSession()
    again, _ = await handle_method(Counter(begin), "tools/call", {"name": "bump"})
    assert isinstance(again, Fail)
    assert again.reason is outcome.reason


@virtual_time
async def test_a_stream_is_run_to_its_end() -> None:
    outcome, _ = await handle_method(Jobs(), "tools/call", {"name": "work"})
    assert fields(outcome)["content"][0]["text"] == "done: 3"


@virtual_time
async def test_an_outcome_that_asks_is_handed_out() -> None:
    params = {"message": "Really?", "requestedSchema": {"type": "object", "properties": {}}}
    need = NeedInput({"sure": {"method": "elicitation/create", "params": params}})
    hello = Hello(capabilities={"elicitation": {"form": {}}})
    outcome, _ = await handle_method(Returning(need), "tools/call", {"name": "give"}, 1, HandlerSession(None, hello))
    assert isinstance(outcome, NeedInput)
    assert set(outcome.requests) == {"sure"}


# Returns


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {"content": []}),
        ("hi", {"content": [{"type": "text", "text": "hi"}]}),
        (types.text("hi"), {"content": [{"type": "text", "text": "hi"}]}),
        ({"content": [], "structuredContent": None}, {"content": [{"type": "text", "text": "null"}], "structuredContent": None}),
        ({"structured_content": False, "content": "no"}, {"content": [{"type": "text", "text": "no"}], "structuredContent": False}),
        (5, {"content": [{"type": "text", "text": "5"}], "structuredContent": 5}),
        (Cart(["a"]), {"content": [{"type": "text", "text": '{"items":["a"]}'}], "structuredContent": {"items": ["a"]}}),
        (types.CallToolResult(content=[types.text("hi")]), {"content": [{"type": "text", "text": "hi"}]}),
        ({"content": [], "later": {"some_key": 1}}, {"content": [], "later": {"some_key": 1}}),
        ([{"type": "hologram", "beam_width": 3}], {"content": [{"type": "hologram", "beam_width": 3}]}),
    ],
)
@virtual_time
async def test_what_a_call_may_return(value: Any, expected: dict[str, Any]) -> None:
    # TL-09, TL-10, TL-11
    outcome, _ = await give(value)
    assert fields(outcome) == {**expected, "isError": False}


@pytest.mark.parametrize("wrap", [lambda error: error, Reply, lambda error: ExceptionGroup("", [error])])
@virtual_time
async def test_a_tool_error_may_be_raised_and_returned(wrap: Callable[[Exception], Any]) -> None:
    outcome, _ = await give(wrap(ToolError("No paper.", structured={"left": 0})))
    assert fields(outcome) == {"content": [{"type": "text", "text": "No paper."}], "structuredContent": {"left": 0}, "isError": True}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"text": "data"}, "structuredContent"),
        ([5], "content blocks"),
        (b"x", "bytes"),
        ({"content": [], "is_error": True, "isError": False}, "twice"),
        (Reply(Stop("x")), "not Stop"),
        (Reply(Stream()), "Stream has no place"),
        (Reply(Reply("x")), "Reply has no place"),
        (Accepted(), "Accepted has no place"),
        (object(), "JSON"),
        (float("nan"), "JSON form"),
    ],
)
@virtual_time
async def test_what_makes_no_sense_is_a_masked_error_with_the_reason_in_the_log(
    value: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcome, _ = await give(value)
    assert isinstance(outcome, Fail)
    assert outcome.reason is Reason.INTERNAL
    assert outcome.text.startswith("Internal error (id ")
    assert text in caplog.text


@virtual_time
async def test_a_task_is_for_clients_that_know_tasks(caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 47, of a handler."""
    # TX-02
    task = Deferred({"taskId": "1", "status": "working"})
    outcome, _ = await give(task)
    assert isinstance(outcome, Fail)
    assert outcome.reason is Reason.MISSING_CAPABILITY
    hello = Hello(capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}})
    allowed, _ = await handle_method(Deferring(task), "tools/call", {"name": "give"}, 1, HandlerSession(None, hello))
    assert allowed is task
    # TX-01, TX-06: nobody could ask about it
    refused, _ = await handle_method(Returning(task), "tools/call", {"name": "give"}, 1, HandlerSession(None, hello))
    assert isinstance(refused, Fail)
    assert "server_options" in caplog.text


class Listing(Handler[Any]):
    """Lists whatever a test wants."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def list_tools(self, ctx: Channel, state: Any) -> Any:
        return self.items

    list_prompts = list_resources = list_resource_templates = list_tools


@pytest.mark.parametrize(
    ("method", "items", "text"),
    [
        ("tools/list", None, "whole list"),
        ("tools/list", "x", "whole list"),
        ("tools/list", {"items": []}, "whole list"),
        ("tools/list", [{"title": "x"}], "item 0: Object missing required field `name`"),
        ("tools/list", [types.Tool(name="x", input_schema={"type": "object"}), 5], "item 1 is a int"),
        ("tools/list", [{"name": "x", "inputSchema": {}, "input_schema": {}}], "twice"),
        ("tools/list", [{"name": "x", "inputSchema": {}}], "type object at its root"),
        ("tools/list", [{"name": "two words"}], "can't name a tool"),
        ("resources/list", [{"name": "x"}], "missing required field `uri`"),
        ("resources/templates/list", [{"name": "x"}], "missing required field `uriTemplate`"),
        ("prompts/list", [{"name": "x", "arguments": [{}]}], "missing required field `name`"),
    ],
)
@virtual_time
async def test_a_list_that_clients_could_not_read_is_refused(method: str, items: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    # TL-04, TL-05, TL-15, RS-03, PM-03
    outcome, _ = await handle_method(Listing(items), method)
    assert isinstance(outcome, Fail)
    assert outcome.reason is Reason.INTERNAL
    assert text in caplog.text


class Sorted(Handler[Any]):
    """Has a third parameter of its own."""

    def list_tools(self, ctx: Channel, state: Any, *, reverse: bool = False) -> Any:
        return [] if reverse else [{"name": "x"}]

    def list_prompts(self, ctx: Channel, state: Any, params: Any = None) -> Any:
        return {"prompts": [{"name": f"after {params['cursor']}"}]}


@virtual_time
async def test_only_params_are_a_third_parameter() -> None:
    listed, _ = await handle_method(Sorted(), "tools/list")
    assert len(fields(listed)["tools"]) == 1
    paged, _ = await handle_method(Sorted(), "prompts/list", {"cursor": "7"})
    assert fields(paged) == {"prompts": [{"name": "after 7"}]}


@virtual_time
async def test_items_are_sent_as_they_are() -> None:
    schema = {"type": "object", "properties": {"input_schema": {"type": "string"}}}
    item = {"name": "x", "inputSchema": schema, "output_schema": {"type": "object"}, "futureField": [1], "meta": {"a_b": 1}}
    outcome, _ = await handle_method(Listing([item]), "tools/list")
    (sent,) = fields(outcome)["tools"]
    assert sent == {
        "name": "x",
        "inputSchema": schema,
        "outputSchema": {"type": "object"},
        "futureField": [1],
        "_meta": {"a_b": 1},
    }


@pytest.mark.parametrize(("value", "text"), [(5, "contents are"), ({"name": "x"}, "contents are"), ([b"x", 5], "contents are")])
@virtual_time
async def test_contents_that_make_no_sense_are_refused(value: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    class Reading(Handler[Any]):
        def read_resource(self, uri: str, ctx: Channel, state: Any) -> Any:
            return value

    outcome, _ = await handle_method(Reading(), "resources/read", {"uri": "a:b"})
    assert isinstance(outcome, Fail)
    assert text in caplog.text


# Registration


class Arity(Handler[Any]):
    def call_tool(self, name: str, state: Any) -> Any: ...  # type: ignore[override] # what an author may get wrong


class ListArity(Handler[Any]):
    def list_tools(self, ctx: Channel) -> Any: ...


class NoMethod(Handler[Any]):
    call_tool = "x"  # type: ignore[assignment] # what an author may get wrong


class NoPage(Handler[Any]):
    page_size = 0


class Stateful(Counter):
    server_options = {"state": Cart}  # noqa: RUF012 - as an author writes it


class Twice(Counter):
    server_options = {"version": "3"}  # noqa: RUF012 - as an author writes it


class NoOption(Counter):
    server_options = {"colour": "red"}  # noqa: RUF012 - as an author writes it


class NoSeat(Handler[Seat]):
    def list_tools(self, ctx: Channel, state: Seat) -> Any: ...


class Unknown(Handler["Nowhere"]):  # type: ignore[name-defined]
    def list_tools(self, ctx: Channel, state: Any) -> Any: ...


@pytest.mark.parametrize(
    ("served", "text"),
    [
        (Arity, r"Arity\.call_tool is called as call_tool\(name, arguments, ctx, state\)"),
        (ListArity, r"list_tools\(ctx, state, params\)"),
        (NoMethod, "must be a method"),
        (NoPage, "page_size"),
        (Stateful, "state is no option"),
        (Twice, "version is an attribute"),
        (NoOption, "colour"),
        (NoSeat, r"init\(hello\)"),
        (Unknown, "Nowhere"),
        (Handler, "callboard.Handler"),
        (lambda: Server("x"), "callboard.Handler"),
    ],
)
def test_a_handler_that_can_not_work_is_refused_when_it_is_served(served: Any, text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        adapt(served)


def test_components_are_refused() -> None:
    server = Counter().server
    adds: list[Callable[[], Any]] = [
        lambda: server.tool(lambda: None, name="x"),
        lambda: server.provide(lambda ctx: []),
        lambda: server.mount("x", Server("other")),
    ]
    for add in adds:
        with pytest.raises(RegistrationError, match="callbacks"):
            add()
    with pytest.raises(RegistrationError, match="handler"):
        Server("other").mount("x", server)


def test_one_handler_is_one_server() -> None:
    counter = Counter()
    assert adapt(counter) is adapt(counter) is counter.server
    assert adapt(Counter) is not adapt(Counter)
    assert [is_handler(value) for value in (counter, Counter, Handler, Server("x"), 5)] == [True, True, False, False, False]


class Base(Handler[T], Generic[T]):
    """A generic handler in between."""

    def list_tools(self, ctx: Channel, state: T) -> Any:
        return []


class OfCart(Base[Cart]):
    """Says its state by its base."""


class OfForward(Base["Cart"]):
    """Says it by name."""


class Late(OfCart):
    """Says nothing more."""


@pytest.mark.parametrize("kind", [OfCart, OfForward, Late])
@virtual_time
async def test_the_state_is_found_through_bases(kind: type[Handler[Any]]) -> None:
    _, session = await handle_method(kind(), "initialize")
    assert session.state == Cart()


@pytest.mark.parametrize("kind", [Base, Handler[Any], Handler])
@virtual_time
async def test_without_a_type_a_state_is_none(kind: Any) -> None:
    class Plain(kind):  # type: ignore[misc] # a computed base
        def list_tools(self, ctx: Channel, state: Any) -> Any:
            return []

    _, session = await handle_method(Plain(), "initialize")
    assert session.state is None


@virtual_time
async def test_options_of_a_server_are_attributes() -> None:
    seen: list[str] = []

    def layer(service: Service) -> Service:
        async def watch(request: Any, ctx: Any) -> Any:
            seen.append(request.method)
            return await service(request, ctx)

        return watch

    class Full(Counter):
        name = "full"
        version = "2"
        title = "Full"
        description = "All of it."
        website = "https://example.com"
        middleware = (layer,)
        server_options = {"mask_errors": False}  # noqa: RUF012 - as an author writes it

    opened, _ = await handle_method(Full(), "initialize")
    assert fields(opened)["serverInfo"] == {
        "name": "full",
        "version": "2",
        "title": "Full",
        "description": "All of it.",
        "websiteUrl": "https://example.com",
    }
    outcome, _ = await handle_method(Full(), "tools/call", {"name": "crash"})
    assert isinstance(outcome, Fail)
    assert "hunter2" in outcome.text
    assert seen == ["tools/call"]


def test_a_callback_that_is_misspelled_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Typo(Handler):
        name = "typo"

        def list_tool(self, ctx: Any, state: Any) -> list[Any]:
            return []

        def list_tool_names(self) -> list[str]:
            return []

    _ = Typo().server
    assert [record.getMessage() for record in caplog.records] == [
        f"{Typo.__qualname__}.list_tool is no callback, so that nobody calls it; did you mean list_tools?"
    ]
