"""What every benchmark server serves, so that all of them do the same work. Standard library only: peers load it too.

Environment of a benchmark server:
    PORT: Where to listen on 127.0.0.1.
    BENCH_TOOLS: How many filler tools to add to the catalogue.
    BENCH_STDIO: `1` serves stdio instead of HTTP.
    BENCH_MODE: `stateless-json`, `stateless-sse`, `session-json` or `session-sse`: whether 2025 clients get sessions, and whether answers are
        JSON or event streams.
"""

import os
from collections.abc import Callable
from typing import Any

PORT = int(os.environ.get("PORT", "8100"))
FILLERS = int(os.environ.get("BENCH_TOOLS", "0"))
STDIO = os.environ.get("BENCH_STDIO") == "1"
MODE = os.environ.get("BENCH_MODE", "stateless-json")
SESSIONS = MODE.startswith("session")
STREAMED = MODE.endswith("sse")

SEARCH_HITS = 20


def hits(query: str) -> list[dict[str, Any]]:
    """The rows of a search result: about 4 KB as JSON."""
    return [
        {
            "id": number,
            "title": f"Finding {number} for {query}",
            "url": f"https://example.com/shelf/{number:02d}/volume-{number * 7}.html",
            "score": 1.0 - number / 32,
            "tags": ["stage", "board", "notice"],
            "snippet": "Half past seven: all beginners to the stage, please, now!",
        }
        for number in range(SEARCH_HITS)
    ]


def filler(number: int) -> tuple[str, str, Callable[..., str]]:
    """Name, description and function of a tool that is only there to be listed."""

    def look_up(query: str, limit: int = 10, exact: bool = False) -> str:  # noqa: FBT001, FBT002
        return f"{query} {limit} {exact}"

    return f"tool_{number:03d}", f"Looks things up in shelf {number} and tells in plain words what was found there.", look_up
