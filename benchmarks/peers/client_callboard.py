"""Callboard's client, calling as `benchmarks/client.py` says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from benchmarks.client_answers import ENCODED
from benchmarks.client_work import SAID, TEXT, Call, Target, run
from callboard import Client
from callboard.client import target as target_module
from callboard.client.errors import ClientError, Origin


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Call]:
    """Open a client."""
    async with make(target) as client:
        assert client.version == target.version
        await client.list_tools()

        async def call() -> None:
            result = await client.call_tool("aecho", TEXT)
            assert result.structured_content == SAID, result

        yield call


def make(target: Target) -> Client:
    """A client, not yet open."""
    if target.kind == "http":
        return Client(target.url, versions=target.version)
    if target.kind == "stdio":
        return Client(target.command, env=target.environment, versions=target.version)
    from benchmarks.server import server

    if target.kind == "bare":
        target_module.MemoryStream = lambda *_: Responder(target.version)
    return Client(server, versions=target.version)


class Asked(msgspec.Struct):
    """What the responder has to know of a message."""

    method: str
    id: int | None = None


class Responder:
    """A stream of lines to the least that can answer."""

    last_words = ""

    def __init__(self, version: str) -> None:
        self._answers = ENCODED[version]
        self._read = msgspec.json.Decoder(Asked).decode

    async def open(self, origin: Origin, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """Get ready."""
        del origin, end
        self._take = take
        self._loop = asyncio.get_running_loop()

    async def send(self, line: bytes) -> None:
        """Answer a message, though not before the next turn of the loop: then the client waits as it would for a server."""
        asked = self._read(line)
        if asked.id is not None:
            self._loop.call_soon(self._take, b'{"jsonrpc":"2.0","id":%d' % asked.id + self._answers[asked.method])

    def explain(self, origin: Origin) -> ClientError:
        """Never asked."""
        return ClientError("the responder has ended", origin)

    async def aclose(self) -> None:
        """Nothing to do."""


if __name__ == "__main__":
    run(connect)
