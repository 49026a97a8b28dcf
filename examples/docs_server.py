"""Serve a folder of Markdown to agents: search it, read it, outline it, summarize it, and hear of new pages.

callboard run examples/docs_server.py                    # this project's own docs, on http://127.0.0.1:8000/mcp
DOCS_DIR=~/notes callboard run examples/docs_server.py   # any other folder
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

import callboard
from callboard import Context, NotFound, Server, ToolError
from callboard.types import ToolAnnotations

DOCS_DIR = Path(os.environ.get("DOCS_DIR", Path(__file__).resolve().parent.parent / "docs"))
SCAN_SECONDS = float(os.environ.get("DOCS_SCAN_SECONDS", "1"))
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)


@dataclass
class Hit:
    """One page that fits a search."""

    uri: str
    title: str
    excerpt: str


@dataclass
class Heading:
    """A heading and what stands under it."""

    title: str
    line: int
    children: list[Heading] = field(default_factory=list)


class Library:
    """The pages of a folder and their full-text index (SQLite FTS5, in memory)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.execute("CREATE VIRTUAL TABLE pages USING fts5(path UNINDEXED, title, body, tokenize = 'porter unicode61')")

    def paths(self) -> list[str]:
        """Pages by path below the folder, in order."""
        return sorted(self._seen)

    def text(self, path: str) -> str:
        """One page."""
        if path not in self._seen:
            raise NotFound(f"docs://{path}")
        return (self.folder / path).read_text(encoding="utf-8")

    def changes(self) -> Iterator[tuple[str, str]]:
        """What is `new`, `changed` or `gone` since the last look, with its path; the index follows."""
        found = {str(file.relative_to(self.folder)): file.stat().st_mtime for file in sorted(self.folder.rglob("*.md"))}
        for path in [path for path in self._seen if path not in found]:
            self._forget(path)
            yield "gone", path
        for path, modified in found.items():
            if self._seen.get(path) != modified:
                kind = "changed" if path in self._seen else "new"
                self._index(path, modified)
                yield kind, path

    def search(self, query: str, limit: int) -> list[Hit]:
        """Pages that have all the words, best first."""
        words = " ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        if not words:
            raise ToolError("The query has no words in it.")
        sql = "SELECT path, title, snippet(pages, 2, '**', '**', ' ... ', 24) FROM pages WHERE pages MATCH ? ORDER BY rank LIMIT ?"
        with self._lock:
            rows = self._db.execute(sql, (words, limit)).fetchall()
        return [Hit(f"docs://{path}", title, excerpt) for path, title, excerpt in rows]

    def _index(self, path: str, modified: float) -> None:
        body = (self.folder / path).read_text(encoding="utf-8")
        self._forget(path)
        with self._lock:
            self._db.execute("INSERT INTO pages VALUES (?, ?, ?)", (path, title_of(path, body), body))
        self._seen[path] = modified

    def _forget(self, path: str) -> None:
        self._seen.pop(path, None)
        with self._lock:
            self._db.execute("DELETE FROM pages WHERE path = ?", (path,))


library = Library(DOCS_DIR)


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[None]:
    """Index the folder, then watch it for as long as the server runs."""
    await asyncio.to_thread(publish_changes, server)
    watcher = asyncio.create_task(watch(server))
    yield
    watcher.cancel()
    with suppress(asyncio.CancelledError):
        await watcher


server = Server(
    "docs",
    version="1.0.0",
    title="Documentation",
    instructions="Search first, then read the pages that fit. Pages are docs:// resources.",
    lifespan=lifespan,
)


async def watch(server: Server) -> None:
    """Look for changed files for ever."""
    while True:
        await asyncio.sleep(SCAN_SECONDS)
        await asyncio.to_thread(publish_changes, server)


def publish_changes(server: Server) -> None:
    """List new pages and drop those that are gone (clients that listen get list_changed); tell of changed ones."""
    for kind, path in library.changes():
        uri = f"docs://{path}"
        if kind == "new":
            server.resource(uri, name=path, title=title_of(path, library.text(path)), mime_type="text/markdown")(reader(path))
        elif kind == "gone":
            server.remove("resources", uri)
        else:
            server.resource_updated(uri)


def reader(path: str) -> Callable[[], str]:
    """Make the function that reads one page."""

    def read_page() -> str:
        return library.text(path)

    return read_page


def title_of(path: str, body: str) -> str:
    """A page's first heading, or its file name."""
    found = re.search(r"^#\s+(.+)$", body, re.MULTILINE)
    return found.group(1).strip() if found else Path(path).stem


@server.tool(annotations=READ_ONLY)
def search(query: str, limit: Annotated[int, msgspec.Meta(ge=1, le=20)] = 5) -> list[Hit]:
    """Full-text search over all pages.

    Args:
        query: Words that must all occur.
        limit: Hits at most.
    """
    return library.search(query, limit)


@server.tool(annotations=READ_ONLY)
def outline(path: str) -> list[Heading]:
    """Headings of one page as a tree.

    Args:
        path: The page, as in its docs:// URI.
    """
    if path not in library.paths():
        raise ToolError(f"There is no page {path!r}; search for it, or list the resources.")
    top: list[Heading] = []
    open_headings: list[tuple[int, Heading]] = []
    for number, line in enumerate(library.text(path).splitlines(), 1):
        if found := re.match(r"(#{1,6})\s+(.+)", line):
            level, heading = len(found.group(1)), Heading(found.group(2).strip(), number)
            while open_headings and open_headings[-1][0] >= level:
                open_headings.pop()
            (open_headings[-1][1].children if open_headings else top).append(heading)
            open_headings.append((level, heading))
    return top


@server.tool(annotations=READ_ONLY)
async def count_words(ctx: Context) -> dict[str, int]:
    """Count the words of every page, reporting progress page by page."""
    counts: dict[str, int] = {}
    paths = library.paths()
    for number, path in enumerate(paths, 1):
        counts[path] = len((await asyncio.to_thread(library.text, path)).split())
        await ctx.progress(number, len(paths), path)
    return counts


@server.resource("docs://{+path}", title="A page", mime_type="text/markdown")
def page(path: str) -> str:
    """One page of the documentation, as Markdown."""
    return library.text(path)


@server.prompt
def summarize(path: str) -> str:
    """Ask for a summary of one page.

    Args:
        path: The page, as in its docs:// URI.
    """
    return f"Summarize this page in five sentences, for someone who has to decide whether to read it:\n\n{library.text(path)}"


@server.complete("summarize", "path")
@server.complete("docs://{+path}", "path")
def complete_path(prefix: str) -> list[str]:
    """Pages whose path has the text in it."""
    return [path for path in library.paths() if prefix.lower() in path.lower()]


if __name__ == "__main__":
    callboard.run(server)
