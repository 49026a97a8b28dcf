"""Ten thousand tokens that name keys which nobody has, while the host of the keys is dead: it is asked once per cooldown, and everybody is answered."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import NamedTuple

import pytest
from asgi_driver import Answer, Client
from e2e.loopback import host
from e2e.serving import free_port
from minting import AUDIENCE, ISSUER, claims, header, jwk, jwks, mint, private_key

from callboard import Server, asgi
from callboard.auth.jwt import JWT
from callboard.auth.verifier import Grant, Refusal

STORM = 10_000
KEY = private_key("P-256")


class Clock:
    """Seconds that go by themselves, and that a test may put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Host:
    """A host of keys on a loopback port.

    Attributes:
        port: Where it is.
        asked: How often somebody connected.
        asked_again: Set with the second time.
        body: What it answers; None while it is dead: it takes connections, and says nothing.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked = 0
        self.asked_again = asyncio.Event()
        self.body: bytes | None = None

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        """It takes connections."""
        async with host(self._serve, self.port):
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        if self.asked == 2:
            self.asked_again.set()
        await reader.readuntil(b"\r\n\r\n")
        if self.body is None:
            await reader.read()  # until the other side has had enough
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.body) + self.body)
        await writer.drain()
        await reader.read()

    @property
    def url(self) -> str:
        """Where the keys are."""
        return f"http://127.0.0.1:{self.port}/jwks"


def token(kid: str) -> str:
    """One that needs a key; its signature is right, if that key is ours."""
    now = int(time.time())
    return mint(KEY, header(kid=kid), claims(exp=now + 600, iat=now))


def guess(template: str) -> str:
    """A token of the storm: another name for its key each time. Nobody gets to its signature."""
    kid = secrets.token_urlsafe(12)
    return ".".join((mint(head=header(kid=kid), body=b"{}", sign=lambda _: b"x").split(".")[0], *template.split(".")[1:]))


class Storm(NamedTuple):
    """What came of many tokens.

    Attributes:
        kinds: Of the refusals.
        retries: Seconds that they name.
        longest: Seconds that one waited at most.
        whole: Seconds that all took.
    """

    kinds: set[str]
    retries: set[int]
    longest: float
    whole: float


async def storm(tokens: JWT, number: int) -> Storm:
    """So many tokens, a hundred at a time, as they come from sockets; none waits for another."""
    template = token("any")
    sent = [guess(template) for _ in range(number)]
    waits: list[float] = []

    async def one(text: str) -> Grant | Refusal:
        begun = time.monotonic()
        found = await tokens.verify(text)
        waits.append(time.monotonic() - begun)
        return found

    begun, coming = time.monotonic(), []
    for first in range(0, number, 100):
        coming += [asyncio.ensure_future(one(text)) for text in sent[first : first + 100]]
        await asyncio.sleep(0)
    found = await asyncio.gather(*coming)
    assert len(waits) == number
    refusals = [one for one in found if isinstance(one, Refusal)]
    assert len(refusals) == number
    return Storm({one.kind for one in refusals}, {one.retry_after for one in refusals}, max(waits), time.monotonic() - begun)


@pytest.mark.parametrize("dead", ["says nothing", "refuses"])
async def test_a_storm_of_names_with_a_dead_host(dead: str) -> None:
    """One fetch, everybody answered in 6 s; again after the cooldown; and recovery."""
    keys, ticks = Host(free_port()), Clock()
    tokens = JWT(ISSUER, AUDIENCE, jwks_uri=keys.url, ticks=ticks)
    for fetches in (1, 2):
        async with keys.up() if dead == "says nothing" else nullcontext():
            came = await storm(tokens, STORM)
        assert keys.asked == (fetches if dead == "says nothing" else 0)
        assert came.kinds == {"unavailable"}
        assert min(came.retries) >= 1
        assert max(came.retries) <= 30
        # Within the cooldown nobody waits: what such a storm takes is the work alone, on however busy a machine.
        work = await storm(tokens, STORM)
        assert work.kinds == {"unavailable"}
        assert keys.asked == (fetches if dead == "says nothing" else 0)
        assert came.longest < 6 + work.whole
        ticks.ahead += 31
    keys.body, before = jwks(jwk(KEY, "real")), keys.asked
    async with keys.up():
        assert isinstance(await tokens.verify(token("real")), Grant), "it recovers by itself"
    assert keys.asked == before + 1
    await tokens.close()


async def test_a_storm_does_not_shut_out_who_has_a_real_key() -> None:
    """The host dies after its keys were fetched: those go on to be used, at once, while the storm waits."""
    keys, ticks = Host(free_port()), Clock()
    keys.body = jwks(jwk(KEY, "real"))
    tokens = JWT(ISSUER, AUDIENCE, jwks_uri=keys.url, ticks=ticks)
    async with keys.up():
        assert isinstance(await tokens.verify(token("real")), Grant)
        keys.body, ticks.ahead = None, 31.0
        storming = asyncio.ensure_future(storm(tokens, 2000))
        await keys.asked_again.wait()
        for _ in range(20):
            assert isinstance(await tokens.verify(token("real")), Grant)
        assert not storming.done(), "they did not wait for the storm"
        came = await storming
    assert came.kinds == {"unavailable"}
    assert keys.asked == 2
    await tokens.close()


async def test_a_storm_while_the_host_is_fine() -> None:
    """Names that the set has not cost one fetch per cooldown, and at first one more; who waited for it learns for certain."""
    keys, ticks = Host(free_port()), Clock()
    keys.body = jwks(jwk(KEY, "real"))
    tokens = JWT(ISSUER, AUDIENCE, jwks_uri=keys.url, ticks=ticks)
    async with keys.up():
        for fetches in (2, 3, 4):
            kinds = (await storm(tokens, 2000)).kinds
            assert "invalid" in kinds
            assert kinds <= {"invalid", "unavailable"}
            assert keys.asked == fetches
            assert isinstance(await tokens.verify(token("real")), Grant)
            ticks.ahead += 31
    await tokens.close()


async def test_a_storm_before_a_whole_application() -> None:
    """What clients see of it: 503 with Retry-After, never 401, which would send them to log in again; who is known goes on."""
    keys, ticks = Host(free_port()), Clock()
    keys.body = jwks(jwk(KEY, "real"))
    app = asgi(Server("stormy"), auth=JWT(ISSUER, jwks_uri=keys.url, ticks=ticks), resource=AUDIENCE)

    async def ask(text: str) -> Answer:
        return await Client(app).request("server/discover", authorization=f"Bearer {text}")

    template = token("any")
    async with keys.up():
        assert (await ask(token("real"))).status == 200
        assert (await ask(guess(template))).status == 401
        keys.body, ticks.ahead = None, 31.0
        storming = asyncio.gather(*(ask(guess(template)) for _ in range(1000)))
        await keys.asked_again.wait()
        assert {(await ask(token("real"))).status for _ in range(10)} == {200}
        assert not storming.done()
        answers = await storming
    assert {answer.status for answer in answers} == {503}
    assert all(1 <= int(answer.headers["retry-after"]) <= 30 for answer in answers)
    assert keys.asked == 3
    assert (await ask(guess(template))).status == 503


async def test_nothing_is_left_behind() -> None:
    """After a fetch and `close` there is no task, and no socket that is open."""
    keys = Host(free_port())
    keys.body = jwks(jwk(KEY, "real"))
    tokens = JWT(ISSUER, AUDIENCE, jwks_uri=keys.url)
    async with keys.up():
        assert isinstance(await tokens.verify(token("real")), Grant)
    await tokens.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", keys.port), 1)
