"""The command `callboard`: run a server, look at one, call a tool.

Exit codes: 0; 1 when a server or a tool failed; 2 when the command was wrong. What goes wrong is said in a sentence on stderr.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from callboard.client.client import Client, OnProgress
from callboard.client.errors import ClientError, ProcessExited, ServerError
from callboard.compose import run as serve
from callboard.errors import REASONS, Reason, RegistrationError
from callboard.loader import LoadError, load_server, split_place
from callboard.reloader import serve_with_reload
from callboard.server.app import Server
from callboard.transport.ports import refuse_port
from callboard.transport.stdio import guard
from callboard.wire import v2026_07_28 as v

__all__ = ["main"]

T = TypeVar("T")

HOST, PORT, PATH = "127.0.0.1", 8000, "/mcp"
RUN = [sys.executable, "-m", "callboard", "run"]
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
_INTERNAL = REASONS[Reason.INTERNAL].code
_UNASKED = REASONS[Reason.MISSING_CAPABILITY].code
# What a terminal would take as a command of its own: a server's text must not move the cursor or set the title.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
# What someone types who leaves out http://.
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d+(?:/.*)?|localhost/.*")
# Capability, method of the client, key in JSON, heading, and what names one entry.
SECTIONS: tuple[tuple[str, Callable[[Client], Awaitable[list[Any]]], str, str, str], ...] = (
    ("tools", Client.list_tools, "tools", "Tools", "name"),
    ("resources", Client.list_resources, "resources", "Resources", "uri"),
    ("resources", Client.list_resource_templates, "resourceTemplates", "Resource templates", "uri_template"),
    ("prompts", Client.list_prompts, "prompts", "Prompts", "name"),
)
_JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Refusal(click.ClickException):
    """The command was wrong."""

    exit_code = 2


timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True, help="Seconds to wait for each answer."
)
header_option = click.option("-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="HTTP header of every request.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="callboard", prog_name="callboard")
def main() -> None:
    """Serve MCP tools, look at servers, call tools.

    A TARGET of list and call is a URL, a program that run takes, or a command in quotes.
    """


@main.command()
@click.argument("program")
@click.option("--stdio", is_flag=True, help="Serve on stdin and stdout instead of HTTP.")
@click.option("--host", help=f"Address to listen on.  [default: {HOST}]")
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port to listen on; 0 for any free one.  [default: {PORT}]")
@click.option("--path", help=f"Path of the endpoint.  [default: {PATH}]")
@click.option("--reload", is_flag=True, help="Start anew when a .py file changes.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What to log on stderr.")
def run(program: str, *, stdio: bool, host: str | None, port: int | None, path: str | None, reload: bool, log_level: str) -> None:
    """Serve PROGRAM: app.py, app.py:name, package.module or package.module:name.

    Without a name: server, app or mcp, else the only Server there is.
    """
    if stdio:
        if reload or any(option is not None for option in (host, port, path)):
            raise Refusal("--stdio serves on stdin and stdout: leave out --host, --port, --path and --reload.")
        guard()  # before the program's own code can print
        serve(_load(program, log_level), transport="stdio", log_level=log_level)
        return
    host, port, path = HOST if host is None else host, PORT if port is None else port, PATH if path is None else path
    if not host:
        raise Refusal("--host is empty: give an address of this machine, or 0.0.0.0 for all of them.")
    if not re.fullmatch(r"/[^\s?#%]*", path):
        raise Refusal(f"--path begins with a slash and has no blank, ?, # or % in it, as in {PATH}.")
    if complaint := refuse_port(host, port):
        raise Refusal(f"Can't serve: {complaint}.")
    if reload:
        options = ["--host", host, "--port", str(port), "--path", path, "--log-level", log_level]
        folder = Path(split_place(program)[0]).parent if program.partition(":")[0].endswith(".py") else Path()
        sys.exit(serve_with_reload([*RUN, program, *options], folder.resolve()))
    signal.signal(signal.SIGTERM, _leave)  # A40: what a supervisor asks for is no failure
    try:
        serve(_load(program, log_level), host=host, port=port, path=path, log_level=log_level)
    except RegistrationError as error:
        raise Refusal(str(error)) from error
    except KeyboardInterrupt:
        return


def _leave(*_: object) -> NoReturn:
    sys.exit(0)


@main.command(name="list")
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@timeout_option
@header_option
def list_components(target: str, *, as_json: bool, timeout: float, headers: Sequence[str]) -> None:
    """Show what the server at TARGET offers: tools, resources, templates, prompts."""
    found, listings = _with_client(target, timeout, headers, _take_stock)
    info = (found.meta or {}).get("io.modelcontextprotocol/serverInfo", {})
    if as_json:
        instructions = {"instructions": found.instructions} if found.instructions else {}
        _print_json({"server": info, **instructions, **listings})
    elif sys.stdout.isatty():
        _print_tables(f"{info.get('name', target)} {info.get('version', '')}", listings)
    else:
        for _, _, key, _, name in SECTIONS:
            for item in listings.get(key, ()):
                click.echo(f"{key}\t{getattr(item, name)}\t{_first_line(item)}")


@main.command()
@click.argument("target")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json-args", default="{}", metavar="JSON", help="Arguments as one JSON object; KEY=VALUE goes on top.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@timeout_option
@header_option
def call(
    target: str, tool: str, arguments: Sequence[str], *, json_args: str, as_json: bool, timeout: float, headers: Sequence[str]
) -> None:
    """Call TOOL of the server at TARGET.

    A VALUE is read as the tool's input schema says: a string as it stands, anything else as JSON.
    """
    given = _parse_object(json_args)

    async def perform(client: Client) -> v.CallToolResult:
        known = {each.name: each for each in await client.list_tools()}
        if tool not in known:
            raise Refusal(f"The server has no tool {tool!r}; {_suggest(tool, list(known))}")
        values = given | _parse_pairs(arguments, known[tool].input_schema)
        with _progress_bar() as on_progress:
            return await client.call_tool(tool, values, on_progress=on_progress)

    result = _with_client(target, timeout, headers, perform)
    if as_json:
        _print_json(result)
    text = "\n".join(_show(block) for block in result.content)
    if not result.content and result.structured_content is not msgspec.UNSET:
        text = msgspec.json.encode(result.structured_content).decode()
    if result.is_error:
        raise click.ClickException(_printable(text, terminal=sys.stderr.isatty()))
    if not as_json:
        click.echo(_printable(text, terminal=sys.stdout.isatty()), color=True)  # click would strip colours off a file


def _load(program: str, log_level: str) -> Server:
    try:
        server = load_server(program)
    except LoadError as error:
        if error.broken:
            raise click.ClickException(str(error)) from error
        raise Refusal(f"{error}.") from error
    # Without effect when the program has set up logging itself.
    logging.basicConfig(level=log_level.upper(), format="%(levelname)s: %(name)s: %(message)s")
    return server


def _target(text: str) -> str | list[str]:
    """What a TARGET means; one word that is no program on PATH is a server's program."""
    if text.lower().startswith(("http://", "https://")):
        return text
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Refusal(f"TARGET is no command line: {error}.") from error
    if not words:
        raise Refusal("TARGET is empty: give a URL, a program such as app.py, or a command in quotes.")
    if len(words) > 1 or shutil.which(words[0]):
        return words
    if "://" in text:
        raise Refusal(f"{text} can't be called: only URLs with http:// or https:// can.")
    if _ADDRESS.fullmatch(text):
        raise Refusal(f"{text} is an address: as a URL it is http://{text}.")
    return [*RUN, words[0], "--stdio"]


def _with_client(target: str, timeout: float, headers: Sequence[str], work: Callable[[Client], Awaitable[T]]) -> T:
    meant = _target(target)
    if headers and not isinstance(meant, str):
        raise Refusal("--header is for a TARGET that is a URL.")
    try:
        client = Client(meant, timeout=timeout, headers=_parse_headers(headers) if headers else None)
    except ValueError as error:
        raise Refusal(f"{error}.") from error

    async def connected() -> T:
        async with client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except ClientError as error:
        text = str(error)
        if isinstance(error, ProcessExited) and error.returncode == Refusal.exit_code and meant[: len(RUN)] == RUN:
            raise Refusal(error.stderr.rpartition("Error: ")[2].strip()) from error  # `callboard run` has no such program
        if isinstance(error, ServerError) and error.code == _UNASKED:
            text += "\nThis command answers no questions and waits for no tasks; callboard.Client does: on_elicit=, on_sample=, on_roots=, tasks=True."
        if isinstance(error, ServerError) and error.code == _INTERNAL and client.stderr:
            text += f"\nThe end of what the server wrote to standard error:\n{client.stderr.rstrip()}"
        raise click.ClickException(_printable(text, terminal=sys.stderr.isatty())) from error


async def _take_stock(client: Client) -> tuple[v.DiscoverResult, dict[str, list[Any]]]:
    found = await client.discover()
    offered = msgspec.to_builtins(found.capabilities)
    return found, {key: await lister(client) for capability, lister, key, _, _ in SECTIONS if capability in offered}


def _parse_headers(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise Refusal("--header takes 'NAME: VALUE', with a colon.")  # not what was given: it may be a secret
        found[name.strip()] = value.strip()
    return found


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = _parse_json(text)
    except ValueError as error:
        raise Refusal(f"--json-args is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise Refusal(f'--json-args must be an object, such as \'{{"city": "Oslo"}}\', not {_JSON_TYPES[type(value)]}.')
    return value


def _parse_pairs(pairs: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Read `key=value` words by the tool's input schema."""
    values: dict[str, Any] = {}
    properties = schema.get("properties") or {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise Refusal(f"{pair!r} is no argument: write key=value.")
        if key in values:
            raise Refusal(f"Argument {key!r} is given twice.")
        values[key] = _parse_value(key, text, _types(properties.get(key), schema))
    return values


def _parse_value(key: str, text: str, types: set[str] | None) -> Any:
    """A parameter that may be a string is one, byte for byte (A24); without a type, what is JSON is JSON."""
    if types is not None and "string" in types:
        return text
    try:
        value = _parse_json(text)
    except ValueError:
        if types is None:
            return text
        value = text
    kind = _JSON_TYPES[type(value)]
    if types is None or kind in types or (kind == "integer" and "number" in types) or (isinstance(value, float) and value.is_integer()):
        return value
    raise Refusal(f"Argument {key!r} must be {' or '.join(sorted(types))}, not {text!r}.")


def _parse_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _types(schema: Any, root: Mapping[str, Any], depth: int = 16) -> set[str] | None:
    """JSON types that a schema allows; None when it does not say. Local references are followed, to a bounded depth."""
    if not isinstance(schema, Mapping) or not depth:
        return None
    if isinstance(kind := schema.get("type"), str | list):
        return {kind} if isinstance(kind, str) else set(kind)
    if isinstance(values := [schema["const"]] if "const" in schema else schema.get("enum"), list):
        return {_JSON_TYPES[type(value)] for value in values}
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return _types(found, root, depth - 1)
    branches = schema.get("anyOf") or schema.get("oneOf") or (schema.get("allOf") or [])[:1]
    kinds = [_types(branch, root, depth - 1) for branch in branches]
    return {kind for each in kinds if each is not None for kind in each} if kinds and None not in kinds else None


def _suggest(name: str, known: Sequence[str]) -> str:
    if near := difflib.get_close_matches(name, known):
        return f"did you mean {' or '.join(near)}?"
    return f"it has {', '.join(known[:10])}{', ...' if len(known) > 10 else ''}" if known else "it has none"


@contextmanager
def _progress_bar() -> Iterator[OnProgress | None]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(progress: float, total: float | None, message: str | None) -> None:
            bar.update(task, completed=progress, total=total, description=_printable(message or "", terminal=True))

        yield show


def _show(block: v.ContentBlock) -> str:
    """One block of content as text."""
    if isinstance(block, v.TextContent):
        return block.text
    if isinstance(block, v.ResourceLink):
        return f"{block.name}: {block.uri}"
    if isinstance(block, v.EmbeddedResource):
        return block.resource.text or f"[{block.resource.uri}: {block.resource.mime_type or 'bytes'}; --json shows it]"
    kind = "image" if isinstance(block, v.ImageContent) else "audio"
    return f"[{kind}: {block.mime_type}, {len(block.data) * 3 // 4} bytes; --json shows it]"


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
    return _printable(", ".join(shown), terminal=True)


def _first_line(item: Any) -> str:
    text = (item.description or item.title or "").strip()
    return _printable(text.split("\n", 1)[0], terminal=True)


def _print_tables(heading: str, listings: Mapping[str, list[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(_printable(heading.strip(), terminal=True), style="bold"))
    for _, _, key, title, name in SECTIONS:
        if key not in listings:
            continue
        # What is named by a name takes arguments; the rest shows them in its URI, or has none.
        columns = ("name", "arguments", "description") if name == "name" else (name.replace("_", " "), "description")
        table = Table(*columns, title=title, title_justify="left")
        for item in listings[key]:
            cells = (_printable(getattr(item, name), terminal=True), *((_arguments(item),) if name == "name" else ()), _first_line(item))
            table.add_row(*map(Text, cells))
        console.print(table if listings[key] else f"{title}: none")


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _printable(text: str, *, terminal: bool) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if terminal else text
