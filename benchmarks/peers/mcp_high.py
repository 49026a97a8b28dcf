"""The benchmark catalogue on mcp's `MCPServer`, served the way that suits it best: uvicorn, uvloop, httptools, no access log."""

import asyncio

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from benchmarks.floors.data import FILLERS, PORT, SESSIONS, STDIO, STREAMED, filler, hits

server = MCPServer("bench", version="1.0.0", log_level="WARNING")


class Hit(BaseModel):
    id: int
    title: str
    url: str
    score: float
    tags: list[str]
    snippet: str


class SearchResult(BaseModel):
    query: str
    total: int
    hits: list[Hit]


@server.tool()
def echo(text: str) -> str:
    """Say the text again, from a thread."""
    return text


@server.tool()
async def aecho(text: str) -> str:
    """Say the text again."""
    return text


@server.tool()
async def pause(text: str) -> str:
    """Say the text again after letting others go first."""
    await asyncio.sleep(0)
    return text


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def length(text: str) -> int:
    """Count the characters of a text."""
    return len(text)


@server.tool()
async def search(query: str) -> SearchResult:
    """Search the shelves."""
    found = hits(query)
    return SearchResult(query=query, total=len(found), hits=[Hit(**hit) for hit in found])


@server.tool()
async def slow(n: int, ctx: Context) -> str:
    """Report progress n times."""
    for step in range(n):
        await ctx.report_progress(step + 1, n, "step")
    return "done"


@server.resource("bench://greeting")
def greeting() -> str:
    """A greeting."""
    return "hello"


@server.prompt()
def ask(topic: str) -> str:
    """Ask about a topic."""
    return f"What is there to know about {topic}?"


for number in range(FILLERS):
    name, description, function = filler(number)
    server.tool(name=name, description=description)(function)

if __name__ == "__main__":
    if STDIO:
        server.run()
    else:
        import uvicorn

        app = server.streamable_http_app(stateless_http=not SESSIONS, json_response=not STREAMED, max_sessions=100_000)
        uvicorn.run(app, host="127.0.0.1", port=PORT, loop="uvloop", http="httptools", log_level="warning", access_log=False)
