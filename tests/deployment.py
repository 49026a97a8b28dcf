"""A server that runs one program for every client, and what must come of each round."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asgi_driver import Answer, Client, make_meta, make_request
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from programs import JSON, Fate, Node, Question, Said, Served
from rounds import EVERYTHING, accept, sampled
from virtual_time import settle

from callboard import Context, Layer, Outcome, Request, Server, Service, asgi
from callboard.stores.memory import MemoryStore

TTL = 100
METHODS = ("tools/call", "prompts/get", "resources/read")


@dataclass(frozen=True)
class Call:
    """What a state is bound to.

    Attributes:
        method: One of `METHODS`.
        number: The argument.
        principal: Who calls.
    """

    method: str = "tools/call"
    number: int = 1
    principal: str | None = None

    def params(self, *, is_swapped: bool = False) -> JSON:
        """Parameters of the request; swapped ones are the same to JSON."""
        if self.method == "resources/read":
            return {"uri": f"run://{self.number}"}
        pairs = [("number", self.number if self.method == "tools/call" else str(self.number)), ("other", "é")]
        return {"name": "run", "arguments": dict(reversed(pairs) if is_swapped else pairs)}


async def wait_for_it(service: Service, request: Request, ctx: Context) -> Outcome:
    """A layer with a task of its own."""
    return await asyncio.wait_for(service(request, ctx), 3600)


async def limit_it(service: Service, request: Request, ctx: Context) -> Outcome:
    """A layer with a time limit."""
    async with asyncio.timeout(3600):
        return await service(request, ctx)


async def group_it(service: Service, request: Request, ctx: Context) -> Outcome:
    """A layer that has something else to do meanwhile."""

    async def serve() -> Outcome:
        return await service(request, ctx)

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
        task = group.create_task(serve())
    return task.result()


async def guard_it(service: Service, request: Request, ctx: Context) -> Outcome:
    """A layer that looks at every failure."""
    try:
        return await service(request, ctx)
    except Exception:
        await asyncio.sleep(0)
        raise


@dataclass(frozen=True)
class Frame:
    """What stands around a program.

    Attributes:
        layer: Of the middleware.
        options: Of the tool.
        is_plain: Whether the tool is a `def`.
        token: Where its progress goes; None where nobody wants to know.
    """

    layer: Callable[[Service, Request, Context], Awaitable[Outcome]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    is_plain: bool = False
    token: int | None = None

    @property
    def meta(self) -> JSON:
        """`_meta` of a request."""
        return make_meta(EVERYTHING, logLevel="debug", **({} if self.token is None else {"progressToken": self.token}))


frames = st.builds(
    Frame,
    st.sampled_from([None, None, wait_for_it, limit_it, group_it, guard_it]),
    st.sampled_from([{}, {}, {"timeout": 3600}, {"concurrency": 1}, {"timeout": 3600, "concurrency": 1}]),
    st.sampled_from([False, False, True]),
    st.sampled_from([None, 7]),
)


@dataclass
class Deployment:
    """A server that is stopped and started again, with other keys, another version of its program, at another time.

    Attributes:
        program: What its functions do.
        frame: What stands around it.
        keys: Its keys, the first one seals.
        single_use: Whether a state opens once.
        version: Of the program's texts.
        now: Its clock.
        runs: How often its function has begun.
        bumps: Calls behind `once`.
        awake: What is at work.
    """

    program: Node
    frame: Frame = field(default_factory=Frame)
    keys: list[str] = field(default_factory=lambda: ["0" * 32])
    single_use: bool = False
    version: int = 0
    now: float = 1000.0
    runs: int = 0
    bumps: Counter[str] = field(default_factory=Counter)
    awake: Counter[str] = field(default_factory=Counter)
    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start it, as it is configured now."""
        layers: list[Layer] = [partial(partial, self.frame.layer)] if self.frame.layer else []
        server = Server("runner", keys=self.keys, single_use=self.single_use, store=self.store, request_state_ttl=TTL, middleware=layers)
        server.seals.clock = lambda: self.now

        async def do(ctx: Context) -> str:
            self.runs += 1
            return json.dumps(await self.program.run(Served(ctx, self.version, self.bumps, self.awake)))

        async def run_tool(number: int, other: str, ctx: Context) -> str:
            return await do(ctx)

        def run_plain_tool(number: int, other: str, ctx: Context) -> str:
            return ctx.wait(do(ctx))

        server.tool(name="run", **self.frame.options)(run_plain_tool if self.frame.is_plain else run_tool)

        @server.prompt(name="run")
        async def run_prompt(number: str, other: str, ctx: Context) -> str:
            return await do(ctx)

        @server.resource("run://{number}")
        async def run_resource(number: int, ctx: Context) -> str:
            return await do(ctx)

        self.app = asgi(server, principal=lambda scope: scope["state"]["principal"])

    async def restart(self) -> None:
        """Stop it, and start it as it is configured now."""
        await self.app.aclose()
        self.start()

    async def aclose(self) -> None:
        """Stop it for good, its threads too."""
        await self.app.aclose()

    async def send(self, call: Call, more: Mapping[str, Any], *, is_swapped: bool = False) -> Answer:
        """One round; nothing of it is at work afterwards."""
        client = Client(self.app, state={"principal": call.principal})
        message = make_request(call.method, {**call.params(is_swapped=is_swapped), **more}, meta=self.frame.meta)
        try:
            answer = await client.post(message)
        except asyncio.CancelledError as error:
            raise AssertionError("a suspension got out of the application") from error
        await settle()
        assert not +self.awake, f"asks go on: {self.awake}"
        return answer


def read_value(answer: Answer) -> tuple[bool, Any]:
    """Whether a call failed, and what its program returned."""
    if "error" in answer.message:
        assert answer.error["code"] == -32603, answer.error
        return True, None
    result = answer.result
    assert result.get("resultType", "complete") == "complete", result
    if result.get("isError"):
        return True, None
    if "content" in result:
        return False, json.loads(answer.text)
    text = result["messages"][0]["content"]["text"] if "messages" in result else result["contents"][0]["text"]
    return False, json.loads(text)


def read_questions(requests: Mapping[str, Any]) -> dict[str, Question]:
    """Questions by key."""
    found = {}
    for key, request in requests.items():
        params = request["params"]
        is_sample = request["method"] == "sampling/createMessage"
        text = params["messages"][0]["content"]["text"] if is_sample else params["message"]
        kind, *rest = key.split("-")
        number = rest[1] if len(rest) > 1 else "1"
        question_id = f"{text}#{number}" if kind in {"elicit", "sample"} else key
        found[key] = Question(question_id, text, "sample" if is_sample else "elicit")
    return found


def result_of(question: Question, said: Said) -> JSON:
    """What a client sends."""
    if question.kind == "sample":
        return sampled(said.text)
    return accept(value=said.text) if said.action == "accept" else {"action": said.action}


def sayings(question: Question) -> st.SearchStrategy[Said]:
    """What may be said to a question."""
    accepted = st.builds(Said, st.just("accept"), st.text("ab", max_size=2))
    if question.kind == "sample":
        return accepted
    return st.one_of(accepted, accepted, st.sampled_from([Said("decline"), Said("cancel")]))


def check(fate: Fate, answer: Answer) -> dict[str, Question]:
    """Hold an answer to what must come of the call; what it asks."""
    if "result" in answer.message and answer.result["resultType"] == "input_required":
        asked = read_questions(answer.result["inputRequests"])
        assert asked, "a round that asks nothing never ends"
        unknown = {question.id: question for question in asked.values() if fate.open.get(question.id) != question}
        assert not unknown or fate.is_confused, f"{unknown} asked in vain; open are {fate.open}"
        return asked
    if fate.is_confused and "error" in answer.message:
        assert answer.error["code"] == -32603
        return {}
    assert fate.ended, f"it ended with {answer.message}, and must ask one of {sorted(fate.open)}"
    assert read_value(answer) == (fate.failed, json.loads(json.dumps(fate.value)))
    return {}


def drawn_again(test: Callable[..., None]) -> Callable[[], None]:
    """Run a property twice more where the same choices led to other draws.

    Functions on threads end when they like, and what has been asked by then decides what is drawn next: Hypothesis calls that flaky. Nothing
    that failed is tried again: an assertion that does not hold ends the test at once.
    """

    def try_it() -> None:
        for left in (2, 1, 0):
            try:
                test()
            except FlakyStrategyDefinition:
                if not left:
                    raise
            else:
                return

    try_it.__name__, try_it.__doc__ = test.__name__, test.__doc__
    return try_it
