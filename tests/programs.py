"""Little programs that ask, and a model that says what must come of them.

A program is a tree of what authors write around an ask: sequences, `gather`, `TaskGroup`, loops, `try`, time limits, `ctx.once`. The same tree runs
twice: by a server, whose calls are suspended and run again, and by the model, where an answer is there at once or never.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, Protocol

from hypothesis import strategies as st
from virtual_time import settle

from callboard import Context, ToolError

JSON = dict[str, Any]

Kind = Literal["elicit", "sample"]


@dataclass(frozen=True)
class Said:
    """What a user or a model says.

    Attributes:
        action: As of an elicitation; a model accepts.
        text: What was filled in.
    """

    action: Literal["accept", "decline", "cancel"]
    text: str = ""


@dataclass(frozen=True)
class Question:
    """What is asked, as client and author both know it.

    Attributes:
        id: The author's key, else the text and how often it has been asked.
        text: What the user reads.
        kind: Who is asked.
    """

    id: str
    text: str
    kind: Kind


class World(Protocol):
    """What a program sees of whatever runs it.

    Attributes:
        version: Of the program's texts: another one asks other questions under the same keys.
        counts: How often this run has asked a text.
        bumps: Calls of functions behind `once`, by key, of all runs.
        awake: Parts of programs that are at work.
    """

    version: int
    counts: Counter[str]
    bumps: Counter[str]
    awake: Counter[str]

    async def ask(self, question: Question) -> Said:
        """The answer."""
        ...

    async def once(self, key: str, turns: int | None) -> str:
        """The value."""
        ...

    def tell(self) -> None:
        """Tell the client something."""
        ...


class Node:
    """A part of a program."""

    def parts(self) -> tuple[Node, ...]:
        """What it is made of."""
        return ()

    async def run(self, world: World) -> Any:
        """Do it; a JSON value, which tells all that went on."""
        raise NotImplementedError


@dataclass
class Ask(Node):
    """A question. `strict` fails where the user does not accept; `keyed` has a key; `reworded` has another text in another version."""

    label: str
    kind: Kind = "elicit"
    strict: bool = False
    keyed: bool = False
    reworded: bool = False

    async def run(self, world: World) -> Any:
        text = f"{self.label}/{world.version}?" if self.reworded else f"{self.label}?"
        world.counts[self.label if self.keyed else text] += 1
        number = world.counts[self.label if self.keyed else text]
        key = f"{self.label}-{number}" if self.keyed else f"{text}#{number}"
        said = await world.ask(Question(key, text, self.kind))
        if self.strict and said.action != "accept":
            raise ToolError("no")
        return [self.label, said.action, said.text]


@dataclass
class Turns(Node):
    """Input and output that takes some turns of the loop."""

    number: int

    async def run(self, world: World) -> Any:
        for _ in range(self.number):
            await asyncio.sleep(0)
        return self.number


@dataclass
class Told(Node):
    """Progress that is told, which makes an answer a stream."""

    async def run(self, world: World) -> Any:
        world.tell()
        return "told"


@dataclass
class Broken(Node):
    """A failure, for the client or by mistake."""

    is_bug: bool

    async def run(self, world: World) -> Any:
        if self.is_bug:
            raise ValueError("bug")
        raise ToolError("broken")


@dataclass
class Once(Node):
    """A value that is kept, made in some turns, or on a thread where `turns` is None."""

    label: str
    turns: int | None

    async def run(self, world: World) -> Any:
        return await world.once(self.label, self.turns)


@dataclass
class Around(Node):
    """One part, with something around it."""

    body: Node

    def parts(self) -> tuple[Node, ...]:
        return (self.body,)


class Guarded(Around):
    """What must not swallow a suspension."""

    async def run(self, world: World) -> Any:
        try:
            return await self.body.run(world)
        except Exception:  # noqa: BLE001 - as authors write it
            return "caught"


class Stubborn(Around):
    """What does."""

    async def run(self, world: World) -> Any:
        try:
            return await self.body.run(world)
        except asyncio.CancelledError:
            return "swallowed"


class Closing(Around):
    """A `finally` that waits."""

    async def run(self, world: World) -> Any:
        try:
            return await self.body.run(world)
        finally:
            await asyncio.sleep(0)


@dataclass
class ClosingAsk(Around):
    """A `finally` that asks."""

    last: Ask

    def parts(self) -> tuple[Node, ...]:
        return (self.body, self.last)

    async def run(self, world: World) -> Any:
        try:
            value = await self.body.run(world)
        finally:
            said = await self.last.run(world)
        return [value, said]


class Limited(Around):
    """A time limit that is not reached."""

    async def run(self, world: World) -> Any:
        async with asyncio.timeout(60):
            return await self.body.run(world)


class WaitedFor(Around):
    """The same in a task of its own."""

    async def run(self, world: World) -> Any:
        return await asyncio.wait_for(start(self.body, world), 60)


class Shielded(Around):
    """What goes on when those who wait for it are cancelled."""

    async def run(self, world: World) -> Any:
        return await asyncio.shield(start(self.body, world))


class Late(Around):
    """A time limit that is reached before anything is asked."""

    async def run(self, world: World) -> Any:
        try:
            async with asyncio.timeout(0):
                for _ in range(3):
                    await asyncio.sleep(0)
                return await self.body.run(world)
        except TimeoutError:
            return "late"


@dataclass
class Tight(Around):
    """A time limit that is as good as over."""

    seconds: float

    async def run(self, world: World) -> Any:
        try:
            async with asyncio.timeout(self.seconds):
                return await self.body.run(world)
        except TimeoutError:
            return "too late"


@dataclass
class Repeated(Around):
    """A loop."""

    times: int

    async def run(self, world: World) -> Any:
        return [await self.body.run(world) for _ in range(self.times)]


@dataclass
class Many(Node):
    """Several parts."""

    bodies: tuple[Node, ...]

    def parts(self) -> tuple[Node, ...]:
        return self.bodies


def start(body: Node, world: World) -> asyncio.Task[Any]:
    """A part as a task, of which nobody may ever hear again."""
    task = asyncio.ensure_future(body.run(world))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


class Sequence(Many):
    """One after the other."""

    async def run(self, world: World) -> Any:
        return [await body.run(world) for body in self.bodies]


class Chosen(Many):
    """The first decides which of the others."""

    async def run(self, world: World) -> Any:
        first, *others = self.bodies
        told = await first.run(world)
        chosen = others[len(str(told)) % len(others)]
        return [told, await chosen.run(world)]


class Gathered(Many):
    """`gather`: a failure leaves the others alone."""

    async def run(self, world: World) -> Any:
        return list(await asyncio.gather(*(body.run(world) for body in self.bodies)))


class Collected(Many):
    """`gather` that takes failures for values."""

    async def run(self, world: World) -> Any:
        values = await asyncio.gather(*(body.run(world) for body in self.bodies), return_exceptions=True)
        return [value if not isinstance(value, BaseException) else type(value).__name__ for value in values]


class Grouped(Many):
    """`TaskGroup`: a failure cancels the others."""

    async def run(self, world: World) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(body.run(world)) for body in self.bodies]
        return [task.result() for task in tasks]


class Awaited(Many):
    """`asyncio.wait`, which cancels nothing when it is cancelled."""

    async def run(self, world: World) -> Any:
        tasks = [start(body, world) for body in self.bodies]
        await asyncio.wait(tasks)
        return [type(task.exception()).__name__ if task.exception() else task.result() for task in tasks]


class Raced(Many):
    """The first one wins."""

    async def run(self, world: World) -> Any:
        tasks = [start(body, world) for body in self.bodies]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for task in tasks:
            if task in done:
                return task.result()
        return None


AROUND: tuple[type[Around], ...] = (Guarded, Stubborn, Closing, Limited, WaitedFor, Shielded, Late)
MANY: tuple[type[Many], ...] = (Sequence, Sequence, Chosen, Gathered, Gathered, Collected, Grouped, Awaited)


def walk(node: Node) -> Iterator[Node]:
    """A program's parts, itself first."""
    yield node
    for part in node.parts():
        yield from walk(part)


@st.composite
def programs(draw: st.DrawFn, *, calm: bool = False, races: bool = True) -> Node:
    """Programs of a few asks.

    Args:
        draw: Chance.
        calm: Without failures and races: then nothing is given up while it is at work.
        races: Whether what comes of it may depend on how long an answer takes.
    """
    labels = (f"q{number}" for number in count(1))
    left = [draw(st.integers(1, 7))]
    # What a group makes of a failure inside it depends on which of two comes first where there is another failure outside.
    several = MANY if races or calm else tuple(kind for kind in MANY if kind is not Grouped)
    # In a loop, what an earlier turn has given up may wait together with its equal of a later one, or not any more.
    extras = ["leaf", "repeated"] if calm else ["recovered", "repeated", "raced", "tight"] if races else ["recovered"]

    def ask() -> Ask:
        kind: Kind = draw(st.sampled_from(["elicit", "elicit", "sample"]))
        return Ask(next(labels), kind, not calm and draw(st.booleans()), draw(st.booleans()), draw(st.booleans()))

    def leaf() -> Node:
        left[0] -= 1
        shape = draw(st.sampled_from(["ask", "ask", "ask", "ask", "turns", "once", "told", "ask" if calm else "broken"]))
        if shape == "ask":
            return ask()
        if shape == "told":
            return Told()
        if shape == "turns":
            return Turns(draw(st.integers(0, 9)))
        if shape == "once":  # which takes its time in the first round only, and in a race that counts
            return Once(next(labels), draw(st.sampled_from([None, 0, 3, 20])) if calm or not races else 0)
        return Broken(draw(st.booleans()))

    def grow(depth: int) -> Node:
        if depth == 0 or left[0] <= 1:
            return leaf()
        shape = draw(st.sampled_from(["leaf", "around", "many", "many", "closing", *extras]))
        if shape == "around":
            return draw(st.sampled_from(AROUND[:-1] if calm else AROUND))(grow(depth - 1))
        if shape == "repeated":
            return Repeated(grow(depth - 1), draw(st.integers(0, 2)))
        if shape == "closing":
            return ClosingAsk(grow(depth - 1), ask())
        if shape == "raced":
            return Raced((ask(), Turns(draw(st.integers(0, 9)))))
        if shape == "tight":
            return Tight(ask(), draw(st.sampled_from([0, 1e-9])))
        if shape == "recovered":  # before 3.13 a group leaves its parent's count of cancellations raised
            failing = draw(st.sampled_from([Grouped, Gathered] if races else [Gathered]))(
                (grow(depth - 1), Turns(draw(st.integers(0, 3))), Broken(draw(st.booleans())))
            )
            return Sequence((Guarded(failing), ask()))
        if shape == "many":
            many = draw(st.sampled_from(several))
            return many(tuple(grow(depth - 1) for _ in range(draw(st.integers(2, 3)))))
        return leaf()

    return grow(3)


@dataclass
class Fate:
    """What must come of a call.

    Attributes:
        ended: Whether it ends with these answers.
        value: What it returns; None where it fails.
        failed: Whether it fails.
        open: Questions it asks that have no answer, by id.
        is_confused: Whether two questions that nobody can tell apart wait together.
    """

    ended: bool = False
    value: Any = None
    failed: bool = False
    open: dict[str, Question] = field(default_factory=dict)
    is_confused: bool = False


class Oracle:
    """The world of the model: what was answered is answered at once, and all else never.

    Args:
        version: Of the program's texts.
        answers: Text that was asked and what was said, by id.
    """

    def __init__(self, version: int, answers: Mapping[str, tuple[str, Said]]) -> None:
        self.version = version
        self.counts: Counter[str] = Counter()
        self.bumps: Counter[str] = Counter()
        self.awake: Counter[str] = Counter()
        self.fate = Fate()
        self._answers = answers
        self._kept: set[str] = set()
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._never: list[asyncio.Future[None]] = []
        self._is_over = False

    async def ask(self, question: Question) -> Said:
        """The answer, or nothing for ever."""
        if self._is_over:
            raise asyncio.CancelledError
        known = self._answers.get(question.id)
        if "#" in question.id and self._waiting[question.kind, question.text]:
            self.fate.is_confused = True
        if known is not None and known[0] == question.text:
            return known[1]
        self.fate.open[question.id] = question
        self._waiting[question.kind, question.text] += 1
        try:
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._never.append(never)  # who else would keep the tasks that wait for it
            await never
        finally:
            self._waiting[question.kind, question.text] -= 1
        raise AssertionError

    async def once(self, key: str, turns: int | None) -> str:
        """The value."""
        if key not in self._kept:
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            self._kept.add(key)
        return f"once {key}"

    def tell(self) -> None:
        """Nobody listens."""

    async def watch(self, program: Node) -> Fate:
        """Run a program as far as it comes; on virtual time only, which can tell."""
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(program.run(self))
        await settle()
        self.fate.ended = task.done()
        self._is_over = True
        if task.done():
            self.fate.failed = task.exception() is not None
            self.fate.value = None if self.fate.failed else task.result()
        while rest := asyncio.all_tasks() - before:
            for left in rest:
                left.cancel()
            await asyncio.wait(rest)
            for left in rest:
                _ = left.cancelled() or left.exception()
        return self.fate


class Served:
    """The world of a server's call.

    Args:
        ctx: The call's.
        version: Of the program's texts.
        bumps: Calls of functions behind `once`.
        awake: Parts of programs that are at work.
    """

    def __init__(self, ctx: Context, version: int, bumps: Counter[str], awake: Counter[str]) -> None:
        self.version = version
        self.counts: Counter[str] = Counter()
        self.bumps = bumps
        self.awake = awake
        self._ctx = ctx

    async def ask(self, question: Question) -> Said:
        """The answer of the client."""
        key = None if "#" in question.id else question.id
        self.awake["asks"] += 1
        try:
            if question.kind == "sample":
                result = await self._ctx.sample(question.text, key=key)
                return Said("accept", getattr(result.content, "text", ""))
            answer = await self._ctx.elicit(question.text, str, key=key)
            return Said(answer.action, answer.value) if answer.action == "accept" else Said(answer.action)
        finally:
            self.awake["asks"] -= 1

    async def once(self, key: str, turns: int | None) -> str:
        """The value, which is kept."""

        def make_here() -> str:
            self.bumps[key] += 1
            return f"once {key}"

        async def make() -> str:
            self.bumps[key] += 1
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            return f"once {key}"

        return await (self._ctx.once(key, make_here) if turns is None else self._ctx.once(key, make))

    def tell(self) -> None:
        """Progress, and a log message."""
        self._ctx.progress(sum(self.counts.values()) + 1)
        self._ctx.log("info", "at work")
