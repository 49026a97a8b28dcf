"""The command `callboard`: run a server, look at one, call its tools, read its resources, hear of its changes, log in.

Exit codes: 0; 1 when a server or a tool failed; 2 when the command was wrong. What goes wrong is said in a sentence on stderr.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from callboard.cli_arguments import Refusal, parse_headers, parse_object, parse_pairs, parse_texts, suggest
from callboard.cli_doctor import doctor
from callboard.cli_login import Identity, kept_login, make_login, remember, way_in
from callboard.cli_output import (
    SECTIONS,
    Warnings,
    content_bytes,
    first_line,
    is_terminal,
    one_line,
    print_json,
    print_tables,
    printable,
    progress_bar,
    show_block,
    show_content,
    to_json,
)
from callboard.cli_run import RUN, run
from callboard.cli_worker import worker
from callboard.client.auth import Auth
from callboard.client.changes import Change, list_of
from callboard.client.client import Client
from callboard.client.config import find
from callboard.client.errors import ClientError, ProcessExited, ServerError
from callboard.errors import REASONS, Reason
from callboard.wire import v2026_07_28 as v

__all__ = ["main"]

T = TypeVar("T")

_INTERNAL = REASONS[Reason.INTERNAL].code
_UNASKED = REASONS[Reason.MISSING_CAPABILITY].code
# What someone types who leaves out http://.
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d+(?:/.*)?|localhost/.*")

timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="How long connecting may take, and each answer.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
header_option = click.option("-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="HTTP header of every request.")


class _Commands(click.Group):
    """The commands; output that can't be written is a sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE or ctx.invoked_subcommand == "run":  # the first is click's: nobody reads on
                raise
            raise click.ClickException(f"the output can't be written: {error.strerror}.") from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="callboard", prog_name="callboard")
def main() -> None:
    """Serve MCP tools, look at servers, call tools.

    A TARGET is a URL, a program that run takes, a command in quotes, or a .json file with mcpServers.

    \b
      callboard run weather.py
      callboard list http://127.0.0.1:8000/mcp
      callboard call 'npx -y some-server' forecast city=Oslo
      callboard doctor weather.py
    """  # noqa: D301 - click's mark for lines that stay as they are


main.add_command(run)
main.add_command(worker)
main.add_command(doctor)


@main.command(name="list", short_help="Show what a server offers.")
@click.argument("target")
@json_option
@timeout_option
@header_option
def list_components(target: str, *, as_json: bool, timeout: float, headers: Sequence[str]) -> None:
    """Show what the server at TARGET offers: tools, resources, templates, prompts."""
    found, listings = _with_client(target, timeout, headers, _take_stock)
    info = (found.meta or {}).get("io.modelcontextprotocol/serverInfo", {})
    if as_json:
        instructions = {"instructions": found.instructions} if found.instructions else {}
        print_json({"server": info, **instructions, **listings})
    elif is_terminal(sys.stdout):
        print_tables(f"{info.get('name', target)} {info.get('version', '')}", listings)
    else:
        for _, _, key, _, name in SECTIONS:
            for item in listings.get(key, ()):
                click.echo(f"{key}\t{one_line(getattr(item, name))}\t{first_line(item)}")


@main.command(short_help="Call a tool.")
@click.argument("target")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json-args", default="{}", metavar="JSON", help="Arguments as one JSON object; KEY=VALUE goes on top.")
@json_option
@timeout_option
@header_option
def call(
    target: str, tool: str, arguments: Sequence[str], *, json_args: str, as_json: bool, timeout: float, headers: Sequence[str]
) -> None:
    """Call TOOL of the server at TARGET.

    A VALUE is read as the tool's input schema says: a string as it stands, anything else as JSON.
    """
    given = parse_object(json_args)

    async def perform(client: Client) -> v.CallToolResult:
        known = {each.name: each for each in await client.list_tools()}
        if tool not in known:
            raise _unknown("tool", tool, list(known), client)
        values = given | parse_pairs(arguments, known[tool].input_schema)
        with progress_bar() as on_progress:
            return await client.call_tool(tool, values, on_progress=on_progress)

    result = _with_client(target, timeout, headers, perform)
    if as_json:
        print_json(result)
    text = "\n".join(show_block(block) for block in result.content)
    if not result.content and result.structured_content is not msgspec.UNSET:
        text = to_json(result.structured_content)
    if result.is_error:
        raise click.ClickException(printable(text or "the tool failed, and does not say why", terminal=is_terminal(sys.stderr)))
    if text and not as_json:
        _print_text(text)


@main.command(short_help="Read a resource.")
@click.argument("target")
@click.argument("uri")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, allow_dash=True), help="File for the content, byte for byte; - for standard output."
)
@json_option
@timeout_option
@header_option
def read(target: str, uri: str, *, output: str | None, as_json: bool, timeout: float, headers: Sequence[str]) -> None:
    """Read the resource URI of the server at TARGET."""
    if as_json and output is not None:
        raise Refusal("--json and --output don't go together: the file gets the content alone.")
    if output not in (None, "-") and not Path(output).parent.is_dir():
        raise Refusal(f"--output: there is no folder {Path(output).parent}.")
    result = _with_client(target, timeout, headers, lambda client: client.read_resource(uri))
    if as_json:
        print_json(result)
    elif output is None and is_terminal(sys.stdout):
        _print_text("\n".join(show_content(content) for content in result.contents))
    else:
        data = b"".join(content_bytes(content) for content in result.contents)
        if output in (None, "-"):
            click.echo(data, nl=False)
        else:
            _write(Path(output), data)


@main.command(short_help="Fill in a prompt.")
@click.argument("target")
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@json_option
@timeout_option
@header_option
def prompt(target: str, name: str, arguments: Sequence[str], *, as_json: bool, timeout: float, headers: Sequence[str]) -> None:
    """Fill in the prompt NAME of the server at TARGET."""
    given = parse_texts(arguments)

    async def perform(client: Client) -> v.GetPromptResult:
        known = [each.name for each in await client.list_prompts()]
        if name not in known:
            raise _unknown("prompt", name, known, client)
        return await client.get_prompt(name, given)

    result = _with_client(target, timeout, headers, perform)
    if as_json:
        print_json(result)
        return
    for message in result.messages:
        _print_text(f"{message.role}: {show_block(message.content)}")


@main.command(short_help="Tell of a server's changes.")
@click.argument("target")
@click.option("--uri", "uris", multiple=True, metavar="URI", help="Tell of updates of this resource, too; may come more than once.")
@click.option("--count", type=click.IntRange(min=1), metavar="NUMBER", help="Stop after so many changes.")
@json_option
@timeout_option
@header_option
def listen(target: str, *, uris: Sequence[str], count: int | None, as_json: bool, timeout: float, headers: Sequence[str]) -> None:
    """Tell of changes of the server at TARGET, of its lists and of resources, until Ctrl-C."""

    async def perform(client: Client) -> None:
        offers = (await client.discover()).capabilities
        kinds = {"tools": offers.tools, "prompts": offers.prompts, "resources": offers.resources}
        lists = {kind: True for kind, offer in kinds.items() if getattr(offer or None, "list_changed", False)}
        if not lists and not uris:
            raise Refusal("The server tells of no changes of its lists; --uri asks for those of a resource.")
        async with client.listen(**lists, uris=uris) as changes:
            heard = one_line(", ".join([*lists, *uris]))
            click.echo(f"Listening for changes: {heard}.{'' if count else ' Ctrl-C ends it.'}", err=True)
            left = count
            async for change in changes:
                _print_change(change, as_json=as_json)
                left = None if left is None else left - 1
                if left == 0:
                    return
        raise click.ClickException("The server has ended the stream of changes.")

    logging.getLogger("callboard.client").setLevel(logging.INFO)  # that a stream broke and is opened anew
    try:
        _with_client(target, timeout, headers, perform)
    except KeyboardInterrupt:
        return


@main.command(short_help="Log in at a server.")
@click.argument("url")
@click.option("--client-id", metavar="ID", help="Id of this client at the authorization server, if it has been registered there.")
@click.option("--client-secret", envvar="CALLBOARD_CLIENT_SECRET", metavar="TEXT", help="Its secret; better in CALLBOARD_CLIENT_SECRET.")
@click.option("--client-metadata", "client_metadata_url", metavar="URL", help="URL of the client's metadata document.")
@click.option("--issuer", metavar="URL", help="The authorization server; no other one gets to see the secret.")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="Ask for this scope; may come more than once.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of this machine for the browser to come back to, at /callback."
)
@click.option("--no-browser", is_flag=True, help="Print the page's address instead of opening it.")
@timeout_option
def login(
    url: str,
    *,
    client_id: str | None,
    client_secret: str | None,
    client_metadata_url: str | None,
    issuer: str | None,
    scopes: Sequence[str],
    port: int,
    no_browser: bool,
    timeout: float,
) -> None:
    """Log in at the server at URL, in a browser; the other commands use what comes of it.

    Tokens are kept in a folder that only you can read.
    """
    if not _is_url(url):
        _target(url)  # it may know better what was meant
        raise Refusal("login is for a URL: programs and commands take credentials from their environment.")
    identity, secret = Identity(client_id, client_metadata_url, issuer), client_secret if client_id else None
    if client_secret and not client_id and _given("client_secret"):
        raise Refusal("--client-secret goes with --client-id.")
    try:
        words = tuple(word for scope in scopes for word in scope.split())
        auth = make_login(_tokens_folder(), identity, client_secret=secret, scopes=words, port=port, no_browser=no_browser)
    except ValueError as error:
        raise Refusal(f"{error}.") from error

    async def anew() -> Auth:
        await auth.forget(url)  # else an older login would do, with other scopes or for another account
        return auth

    async def perform(client: Client) -> str:
        found = await client.discover()
        if not await auth.headers("POST", url):
            await client.list_tools()  # some servers tell everybody who they are
        name = (found.meta or {}).get("io.modelcontextprotocol/serverInfo", {}).get("name", url)
        if not await auth.headers("POST", url):
            return f"{name} asks for no login."
        await remember(_tokens_folder(), url, identity)
        return f"Logged in at {name}."

    _print_text(one_line(_with_client(url, timeout, (), perform, anew)))


def _given(parameter: str) -> bool:
    """Whether a parameter came on the command line."""
    return click.get_current_context().get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE


def _tokens_folder() -> Path:
    """Where tokens are kept: `callboard/tokens` in the folder of the user's configuration."""
    return Path(click.get_app_dir("callboard")) / "tokens"


def _is_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def _target(text: str) -> str | list[str]:
    """What a TARGET means; one word that is no program on PATH is a server's program."""
    if _is_url(text) or text.lower().endswith(".json"):
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


async def _kept_login(url: str, headers: Mapping[str, str]) -> Auth | None:
    """What `login` has left for a URL. None where a header says who asks, and where nobody has logged in."""
    if any(name.lower() == "authorization" for name in headers) or not _tokens_folder().is_dir():
        return None
    return await kept_login(_tokens_folder(), url)


async def _kept_logins(meant: str | list[str], headers: Mapping[str, str]) -> Auth | dict[str, Auth] | None:
    """The same for whatever a TARGET means: a URL, or the names of a configuration."""
    if isinstance(meant, list):
        return None
    if _is_url(meant):
        return await _kept_login(meant, headers)
    found = {}
    for spec in config.servers if (config := find(meant)) else ():
        if isinstance(spec.target, str) and _is_url(spec.target) and (auth := await _kept_login(spec.target, spec.headers or {})):
            found[spec.name] = auth
    return found or None


def _with_client(
    target: str,
    timeout: float,
    headers: Sequence[str],
    work: Callable[[Client], Awaitable[T]],
    authorize: Callable[[], Awaitable[Auth]] | None = None,
) -> T:
    """Do some work with a client of a TARGET; what goes wrong is a sentence."""
    meant = _target(target)
    if headers and not _is_url(target):
        raise Refusal("--header is for a TARGET that is a URL.")
    given = parse_headers(headers)
    _prepare_streams()
    client: Client | None = None

    async def connected() -> T:
        nonlocal client
        try:
            auth = await (authorize() if authorize else _kept_logins(meant, given))
            client = Client(meant, timeout=timeout, connect_timeout=timeout, headers=given or None, tasks=True, auth=auth)
        except ValueError as error:
            raise Refusal(f"{error}.") from error
        async with client:
            for name, failure in client.failures.items():  # what is wrong with each has been logged
                if advice := _way_in(failure, _headers_of(meant, name), "headers"):
                    click.echo(printable(advice.strip(), terminal=is_terminal(sys.stderr)), err=True)
            return await work(client)

    try:
        return asyncio.run(connected())
    except ClientError as error:
        if isinstance(meant, list) and meant[: len(RUN)] == RUN:
            error.target = target
        advice = _way_in(error, given or _headers_of(meant), "-H" if _is_url(target) else "headers", tried=authorize is not None)
        raise _explain(error, meant, client.stderr if client else "", advice) from error


def _prepare_streams() -> None:
    """What a stream's encoding lacks is written as an escape, and warnings are told like errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, handlers=[Warnings()])


def _explain(error: ClientError, meant: str | list[str], stderr: str, advice: str) -> click.ClickException:
    """Say what went wrong, and what else there is to know."""
    text = str(error) + advice
    if isinstance(error, ProcessExited) and error.returncode == Refusal.exit_code and meant[: len(RUN)] == RUN:
        return Refusal(error.stderr.rpartition("Error: ")[2].strip())  # `callboard run` has no such program
    if isinstance(error, ServerError) and error.code == _UNASKED:
        text += "\nThis command answers no questions; callboard.Client does: on_elicit=, on_sample=, on_roots=."
    if isinstance(error, ServerError) and error.code == _INTERNAL and stderr:
        text += f"\nThe end of what the server wrote to standard error:\n{stderr.rstrip()}"
    return click.ClickException(printable(text, terminal=is_terminal(sys.stderr)))


def _way_in(error: ClientError, given: Mapping[str, str], option: str, *, tried: bool = False) -> str:
    """How to get in, on a line of its own, where a server at a URL wants credentials."""
    advice = way_in(error, given, option=option, tried=tried) if _is_url(error.target) else ""
    return f"\n{advice}" if advice else ""


def _headers_of(meant: str | list[str], name: str = "") -> Mapping[str, str]:
    """Headers that a configuration gives one of its servers; without a name, the only one."""
    servers = config.servers if isinstance(meant, str) and (config := find(meant)) else ()
    named = [server for server in servers if server.name == name or (not name and len(servers) == 1)]
    return (named[0].headers if named else None) or {}


def _unknown(kind: str, name: str, known: list[str], client: Client) -> click.ClickException:
    """Why there is no such thing: it was misspelt, or its server is one of those that fail."""
    failing = f" (without {', '.join(client.failures)}, which can't be used)" if client.failures else ""
    text = printable(f"The server has no {kind} {name!r}; {suggest(name, known)}{failing}", terminal=is_terminal(sys.stderr))
    return click.ClickException(text) if failing else Refusal(text)


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise click.ClickException(f"{path} can't be written: {error.strerror}.") from error


async def _take_stock(client: Client) -> tuple[v.DiscoverResult, dict[str, list[Any]]]:
    found = await client.discover()
    offered = msgspec.to_builtins(found.capabilities)
    return found, {key: await lister(client) for capability, lister, key, _, _ in SECTIONS if capability in offered}


def _print_text(text: str) -> None:
    click.echo(printable(text, terminal=is_terminal(sys.stdout)), color=True)  # click would strip colours off a file


def _print_change(change: Change, *, as_json: bool) -> None:
    """One line for one change, at once."""
    if as_json:
        click.echo(to_json(change))
    elif isinstance(change, v.ResourceUpdatedNotification):
        _print_text(f"updated\t{one_line(change.params.uri)}")
    else:
        _print_text(f"changed\t{list_of(change)}")
