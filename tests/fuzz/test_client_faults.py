"""Two hundred random faults between a client and its server: each step ends within its limit, by the right result or by an error that says
why, and after closing nothing is left.

    FAULT_SEED=17 pytest tests/fuzz/test_client_faults.py      other faults
    FAULT_ONLY=42                                              case 42 alone
    FAULT_COUNT=10                                             ten times as many cases

A case is a pure function of seed and number; a failure names both.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import fault_child
import pytest
from endings import Remains, ends, watched
from fault_proxy import FAULTS, Ask, Fault, FaultProxy
from upstream import serve

from callboard.client.client import Client
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, ProcessExited, RequestTimeout

SEED = int(os.environ.get("FAULT_SEED", "20260728"))
ONLY = os.environ.get("FAULT_ONLY")
FACTOR = int(os.environ.get("FAULT_COUNT", "1"))
HTTP_CASES, PIPE_CASES = 80, 20  # of each era
AT_ONCE = 24
MODERN, LEGACY = "2026-07-28", ("2025-11-25", "2025-06-18", "2025-03-26")
# Seconds.
SILENCE, TOTAL, CONNECT = 0.6, 1.5, 1.5
CLOSING = 6.5  # three rungs of the ladder
LEAVING = 2.5  # the end of a session is told
STATUS = {"bad_gateway": 502, "unavailable": 503, "too_many": 429, "crash": 500, "forbidden": 403, "redirect": 307, "no_content": 204}
SAID = {"bad_gateway": "bad gateway", "unavailable": "upstream is restarting", "too_many": "slow down", "crash": "Internal Server Error"}
# After these a right answer may come, however often they strike.
HARMLESS = {"delay", "close_after", "reset_reuse", "slow_head", "slow_body", "other_first", "duplicate"}
ANYWHERE = ("first", "tools/call", "tools/call", "tools/list", "any", "some")
WHERE = {True: (*ANYWHERE, "server/discover"), False: (*ANYWHERE, "GET", "DELETE", "notifications/initialized", "initialize")}


class Case(NamedTuple):
    """One client's story.

    Attributes:
        number: Which case of its test.
        version: The protocol that the client speaks.
        fault: What strikes.
        where: Which requests it strikes at.
        times: How often.
    """

    number: int
    version: str
    fault: Fault
    where: str
    times: int

    @property
    def name(self) -> str:
        return f"FAULT_SEED={SEED} FAULT_ONLY={self.number}: {self}"


def make_cases(versions: tuple[str, ...], kinds: list[str], count: int) -> Iterator[Case]:
    """Cases of a test; every kind comes in turn, in another order each time."""
    deck: list[str] = []
    for number in range(count * FACTOR):
        dice = random.Random(f"{SEED} {versions} {number}")
        deck = deck or random.Random(f"{SEED} {number}").sample(kinds, len(kinds))
        fault = Fault(deck.pop(), dice.random(), dice.choice([0.0, 0.0005, 0.005, 0.2]), dice.random() < 0.5)
        where = dice.choice(WHERE[MODERN in versions])
        case = Case(number, dice.choice(versions), fault, where, dice.choice([1, 1, 2, 10**6]))
        if ONLY is None or int(ONLY) == number:
            yield case


# Options of a client that has no time.
LIMITS: dict[str, Any] = {"timeout": SILENCE, "total_timeout": TOTAL, "connect_timeout": CONNECT, "max_message": 2**20}


def check_error(error: BaseException, client: Client, methods: set[str]) -> None:
    """What every error says."""
    assert isinstance(error, ClientError), repr(error)
    assert type(error) is not ClientError, f"a kind of error without a name: {error}"
    assert error.target == client.target
    assert client.target in str(error)
    if methods:
        assert error.method in methods, repr(error.method)
        # Nothing has an id that was never put into words.
        assert error.request_id is not None or "could not be opened anew" in str(error)
        assert error.method in str(error)
    if isinstance(error, RequestTimeout):
        assert 0 < error.seconds <= max(SILENCE, TOTAL, CONNECT)
    if isinstance(error, HttpError):
        assert str(error.status) in str(error)
    if isinstance(error, ProcessExited):
        assert error.returncode is not None
        assert isinstance(error.stderr, str)


def text_of(result: Any) -> str:
    (block,) = result.content
    return str(block.text)


Step = Callable[[Client], Coroutine[Any, Any, None]]


async def echo(client: Client) -> None:
    assert text_of(await client.call_tool("echo", {"text": "plain"})) == "plain"


async def count(client: Client) -> None:
    assert text_of(await client.call_tool("count", {"text": "streamed"}, on_progress=lambda *_: None)) == "streamed"


async def together(client: Client) -> None:
    """Four at once: no answer is another call's."""

    async def one(number: int) -> None:
        text = f"call {number}"
        assert text_of(await client.call_tool("echo", {"text": text})) == text

    found = await asyncio.gather(*(one(number) for number in range(4)), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each


async def list_tools(client: Client) -> None:
    await client.list_tools()


OPENING = {"", "initialize", "server/discover", "notifications/initialized"}
STEPS: list[tuple[Step, set[str]]] = [
    (echo, {"tools/call"}),
    (count, {"tools/call"}),
    (together, {"tools/call"}),
    (list_tools, {"tools/list"}),
]


async def play(remains: Remains, case: Case, client: Client, check: Callable[[BaseException], None], opening: float) -> None:
    """Open, make some requests, close; each has its limit."""
    async with remains.none_of(case.name):
        opened = await ends(client.__aenter__(), opening, f"{case.name}: open")
        try:
            if opened.error is not None:
                check_error(opened.error, client, set())
                check(opened.error)
                return
            for step, methods in STEPS:
                outcome = await ends(step(client), TOTAL, f"{case.name}: {step.__name__}")
                if outcome.error is not None:
                    # A session that was lost is opened again for the call: that may fail, too.
                    check_error(outcome.error, client, methods | OPENING - {""})
                    check(outcome.error)
        finally:
            closed = await ends(client.close(), CLOSING, f"{case.name}: close")
            assert closed.error is None, repr(closed.error)


def make_script(case: Case) -> Callable[[Ask], Fault | None]:
    """The requests that a case's fault strikes at."""
    dice = random.Random(case.number)
    struck = iter(range(case.times))

    def script(ask: Ask) -> Fault | None:
        wanted = {"first": ask.number == 0, "any": True, "some": dice.random() < 0.4}
        meets = wanted.get(case.where, case.where in {ask.verb, ask.method})
        return case.fault if meets and next(struck, None) is not None else None

    return script


async def over_http(remains: Remains, case: Case, url: str) -> None:
    """A case over HTTP."""
    kind = case.fault.kind

    def check(error: BaseException) -> None:
        if isinstance(error, HttpError):
            assert error.status in {STATUS.get(kind), 200, 404}, error
            if error.status == STATUS.get(kind):
                assert SAID.get(kind, "") in str(error)

    async with FaultProxy(url, make_script(case)) as proxy:
        client = Client(proxy.url, versions=(case.version,), **LIMITS)
        try:
            await play(remains, case, client, check, CONNECT + LEAVING)
            async with asyncio.timeout(2):
                while proxy.open_connections:  # noqa: ASYNC110 - the client has closed them: the proxy has yet to hear of it
                    await asyncio.sleep(0.01)
        except Exception as error:
            error.add_note(f"{case.name}\n{proxy.asks}\n{proxy.struck}")
            raise


async def over_pipes(remains: Remains, case: Case) -> None:
    """A case with a child process."""
    at = case.where if "/" in case.where else "tools/call" if case.where not in {"first", "any", "some"} else "any"
    command = fault_child.command(case.fault.kind, share=case.fault.share, at=at, skip=case.number % 3)
    client = Client(command, versions=(case.version,), **LIMITS)

    def check(error: BaseException) -> None:
        if isinstance(error, ProcessExited) and case.fault.kind in {"leave", "leave_after", "leave_in_line", "grandchild"}:
            assert (error.returncode, fault_child.LAST_WORDS in str(error)) == (fault_child.EXIT_CODE, True)
        if case.fault.kind in {"close_stdout", "close_stdin"}:
            assert isinstance(error, ConnectionFailed | RequestTimeout), error

    try:
        await play(remains, case, client, check, CONNECT + CLOSING)  # a child that fails to open is put an end to
    except Exception as error:
        error.add_note(case.name)
        raise


async def run_all(work: list[Awaitable[None]]) -> None:
    """Run cases side by side, not too many at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(case: Awaitable[None]) -> None:
        async with room:
            await case

    found = await asyncio.gather(*(one(case) for case in work), return_exceptions=True)
    failures = [each for each in found if isinstance(each, BaseException)]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(work)} cases failed", failures)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve() as url:
        yield url


@pytest.mark.parametrize("versions", [(MODERN,), LEGACY], ids=["modern", "legacy"])
async def test_whatever_befalls_http_each_call_ends(versions: tuple[str, ...], url: str) -> None:
    """A41, A42, CN-07, HM-14; issue 5's fault proxy."""
    async with watched() as remains:
        await run_all([over_http(remains, case, url) for case in make_cases(versions, list(FAULTS), HTTP_CASES)])


@pytest.mark.parametrize("versions", [(MODERN,), LEGACY], ids=["modern", "legacy"])
async def test_whatever_befalls_a_child_process_each_call_ends(versions: tuple[str, ...]) -> None:
    """A39, CN-07, SD-07, LC-11."""
    async with watched() as remains:
        await run_all([over_pipes(remains, case) for case in make_cases(versions, list(fault_child.KINDS), PIPE_CASES)])
