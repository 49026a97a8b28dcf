"""mcp's client, calling as `benchmarks/client.py` says."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.direct_dispatcher import DirectDispatcher, create_direct_dispatcher_pair
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

from benchmarks.client_answers import LEGACY, MODERN, RESULTS
from benchmarks.client_work import SAID, TEXT, Call, Target, run


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Call]:
    """Open a client."""
    async with make(target) as client:
        assert client.protocol_version == target.version
        await client.list_tools()

        async def call() -> None:
            result = await client.call_tool("aecho", TEXT)
            assert result.structured_content == SAID, result

        yield call


def make(target: Target) -> Client:
    """A client, not yet open."""
    mode = "auto" if target.modern else "legacy"
    if target.kind == "http":
        return Client(target.url, mode=mode)
    if target.kind == "stdio":
        program, *arguments = target.command
        return Client(StdioServerParameters(command=program, args=arguments, env=target.environment), mode=mode)
    if target.kind == "bare" and not target.modern:
        return Client(respond_to_messages(), mode=mode)
    from benchmarks.peers.mcp_high import server

    client = Client(server, mode=mode)
    if target.kind == "bare":
        client._connect = respond_directly  # noqa: SLF001 - there is no other way to leave the server out
    return client


async def respond_directly(stack: AsyncExitStack, *_options: object) -> DirectDispatcher:
    """The way a client of this era goes to a server in its process, with the least that can answer at its end."""
    ours, theirs = create_direct_dispatcher_pair()
    group = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(theirs.close)

    async def answer(_context: object, method: str, _params: object) -> dict[str, object]:
        return RESULTS[MODERN][method]

    async def ignore(_context: object, _method: str, _params: object) -> None:
        pass

    await group.start(theirs.run, answer, ignore)
    return ours


@asynccontextmanager
async def respond_to_messages() -> AsyncIterator[object]:
    """The same for 2025."""
    async with create_client_server_memory_streams() as (client_streams, (read, write)), anyio.create_task_group() as group:

        async def answer() -> None:
            async for incoming in read:
                asked = incoming.message
                if isinstance(asked, JSONRPCRequest):
                    result = RESULTS[LEGACY][asked.method]
                    await write.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=asked.id, result=result)))

        group.start_soon(answer)
        yield client_streams
        group.cancel_scope.cancel()


if __name__ == "__main__":
    run(connect)
