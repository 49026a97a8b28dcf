"""Random connections and raw requests, in order and out of it, to a server as `callboard.run` serves it, and to the same behind uvicorn's own protocol.

Each program is played twice, from its beginning. What came back, what tools met, and what the log and the sinks were told must be the same, whatever
of it was answered past the parser. Not compared are the text for what is no HTTP (uvicorn has its own), how a body is delimited, random ids,
and seconds until something may be tried again.
"""

import asyncio
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fuzz.raw_requests import ANN, BOB, KNOWN, PEERS, PRELUDE, Habit, Program, Step, programs
from hypothesis import HealthCheck, Phase, event, example, given, settings
from log_lines import Taken, watch_logs
from msgspec import Struct
from telemetry_sinks import Recorder
from unit.transport.whole_stage import Line
from virtual_time import run

from callboard import Context, Server, asgi
from callboard.auth import BearerTokens
from callboard.stores.memory import MemoryStore
from callboard.transport.http_protocol import answer_at_once
from callboard.transport.stream import SHORTCUTS
from callboard.transport.whole_call import FORGET_AFTER, WholeCall

# The same programs in every run, unless a number of examples asks for others: WHOLE_EXAMPLES=3000.
EXAMPLES = int(os.environ.get("WHOLE_EXAMPLES", "0"))
KEYS = ["k" * 32]
# What is left of an answer that is uvicorn's, or ours, to what is no HTTP.
NO_REQUEST = (400, (), b"no request")
# What comes of one with others, whose answers uvicorn overtakes or drops: nothing can be compared any more.
OVER = "over"


class Visits(Struct):
    many: int = 0


class Play:
    """A program, played.

    Args:
        program: What happens.
        stock: Whether behind uvicorn's own protocol.

    Attributes:
        told: What came back with each step; at last what tools met, log and sinks.
        whole: How many requests of a kind were answered past the parser.
    """

    def __init__(self, program: Program, *, stock: bool) -> None:
        self.program = program
        self.stock = stock
        self.met: list[Any] = []
        self.told: list[Any] = []
        self.whole: Counter[str] = Counter()
        self._sessions: list[str] = []
        self._recorder = Recorder()
        self._app = self._make()
        self._first: Line | None = None
        self._lines: dict[int, Line] = {}

    def _make(self) -> Any:
        options = {**self.program.options}
        store = MemoryStore(shared=True) if options.pop("shared", False) else None
        if "auth" in options:
            options["auth"] = BearerTokens({ANN: "ann", BOB: "bob"})
        if "options" in options:
            options["options"] = lambda caller: {"caller": f"{caller.principal} {sorted((caller.headers or {}).items())}"}
        server = Server("stage", state=Visits, keys=KEYS, store=store, telemetry=self._recorder if self.program.logged else None)

        @server.tool
        async def visit(state: Visits, ctx: Context) -> str:
            state.many += 1
            self.met.append(("visit", ctx.session_id, ctx.principal, ctx.headers, state.many))
            return f"visit {state.many}"

        @server.tool
        async def whoami(ctx: Context, text: str = "") -> str:
            self.met.append(("whoami", ctx.session_id, ctx.principal, ctx.headers, dict(ctx.options), text))
            return f"{ctx.session_id} {ctx.principal} {sorted((ctx.headers or {}).items())} {dict(ctx.options)}"

        @server.tool
        async def tell(ctx: Context) -> str:
            ctx.progress(1)
            await asyncio.sleep(0.002)
            self.met.append(("tell", ctx.session_id))
            return "told"

        @server.tool
        async def fail() -> str:
            raise ValueError("no")

        count = itertools.count()
        return asgi(server, session_id=lambda: f"session-{next(count):04}", **options)

    async def run(self) -> None:
        """Play it."""
        for habit, step in [*((0, step) for step in PRELUDE), *self.program.steps]:
            for _ in range(step.times):
                if OVER not in self.told:
                    await self._take(self.program.habits[habit], step)
        await self._leave()
        await self._app.aclose()

    async def _take(self, habit: Habit, step: Step) -> None:
        if step.rest == "wait":
            await self._leave()
            await asyncio.sleep(FORGET_AFTER + 1)
        elif step.rest == "drain":
            self._app.drain()
        line = self._line(step.line)
        data = b"".join(ask.make(habit, self._sessions, auth="auth" in self.program.options) for ask in step.asks)
        await self._send(line, step, data)
        if step.rest == "gone":
            self._hang_up(step.line)
        await self._rest(line)
        answers = list(read_answers(line.pipe.data))
        if NO_REQUEST in answers and max(len(answers), len(step.asks)) > 1:
            self.told.append(OVER)
            return
        self.told.append((answers, line.pipe.closing))
        for _, headers, _ in answers:
            self._sessions += [value.decode() for name, value in headers if name == b"mcp-session-id"]
        if line.pipe.closing and step.rest != "gone":
            self._hang_up(step.line)

    async def _send(self, line: Line, step: Step, data: bytes) -> None:
        line.pipe.data = b""
        cuts = sorted({min(len(data), len(data) * cut // 1000) for cut in step.cuts})
        for begin, end in itertools.pairwise([0, *cuts, len(data)]):
            if begin == end or line.pipe.closing:
                continue
            line.protocol.data_received(data[begin:end])
            if type(line.protocol.cycle) is WholeCall and not line.protocol.cycle.response_complete:
                self.whole[step.asks[0].kind] += 1
            await asyncio.sleep(0.001)
            if step.rest == "gone":
                break

    async def _rest(self, line: Line) -> None:
        """Wait until nothing goes on, or what goes on waits for its body."""
        for seconds in (0.01, 0.01, 0.01, 2.0):
            await asyncio.sleep(seconds)
            if not line.state.tasks:
                break

    def _line(self, number: int) -> Line:
        if (line := self._lines.get(number)) is None:
            line = Line(self._app, stock=self.stock, peer=PEERS[number], beside=self._first)
            self._first = self._first or line
            line.protocol.timeout_keep_alive = 1e6
            self._lines[number] = line
        return line

    def _hang_up(self, number: int) -> None:
        line = self._lines.pop(number)
        line.pipe.closing = True
        line.protocol.connection_lost(None)

    async def _leave(self) -> None:
        for number, line in [*self._lines.items()]:
            self._hang_up(number)
            await self._rest(line)
            assert not line.state.tasks

    def conclude(self, taken: Taken | None) -> None:
        """Add what tools met, and what log and sinks were told."""
        self.told += self.met
        if taken is not None:
            self.told += [without_random(each) for each in [*taken.requests, *taken.events]]
            self.told += [re.sub(r"\b[0-9a-f]{8}\b|0x[0-9a-f]+|\d+\.\d+(?:e-\d+)?", "", repr(each)) for each in self._recorder.events]


def without_random(record: dict[str, Any]) -> dict[str, Any]:
    """A record of the log, without times, and without ids that are random."""
    given = str(record.get("request", "")).startswith("request-of")
    return {
        name: re.sub(r"\(id [0-9a-f]+\)|in \d+ s", "", str(value))
        for name, value in record.items()
        if name not in {"time", "duration_ms", "id", *([] if given else ["request"])}
    }


def read_answers(data: bytes) -> Iterator[tuple[int, tuple[tuple[bytes, bytes], ...], bytes]]:
    """The answers on a connection: status, headers in order of the alphabet but for how the body ends, body."""
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        status = int(first.split(b" ")[1])
        headers = sorted((name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines))
        told = dict(headers)
        if told.get(b"transfer-encoding") == b"chunked":
            body, data = read_chunks(data)
        elif status in {100, 204}:
            assert not told.keys() & {b"content-length", b"transfer-encoding"}
            body = b""
        else:
            size = int(told[b"content-length"])
            assert len(data) >= size or b"more" in told
            body, data = data[:size], data[size:]
        if status == 400 and (body == b"Invalid HTTP request received." or b"This is no HTTP" in body):
            yield NO_REQUEST
            continue
        kept = tuple(each for each in headers if each[0] not in {b"content-length", b"transfer-encoding", b"retry-after"})
        yield status, kept, re.sub(rb"\(id [0-9a-f]+\)|id: [!-~]+|in \d+ s|\"retryAfter\":\d+", b"", body)


def read_chunks(data: bytes) -> tuple[bytes, bytes]:
    """A body in chunks, and what follows it; less where it does not end."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if not length:
            break
    return body, data


@contextmanager
def shortcuts(*, stock: bool) -> Iterator[None]:
    """Have uvicorn as it is, or with all that `callboard.run` has."""
    before = dict(SHORTCUTS)
    SHORTCUTS.clear()
    if not stock:
        answer_at_once()
    try:
        yield
    finally:
        SHORTCUTS.clear()
        SHORTCUTS.update(before)


def play(program: Program, *, stock: bool) -> Play:
    """Play a program."""

    async def main() -> Play:
        played = Play(program, stock=stock)
        await played.run()
        return played

    with shortcuts(stock=stock):
        if not program.logged:
            played = run(main)
            played.conclude(None)
            return played
        with watch_logs(20) as taken:
            played = run(main)
        played.conclude(taken)
        return played


@settings(
    max_examples=EXAMPLES or 100,
    derandomize=not EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(program=programs)
@example(program=KNOWN["pages"])
@example(program=KNOWN["pipelined"])
@example(program=KNOWN["closing"])
@example(program=KNOWN["folded"])
def test_nobody_can_tell_the_difference(program: Program) -> None:
    # SA15, SA18, HL-01, HL-21, HL-23
    ours, theirs = play(program, stock=False), play(program, stock=True)
    for kind in ours.whole:
        event(f"past the parser: {kind}")
    assert not theirs.whole
    for mine, stocks in itertools.zip_longest(ours.told, theirs.told):
        if stocks == OVER:
            return
        assert mine == stocks
