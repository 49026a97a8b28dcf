"""examples/docs_server.py: what it shows of a folder, what it never shows, and what it says when the folder changes."""

import asyncio
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from source_tree import ROOT

from callboard import Client, ToolError, types
from callboard.client.changes import Change
from callboard.client.errors import ServerError
from callboard.client.subscription import Subscription
from callboard.types import ResourceListChangedNotification, ResourceUpdatedNotification

PROGRAM = ROOT / "examples" / "docs_server.py"
SECRET = "the launch code is 0000"
NEVER = 3600.0  # seconds between looks at the folder, for tests that look themselves
Load = Callable[..., ModuleType]


def write(folder: Path, pages: Mapping[str, str | bytes]) -> Path:
    """Writes files below a folder."""
    for name, content in pages.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@contextmanager
def program(folder: Path, *, scan: float = NEVER) -> Iterator[ModuleType]:
    """The program's module, run for a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCS_DIR", str(folder))
        patch.setenv("DOCS_SCAN_SECONDS", str(scan))
        spec = spec_from_file_location("docs_server", PROGRAM)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        patch.setitem(sys.modules, "docs_server", module)
        spec.loader.exec_module(module)
        yield module
        with module.library._lock:
            module.library._db.close()


@pytest.fixture
def load() -> Iterator[Load]:
    """Runs the program's module for a folder, as often as it is called."""
    with ExitStack() as stack:
        yield lambda folder, scan=NEVER: stack.enter_context(program(folder, scan=scan))


@pytest.fixture(scope="module")
def own() -> Iterator[Any]:
    """The program, with this project's documentation."""
    with program(ROOT / "docs") as module:
        module.library.refresh()
        yield module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three pages."""
    return write(
        tmp_path / "docs",
        {
            "start.md": "# Getting started\n\nInstall it, then call `ctx.progress`.\n\n## Next\n",
            "guide/tools.md": "# Tools\n\nTools report progress. Progress is good; progress it is.\n",
            "guide/Café.md": "# Café\n\nCrème brûlée in C++.\n",
        },
    )


@pytest.fixture
async def client(folder: Path, load: Load) -> AsyncIterator[Client]:
    """A client of the program that serves `folder`."""
    async with Client(load(folder).server) as connected:
        yield connected


async def call(client: Client, tool: str, **arguments: object) -> Any:
    """What a tool gives; it must not fail."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: object) -> str:
    """What a tool says when it fails; it must."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def read(client: Client, uri: str) -> str:
    """The text at a URI."""
    (contents,) = (await client.read_resource(uri)).contents
    return cast("str", contents.text)


async def names(client: Client) -> set[str]:
    """The pages that are listed."""
    return {resource.name for resource in await client.list_resources()}


async def test_search_finds_the_best_page_first(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {"a.md": "# Weak\n\nprogress" + " and more" * 50, "b.md": "# Strong\n\nprogress, progress", "c.md": "# None"})
    async with Client(load(tmp_path).server) as client:
        first, second = await call(client, "search", query="PROGRESS")
        assert (first["path"], first["title"], second["path"]) == ("b.md", "Strong", "a.md")
        assert "**progress**" in first["excerpt"]
        assert (await read(client, first["uri"])).startswith("# Strong")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("progress install", ["start.md"]),
        ("progress nowhere", []),
        ("tool reporting", ["guide/tools.md"]),
        ("ctx.progress", ["start.md"]),
        ("cafe creme", ["guide/Café.md"]),
        ("C++", ["guide/Café.md"]),
        ('"progress', ["guide/tools.md", "start.md"]),
        ("progress*", ["guide/tools.md", "start.md"]),
        ("title:progress", []),
        ("progress OR nowhere", []),
        ("progress NOT tools", []),
        ("NEAR(progress tools)", []),
        ("(progress", ["guide/tools.md", "start.md"]),
        ("^tools -it", ["guide/tools.md"]),
        ("++ 'progress'; --", ["guide/tools.md", "start.md"]),
        ("a\0b", []),
        ("++", []),
    ],
)
async def test_a_query_is_words_whatever_is_in_it(client: Client, query: str, found: list[str]) -> None:
    assert [hit["path"] for hit in await call(client, "search", query=query)] == found


@pytest.mark.parametrize("query", ["", "  ", '"', "\0"])
async def test_a_query_without_words_is_refused(client: Client, query: str) -> None:
    assert await refusal(client, "search", query=query) == "The query has no words in it."


async def test_searches_are_bounded(client: Client) -> None:
    assert len(await call(client, "search", query="progress", limit=1)) == 1
    assert "200" in await refusal(client, "search", query="x" * 201)
    assert "20" in await refusal(client, "search", query="x", limit=21)


@given(st.text(max_size=60))
def test_no_query_breaks_the_index(own: Any, query: str) -> None:
    if not query.replace('"', " ").replace("\0", " ").strip():
        with pytest.raises(ToolError, match="no words"):
            own.library.search(query, 5)
    else:
        assert all(hit.path in own.library.titles for hit in own.library.search(query, 5))


ODD_NAMES = [
    "a b.md",
    "日本語.md",
    "e\u0301.md",
    "😀.md",
    "100%.md",
    "%2e%2e.md",
    "%41.md",
    "a#b?c.md",
    "q'\"<>&.md",
    "x+y=z;,@!$()*[]{}.md",
    "line\nbreak.md",
    "back\\slash.md",
    "c:drive.md",
    "a..b.md",
    "~user.md",
    "deep/er/and deeper/ü.md",
]


async def test_a_page_is_read_under_every_name_it_can_have(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {name: f"# Title\n\nwords {name}" for name in ODD_NAMES})
    async with Client(load(tmp_path).server) as client:
        listed = await client.list_resources()
        assert {resource.name for resource in listed} == set(ODD_NAMES)
        assert all(resource.uri.isascii() for resource in listed)
        assert {resource.name: await read(client, resource.uri) for resource in listed} == {
            name: f"# Title\n\nwords {name}" for name in ODD_NAMES
        }
        hits = await call(client, "search", query="words", limit=20)
        assert {(hit["uri"], hit["path"]) for hit in hits} == {(resource.uri, resource.name) for resource in listed}
        for name in ODD_NAMES:
            assert await call(client, "outline", path=name) == [{"title": "Title", "line": 1, "children": []}]


async def test_pages_are_listed_in_order_with_titles(client: Client) -> None:
    listed = [(resource.name, resource.title, resource.mime_type) for resource in await client.list_resources()]
    assert listed == [
        ("guide/Café.md", "Café", "text/markdown"),
        ("guide/tools.md", "Tools", "text/markdown"),
        ("start.md", "Getting started", "text/markdown"),
    ]
    (template,) = await client.list_resource_templates()
    assert template.uri_template == "docs://{+path}"


async def test_only_pages_are_served(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {"page.md": "p", ".hidden.md": "h", ".git/config.md": "g", "notes.txt": "t", "folder.md/inner.md": "i", "MD": "m"})
    write(tmp_path, {os.fsdecode(b"\xff.md"): "no UTF-8"})
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "loop.md").symlink_to("loop.md")
    (tmp_path / "nowhere.md").symlink_to("missing.md")
    async with Client(load(tmp_path).server) as client:
        assert await names(client) == {"page.md", "folder.md/inner.md"}
        for path in (".hidden.md", ".git/config.md", "notes.txt", "folder.md", "pipe.md", "loop.md", "nowhere.md"):
            with pytest.raises(ServerError, match="not found"):
                await read(client, f"docs://{path}")


async def test_text_that_is_no_utf8_is_read_as_well_as_it_goes(tmp_path: Path, load: Load) -> None:
    write(
        tmp_path,
        {"latin.md": b"# Caf\xe9\n\nfine words\xff", "bom.md": b"\xef\xbb\xbf# Marked\r\n", "nul.md": b"# N\0L\n\nwords", "empty.md": b""},
    )
    async with Client(load(tmp_path).server) as client:
        assert await read(client, "docs://latin.md") == "# Caf\ufffd\n\nfine words\ufffd"
        assert await read(client, "docs://bom.md") == "# Marked\n"
        assert await read(client, "docs://nul.md") == "# N\0L\n\nwords"
        assert await read(client, "docs://empty.md") == ""
        assert {resource.name: resource.title for resource in await client.list_resources()} == {
            "latin.md": "Caf\ufffd",
            "bom.md": "Marked",
            "nul.md": "N\0L",
            "empty.md": "empty",
        }
        assert [hit["path"] for hit in await call(client, "search", query="fine")] == ["latin.md"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Secrets beside the folder that is served."""
    return write(tmp_path / "outside", {"secret.md": SECRET, "secret.txt": SECRET})


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.md",
        "guide/../../outside/secret.md",
        "%2e%2e/outside/secret.md",
        "%2e%2e%2foutside%2fsecret.md",
        "%252e%252e/outside/secret.md",
        "..%5coutside%5csecret.md",
        "guide/../start.md",
        "./start.md",
        "/start.md",
        "start.md%00",
        "start.md/",
        "start.md/../start.md",
        "guide//tools.md",
        "START.md",
        "",
    ],
)
async def test_no_path_leads_out(client: Client, outside: Path, path: str) -> None:
    assert (outside / "secret.md").exists()
    for attempt in (path, path.replace("../outside", str(outside))):
        with pytest.raises(ServerError) as refused:
            await read(client, f"docs://{attempt}")
        assert refused.value.code == -32602
        assert "There is no page" in await refusal(client, "outline", path=attempt)
        with pytest.raises(ServerError, match="There is no page"):
            await client.get_prompt("summarize", {"path": attempt})


async def test_links_that_lead_out_are_no_pages(folder: Path, outside: Path, load: Load) -> None:
    (folder / "link.md").symlink_to(outside / "secret.md")
    (folder / "relative.md").symlink_to("../outside/secret.md")
    (folder / "linked").symlink_to(outside, target_is_directory=True)
    (folder / "second.md").symlink_to("start.md")
    async with Client(load(folder).server) as client:
        assert await names(client) == {"start.md", "second.md", "guide/tools.md", "guide/Café.md"}
        assert await read(client, "docs://second.md") == await read(client, "docs://start.md")
        for uri in ("docs://link.md", "docs://relative.md", "docs://linked/secret.md"):
            with pytest.raises(ServerError, match="not found"):
                await read(client, uri)
        assert await call(client, "search", query="launch code") == []


async def test_a_page_that_turns_into_a_link_is_no_page_any_more(folder: Path, outside: Path, load: Load) -> None:
    """Between two looks: the index still knows the page."""
    async with Client(load(folder).server) as client:
        (folder / "start.md").unlink()
        (folder / "start.md").symlink_to(outside / "secret.md")
        (folder / "guide").rename(folder / "old")
        write(outside, {"tools.md": SECRET})
        (folder / "guide").symlink_to(outside, target_is_directory=True)
        (folder / "old" / "Café.md").unlink()
        for uri in ("docs://start.md", "docs://guide/tools.md"):
            with pytest.raises(ServerError, match="not found"):
                await read(client, uri)
        assert await call(client, "count_words") == {}


async def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path, load: Load) -> None:
    (tmp_path / "alias").symlink_to(folder, target_is_directory=True)
    async with Client(load(tmp_path / "alias").server) as client:
        assert (await read(client, "docs://start.md")).startswith("# Getting")


async def test_a_page_that_turns_into_a_circle_is_not_found(folder: Path, load: Load) -> None:
    async with Client(load(folder).server) as client:
        (folder / "start.md").unlink()
        (folder / "start.md").symlink_to("start.md")
        with pytest.raises(ServerError, match="not found"):
            await read(client, "docs://start.md")


async def test_a_page_deleted_between_two_looks_is_not_found(folder: Path, load: Load) -> None:
    async with Client(load(folder).server) as client:
        (folder / "start.md").unlink()
        with pytest.raises(ServerError, match="not found"):
            await read(client, "docs://start.md")
        assert "There is no page 'start.md'" in await refusal(client, "outline", path="start.md")
        assert set(await call(client, "count_words")) == {"guide/tools.md", "guide/Café.md"}


PAGE = """\
# One

## One one
#### Deep
```sh
# a comment
```
## One two
~~~~ md
# in a fence
~~~
~~~~ text
## still in it
~~~~
#NoSpace
####### too deep
  # indented
# Two
"""


def tree(headings: list[dict[str, Any]]) -> list[Any]:
    return [(heading["title"], heading["line"], tree(heading["children"])) for heading in headings]


async def test_the_outline_is_a_tree_of_the_headings(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {"page.md": PAGE, "flat.md": "no headings\n\nat all", "late.md": "### Three\n# One\n## Two"})
    async with Client(load(tmp_path).server) as client:
        assert tree(await call(client, "outline", path="page.md")) == [
            ("One", 1, [("One one", 3, [("Deep", 4, [])]), ("One two", 8, [])]),
            ("Two", 18, []),
        ]
        assert await call(client, "outline", path="flat.md") == []
        assert tree(await call(client, "outline", path="late.md")) == [("Three", 1, []), ("One", 2, [("Two", 3, [])])]
        titles = {resource.name: resource.title for resource in await client.list_resources()}
        assert titles == {"page.md": "One", "flat.md": "flat", "late.md": "One"}


async def test_tools_do_as_they_advertise(client: Client) -> None:
    arguments = {"search": {"query": "progress"}, "outline": {"path": "start.md"}, "count_words": {}}
    for tool in await client.list_tools():
        assert tool.annotations == types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        assert isinstance(tool.output_schema, dict)
        jsonschema_rs.validator_for(tool.output_schema).validate(await call(client, tool.name, **arguments[tool.name]))


@given(st.text(alphabet=st.sampled_from("#`~ \t\n\rab\u2028")))
@example("\u2028\f# a")
def test_lines_of_an_outline_are_those_of_the_page(own: Any, body: str) -> None:
    lines = body.split("\n")
    found = [heading for _, heading in own.headings(body)]
    assert [heading.line for heading in found] == sorted({heading.line for heading in found})
    assert all(lines[heading.line - 1].startswith("#") and heading.title in lines[heading.line - 1] for heading in found)


async def test_a_prompt_holds_the_page_and_its_argument_completes(client: Client) -> None:
    (message,) = (await client.get_prompt("summarize", {"path": "start.md"})).messages
    assert isinstance(message.content, types.TextContent)
    assert "five sentences" in message.content.text
    assert "# Getting started\n\nInstall it" in message.content.text
    for ref in (types.PromptReference(name="summarize"), types.ResourceTemplateReference(uri="docs://{+path}")):
        assert (await client.complete(ref, "path", "GUIDE")).values == ["guide/Café.md", "guide/tools.md"]
        assert (await client.complete(ref, "path", "caf")).values == ["guide/Café.md"]
        assert (await client.complete(ref, "path", "nothing like it")).values == []


async def test_words_are_counted_with_progress(client: Client) -> None:
    notes: list[tuple[float, float | None, str | None]] = []
    counted = await client.call_tool("count_words", on_progress=lambda *note: notes.append(note))
    assert counted.structured_content == {"guide/Café.md": 6, "guide/tools.md": 11, "start.md": 10}
    assert notes == [(1, 3, "guide/Café.md"), (2, 3, "guide/tools.md"), (3, 3, "start.md")]


async def heard(changes: Subscription, kind: type[Change]) -> Change:
    """The next change of one kind, within two seconds."""
    async with asyncio.timeout(2):
        async for change in changes:
            if isinstance(change, kind):
                return change
    raise AssertionError("the stream ended")


async def test_a_new_page_is_announced_within_two_seconds(folder: Path, load: Load) -> None:
    """At the pace that the program has by default."""
    async with Client(load(folder, scan=1).server) as client, client.listen(resources=True) as changes:
        write(folder, {"a/new/page.md": "# New page"})
        await heard(changes, ResourceListChangedNotification)
        assert await read(client, "docs://a/new/page.md") == "# New page"
        assert [resource.title for resource in await client.list_resources() if resource.name == "a/new/page.md"] == ["New page"]
        assert [hit["path"] for hit in await call(client, "search", query="new page")] == ["a/new/page.md"]
        completion = await client.complete(types.PromptReference(name="summarize"), "path", "")
        assert completion.values == ["a/new/page.md", "guide/Café.md", "guide/tools.md", "start.md"]


async def test_a_changed_page_is_announced_to_those_who_asked_for_it(folder: Path, load: Load) -> None:
    async with Client(load(folder, scan=0.01).server) as client, client.listen(uris=["docs://guide/tools.md"]) as changes:
        write(folder, {"start.md": "# Getting started\n\nnot asked for"})
        write(folder, {"guide/tools.md": "# Tools\n\nhammers"})
        change = await heard(changes, ResourceUpdatedNotification)
        assert isinstance(change, ResourceUpdatedNotification)
        assert change.params.uri == "docs://guide/tools.md"
        assert [hit["path"] for hit in await call(client, "search", query="hammers")] == ["guide/tools.md"]
        assert await call(client, "search", query="good") == []
        assert len(await names(client)) == 3


async def test_any_page_can_be_asked_for_by_the_template(folder: Path, load: Load) -> None:
    async with Client(load(folder, scan=0.01).server) as client, client.listen(uris=["docs://{+path}"]) as changes:
        write(folder, {"guide/Café.md": "# Café\n\nclosed"})
        change = await heard(changes, ResourceUpdatedNotification)
        assert isinstance(change, ResourceUpdatedNotification)
        assert change.params.uri == "docs://guide/Caf%C3%A9.md"


async def test_a_new_title_changes_the_list(folder: Path, load: Load) -> None:
    async with Client(load(folder, scan=0.01).server) as client, client.listen(resources=True, uris=["docs://start.md"]) as changes:
        write(folder, {"start.md": "# Begin here"})
        await heard(changes, ResourceListChangedNotification)
        await heard(changes, ResourceUpdatedNotification)
        assert {resource.title for resource in await client.list_resources()} == {"Begin here", "Tools", "Café"}


async def test_a_page_that_goes_is_gone_everywhere(folder: Path, load: Load) -> None:
    async with Client(load(folder, scan=0.01).server) as client, client.listen(resources=True) as changes:
        (folder / "guide" / "tools.md").unlink()
        await heard(changes, ResourceListChangedNotification)
        assert await names(client) == {"start.md", "guide/Café.md"}
        assert [hit["path"] for hit in await call(client, "search", query="progress")] == ["start.md"]
        with pytest.raises(ServerError, match="not found"):
            await read(client, "docs://guide/tools.md")


async def test_the_folder_may_go_and_come_back(folder: Path, load: Load) -> None:
    async with Client(load(folder, scan=0.01).server) as client, client.listen(resources=True) as changes:
        shutil.move(folder, folder.with_name("away"))
        while await names(client):
            await heard(changes, ResourceListChangedNotification)
        shutil.move(folder.with_name("away"), folder)
        while len(await names(client)) < 3:
            await heard(changes, ResourceListChangedNotification)


async def test_watching_goes_on_after_a_failure(folder: Path, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    module = load(folder, scan=0.01)
    async with Client(module.server) as client, client.listen(resources=True) as changes:
        module.server.resource("docs://taken.md")(lambda: "in the way")
        await heard(changes, ResourceListChangedNotification)
        write(folder, {"taken.md": "# Taken"})
        async with asyncio.timeout(2):
            while "taken.md" not in caplog.text:
                await asyncio.to_thread(module.library.search, "taken", 1)
        write(folder, {"free.md": "# Free"})
        await heard(changes, ResourceListChangedNotification)
        assert "free.md" in await names(client)


async def test_a_look_that_fails_is_made_up_for(folder: Path, load: Load) -> None:
    """Wherever it fails: SQLite is interrupted after ever more steps."""
    library = load(folder).library

    def fails(steps: int) -> bool:
        left = iter(range(steps))
        library._db.set_progress_handler(lambda: next(left, None) is None, 1)
        try:
            library.refresh()
        except sqlite3.OperationalError:
            return True
        return False

    failures = sum(1 for _ in itertools.takewhile(fails, itertools.count(0, 10)))
    assert failures > 5
    library._db.set_progress_handler(None, 0)
    assert len(library.titles) == 3
    assert len(library.search("progress", 9)) == 2


async def test_nothing_is_announced_when_nothing_changes(folder: Path, load: Load) -> None:
    module = load(folder)
    assert [change.path for change in module.library.refresh()] == ["guide/Café.md", "guide/tools.md", "start.md"]
    assert module.library.refresh() == []
    write(folder, {"start.md": "# Getting started\n\nedited"})
    assert module.library.refresh() == [("start.md", "Getting started", "Getting started")]


async def test_the_watcher_ends_with_the_server(folder: Path, load: Load) -> None:
    module = load(folder, scan=0.01)
    for _ in range(2):
        async with Client(module.server) as client:
            assert len(await names(client)) == 3
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_empty_folder_is_a_library_without_books(tmp_path: Path, load: Load) -> None:
    async with Client(load(tmp_path, scan=0.01).server) as client, client.listen(resources=True) as changes:
        assert await client.list_resources() == []
        assert await call(client, "search", query="anything") == []
        assert await call(client, "count_words") == {}
        write(tmp_path, {"first.md": "# First"})
        await heard(changes, ResourceListChangedNotification)
        assert await names(client) == {"first.md"}


async def test_a_thousand_pages_are_served_soon(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {f"part {n % 10}/page{n}.md": f"# Page {n}\n\n" + f"word{n} and many more words\n" * 40 for n in range(1000)})
    began = time.process_time()
    async with Client(load(tmp_path).server) as client:
        assert len(await client.list_resources()) == 1000
        took = time.process_time() - began
        assert [hit["path"] for hit in await call(client, "search", query="word777")] == ["part 7/page777.md"]
        completion = await client.complete(types.PromptReference(name="summarize"), "path", "page")
        assert (len(completion.values), completion.total, completion.has_more) == (100, 1000, True)
    assert took < 5  # seconds of CPU time; about 0.6


def start(**environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program as a user would; it must end by itself."""
    return subprocess.run(
        [sys.executable, PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize("name", ["missing", "file.md"])
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"file.md": "no folder"})
    ran = start(DOCS_DIR=str(tmp_path / name))
    assert ran.returncode == 1
    assert ran.stderr == f"docs_server: there is no folder {tmp_path / name}; set DOCS_DIR to a folder of Markdown files\n"


def test_a_python_without_full_text_search_is_told_so(folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    class OldConnection(sqlite3.Connection):
        """What SQLite says when FTS5 was left out of it."""

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("fts5", "fts_left_out"), *parameters)

    connect = sqlite3.connect
    opened: list[sqlite3.Connection] = []

    def connect_old(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, factory=OldConnection, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_old)
    with pytest.raises(RuntimeError, match=r"no such module: fts_left_out.*use a Python whose SQLite has FTS5"):
        load(folder)
    opened[0].close()
