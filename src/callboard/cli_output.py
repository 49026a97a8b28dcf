"""What the command shows of a server: tables and a progress bar on a terminal, plain lines elsewhere, JSON when asked."""

from __future__ import annotations

import logging
import re
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import click
import msgspec

from callboard.client.client import Client, OnProgress
from callboard.wire import v2026_07_28 as v

__all__ = [
    "SECTIONS",
    "Warnings",
    "content_bytes",
    "first_line",
    "is_terminal",
    "one_line",
    "print_json",
    "print_tables",
    "printable",
    "progress_bar",
    "show_block",
    "show_content",
    "to_json",
]

# What a terminal would take as a command of its own: a server's text must not move the cursor or set the title.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
# What a line of a list must not have in it: a name with a line break would pass for two.
_BREAK = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# JSON may have these as they are; they are only ever inside strings.
_UNESCAPED = re.compile(r"[\x7f-\x9f\u2028\u2029]")
# Capability, method of the client, key in JSON, heading, and what names one entry.
SECTIONS: tuple[tuple[str, Callable[[Client], Awaitable[list[Any]]], str, str, str], ...] = (
    ("tools", Client.list_tools, "tools", "Tools", "name"),
    ("resources", Client.list_resources, "resources", "Resources", "uri"),
    ("resources", Client.list_resource_templates, "resourceTemplates", "Resource templates", "uri_template"),
    ("prompts", Client.list_prompts, "prompts", "Prompts", "name"),
)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody looks at a stream; None is one that was closed before the program began."""
    return stream is not None and stream.isatty()


@contextmanager
def progress_bar() -> Iterator[OnProgress | None]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(progress: float, total: float | None, message: str | None) -> None:
            bar.update(task, completed=progress, total=total, description=printable(message or "", terminal=True))

        yield show


def show_block(block: v.ContentBlock) -> str:
    """One block of content as text."""
    if isinstance(block, v.TextContent):
        return block.text
    if isinstance(block, v.ResourceLink):
        return f"{block.name}: {block.uri}"
    if isinstance(block, v.EmbeddedResource):
        if block.resource.text is not msgspec.UNSET:
            return block.resource.text
        return f"[{block.resource.uri}: {block.resource.mime_type or 'bytes'}; --json shows it]"
    kind = "image" if isinstance(block, v.ImageContent) else "audio"
    return f"[{kind}: {block.mime_type}, {len(block.data) * 3 // 4} bytes; --json shows it]"


def content_bytes(content: v.ResourceContents) -> bytes:
    """What a resource holds, as bytes.

    Raises:
        click.ClickException: It is no base64.
    """
    if content.text is not msgspec.UNSET:
        return content.text.encode()
    try:
        return b64decode(content.blob or "", validate=True)
    except ValueError as error:
        raise click.ClickException(f"The server's blob of {one_line(content.uri)} is no base64; --json shows it as it is.") from error


def show_content(content: v.ResourceContents) -> str:
    """What a resource holds, for people."""
    if content.text is not msgspec.UNSET:
        return content.text
    return f"[{content.uri}: {content.mime_type or 'bytes'}, {len(content_bytes(content))} bytes; --output writes them into a file]"


def _arguments(item: Any) -> str:
    """Arguments of a tool or prompt, in short: `city, days=3, [unit]`."""
    if isinstance(item, v.Prompt):
        return ", ".join(each.name if each.required else f"[{each.name}]" for each in item.arguments or ())
    schema = item.input_schema if isinstance(item, v.Tool) else {}
    shown = []
    for name, each in (schema.get("properties") or {}).items():
        if name in (schema.get("required") or ()):
            shown.append(name)
        elif isinstance(each, dict) and "default" in each:
            shown.append(f"{name}={msgspec.json.encode(each['default']).decode()}")
        else:
            shown.append(f"[{name}]")
    return printable(", ".join(shown), terminal=True)


def first_line(item: Any) -> str:
    """The first line of what an item says about itself."""
    text = (item.description or item.title or "").strip()
    return printable(text.split("\n", 1)[0], terminal=True)


def print_tables(heading: str, listings: Mapping[str, list[Any]]) -> None:
    """Print what a server has, as tables.

    Args:
        heading: The server.
        listings: Items by the keys of `SECTIONS`.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(printable(heading.strip(), terminal=True), style="bold"))
    for _, _, key, title, name in SECTIONS:
        if key not in listings:
            continue
        # What is named by a name takes arguments; the rest shows them in its URI, or has none.
        columns = ("name", "arguments", "description") if name == "name" else (name.replace("_", " "), "description")
        table = Table(*columns, title=title, title_justify="left")
        for item in listings[key]:
            cells = (printable(getattr(item, name), terminal=True), *((_arguments(item),) if name == "name" else ()), first_line(item))
            table.add_row(*map(Text, cells))
        console.print(table if listings[key] else f"{title}: none")


def print_json(value: Any) -> None:
    """Print a value as JSON for people."""
    click.echo(msgspec.json.format(to_json(value), indent=2))


def to_json(value: Any) -> str:
    """A value as JSON on one line, without control characters."""
    return _UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(value).decode())


def one_line(text: str) -> str:
    """A server's text as a part of one line, without control characters."""
    return _BREAK.sub("\N{REPLACEMENT CHARACTER}", text)


class Warnings(logging.Handler):
    """Tells of what is logged on stderr, as the command tells of errors."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        word = "Warning: " if record.levelno >= logging.WARNING else ""
        click.echo(printable(f"{word}{record.getMessage()}", terminal=is_terminal(sys.stderr)), err=True)


def printable(text: str, *, terminal: bool) -> str:
    """A server's text, without what a terminal would take as a command of its own."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if terminal else text
