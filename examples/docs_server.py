"""Serve a folder of Markdown to agents: search it, read it, outline it, summarize it, and hear of new pages.

callboard run examples/docs_server.py                    # this project's own docs, on http://127.0.0.1:8000/mcp
DOCS_DIR=~/notes callboard run examples/docs_server.py   # any other folder; hidden files and folders are left out
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import quote

from msgspec import Meta

import callboard
from callboard import Context, Fail, NotFound, Reason, Server, ToolError
from callboard.types import ToolAnnotations

DOCS_DIR = Path(os.environ.get("DOCS_DIR") or Path(__file__).resolve().parent.parent / "docs").expanduser()
SCAN_SECONDS = float(os.environ.get("DOCS_SCAN_SECONDS") or 1)
MARKDOWN = "text/markdown"
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
log = logging.getLogger("docs_server")


@dataclass
class Hit:
    """One page that fits a search."""

    uri: str
    path: str
    title: str
    excerpt: str


@dataclass
class Heading:
    """A heading and what stands under it."""

    title: str
    line: int
    children: list[Heading] = field(default_factory=list)


class Change(NamedTuple):
    """What happened to a page: it had no title before when it is new, and has none now when it is gone."""

    path: str
    was: str | None
    now: str | None


class Library:
    """The pages of a folder, and their full-text index (SQLite FTS5, in memory). Any thread may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.titles: dict[str, str] = {}  # by path below the folder; replaced as a whole, so reading it needs no lock
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._db.execute("CREATE VIRTUAL TABLE pages USING fts5(path UNINDEXED, title, body, tokenize = 'porter unicode61')")
        except sqlite3.OperationalError as error:
            raise RuntimeError(f"This Python's SQLite can't search text ({error}): use a Python whose SQLite has FTS5.") from error

    def read(self, path: str) -> str | None:
        """Text of a page; None when there is none."""
        return self._text(path) if path in self.titles else None

    def search(self, query: str, limit: int) -> list[Hit]:
        """Pages that have all the words, best first."""
        # Each word in quotes: what means something in a full-text query is text like any other here.
        words = " ".join(f'"{word}"' for word in re.sub(r'["\0]', " ", query).split())
        if not words:
            raise ToolError("The query has no words in it.")
        sql = "SELECT path, title, snippet(pages, 2, '**', '**', ' ... ', 24) FROM pages WHERE pages MATCH ? ORDER BY rank LIMIT ?"
        with self._lock:
            rows = self._db.execute(sql, (words, limit)).fetchall()
        return [Hit(uri_of(path), path, title, excerpt) for path, title, excerpt in rows]

    def refresh(self) -> list[Change]:
        """Look at the folder: what is new, gone or changed since the last look. The index follows."""
        with self._lock:
            found = dict(self._scan())
            differing = [path for path in sorted({**self._stamps, **found}) if self._stamps.get(path) != found.get(path)]
            titles = self.titles.copy()
            with self._db:  # all of it or, when something fails, nothing: the next look tries again
                changes = [Change(path, titles.pop(path, None), self._index(path)) for path in differing]
            titles.update({change.path: change.now for change in changes if change.now is not None})
            self._stamps, self.titles = found, dict(sorted(titles.items()))
        return changes

    def _scan(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for folder, subfolders, names in os.walk(self.folder):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for file in (Path(folder, name) for name in names if name.endswith(".md") and not name.startswith(".")):
                path = file.relative_to(self.folder).as_posix()
                try:
                    path.encode()
                    status = file.stat()
                except (OSError, UnicodeEncodeError):
                    continue  # gone already, a link to nowhere, or a name that isn't text
                yield path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def _index(self, path: str) -> str | None:
        """Bring the index up to date with one page; its title, None when it is gone."""
        if path in self.titles:
            self._db.execute("DELETE FROM pages WHERE path = ?", (path,))
        body = self._text(path)
        if body is None:
            return None
        title = next((heading.title for level, heading in headings(body) if level == 1), Path(path).stem)
        self._db.execute("INSERT INTO pages VALUES (?, ?, ?)", (path, title, body))
        return title

    def _text(self, path: str) -> str | None:
        try:
            file = (self.folder / path).resolve()
            # A link may lead elsewhere by now: what lies outside the folder is nobody's to read.
            if file.is_relative_to(self.folder) and file.is_file():
                return file.read_text(encoding="utf-8-sig", errors="replace")
        except (OSError, RuntimeError):  # links in a circle are a RuntimeError
            log.warning("Can't read %s", path, exc_info=True)
        return None


def uri_of(path: str) -> str:
    """Address of a page."""
    return f"docs://{quote(path)}"


def headings(body: str) -> Iterator[tuple[int, Heading]]:
    """Headings of a page with their levels; comments in its code are none."""
    fence = ""
    for number, line in enumerate(body.split("\n"), 1):
        mark = FENCE.match(line)
        if fence:
            closes = mark is not None and mark[1].startswith(fence) and not mark[2].strip()
            fence = "" if closes else fence
        elif mark:
            fence = mark[1]
        elif found := HEADING.match(line):
            yield len(found[1]), Heading(found[2].strip(), number)


if not DOCS_DIR.is_dir():
    sys.exit(f"docs_server: there is no folder {DOCS_DIR}; set DOCS_DIR to a folder of Markdown files")
library = Library(DOCS_DIR)


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[None]:
    """Index the folder, then watch it for as long as the server runs."""
    publish(server, await asyncio.to_thread(library.refresh))
    async with asyncio.TaskGroup() as tasks:
        watcher = tasks.create_task(watch(server))
        yield
        watcher.cancel()


server = Server(
    "docs",
    version="1.0.0",
    title="Documentation",
    instructions="Search first, then read the pages that fit. Pages are docs:// resources.",
    lifespan=lifespan,
)


async def watch(server: Server) -> None:
    """Look for changes for ever."""
    while True:
        await asyncio.sleep(SCAN_SECONDS)
        try:
            publish(server, await asyncio.to_thread(library.refresh))
        except Exception:
            log.exception("Can't look at %s; trying again", library.folder)


def publish(server: Server, changes: list[Change]) -> None:
    """Keep the list of resources true; clients that listen hear of it."""
    for path, was, now in changes:
        uri = uri_of(path)
        if was is not None and was != now:
            server.remove("resources", uri)
        if now is not None and was != now:
            server.resource(uri, name=path, title=now, mime_type=MARKDOWN)(partial(page, path))
        if was is not None:
            server.resource_updated(uri)


@server.tool(annotations=READ_ONLY)
def search(query: Annotated[str, Meta(max_length=200)], limit: Annotated[int, Meta(ge=1, le=20)] = 5) -> list[Hit]:
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
        path: The page, as search gives it.
    """
    body = library.read(path)
    if body is None:
        raise ToolError(f"There is no page {path!r}: search for it, or list the resources.")
    top: list[Heading] = []
    opened: list[tuple[int, Heading]] = []
    for level, heading in headings(body):
        while opened and opened[-1][0] >= level:
            opened.pop()
        (opened[-1][1].children if opened else top).append(heading)
        opened.append((level, heading))
    return top


@server.tool(annotations=READ_ONLY)
async def count_words(ctx: Context) -> dict[str, int]:
    """Count the words of every page, reporting progress page by page."""
    counts: dict[str, int] = {}
    paths = list(library.titles)
    for number, path in enumerate(paths, 1):
        body = await asyncio.to_thread(library.read, path)
        if body is not None:
            counts[path] = len(body.split())
        await ctx.progress(number, len(paths), path)
    return counts


@server.resource("docs://{+path}", title="A page", mime_type=MARKDOWN)
def page(path: str) -> str:
    """One page of the documentation, as Markdown."""
    body = library.read(path)
    if body is None:
        raise NotFound
    return body


@server.prompt
def summarize(path: str) -> str:
    """Ask for a summary of one page.

    Args:
        path: The page, as search gives it.
    """
    body = library.read(path)
    if body is None:
        raise Fail(Reason.INVALID_PARAMS, f"There is no page {path!r}.")
    return f"Summarize this page in five sentences, for someone who has to decide whether to read it:\n\n{body}"


@server.complete("summarize", "path")
@server.complete("docs://{+path}", "path")
def complete_path(prefix: str) -> list[str]:
    """Pages whose path has the text in it."""
    return [path for path in library.titles if prefix.lower() in path.lower()]


if __name__ == "__main__":
    callboard.run(server)
