"""`callboard doctor`: which protections of a program are on, and what it exposes."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from callboard.cli_arguments import Refusal
from callboard.cli_output import one_line, print_json
from callboard.compose import LOADING, asgi, reach
from callboard.doctor import SEVERITIES, Finding, examine
from callboard.inventory import HttpFacts, Inventory, PartFacts, ServerFacts, VerifierFacts, take_inventory
from callboard.loader import LoadError, load_program
from callboard.server.app import Server

__all__ = ["doctor"]

WIDTH = 110
_LABEL = 14
_COLORS = {"ok": "green", "note": "cyan", "warning": "yellow", "danger": "red"}
_REACHED = {
    "local": "programs of this machine only",
    "proxied": "programs of this machine; a proxy among them, as hosts= has other names",
    "remote": "other machines too",
}
_UNITS = ((1024 * 1024, "MiB"), (1024, "KiB"))


@click.command(short_help="Look at a program's protections.")
@click.argument("program")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--host", help="Look at a server as run would serve it with this --host.")
@click.option("--strict", is_flag=True, help="Exit with 1 where there is a warning, or worse.")
def doctor(program: str, *, as_json: bool, host: str | None, strict: bool) -> None:
    """Tell which protections of PROGRAM are on, what it exposes, and which setting changes that.

    PROGRAM is app.py, app.py:name, package.module or package.module:name: an application of callboard.asgi, also inside of one of another
    framework, else a server as `callboard run` serves it. It is imported; nothing of it is run or served, and nothing is fetched.
    """
    inventory = _load(program, host)
    workers = os.environ.get("WEB_CONCURRENCY", "")
    findings = examine(inventory, workers=int(workers) if workers.isascii() and workers.isdigit() else 1)
    if as_json:
        print_json({"program": program, "findings": findings, "inventory": inventory})
    else:
        for line in _tell(program, inventory, findings):
            click.echo(line)
    if strict and any(SEVERITIES.index(finding.severity) >= SEVERITIES.index("warning") for finding in findings):
        sys.exit(1)


def _load(program: str, host: str | None) -> Inventory:
    LOADING.set(True)
    try:
        with _printing_to_stderr():
            found = load_program(program)
            is_app = not isinstance(found.served, Server)
            if is_app and host is not None:
                raise Refusal(
                    "--host is for a server; PROGRAM has made its application with callboard.asgi, and that says who may connect."
                )
            app = asgi(found.served, **reach(host or "127.0.0.1")) if isinstance(found.served, Server) else found.served
    except LoadError as error:
        if error.broken:
            raise click.ClickException(str(error)) from error
        raise Refusal(f"{error}.") from error
    return take_inventory(app, is_app=is_app, hosted=found.hosted, routed=found.routed)


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """What a program prints as it loads must not stand in the middle of JSON, whoever prints it: its children, too."""
    if sys.stdout is None:  # it was closed before we began
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _tell(program: str, inventory: Inventory, findings: Sequence[Finding]) -> Iterator[str]:
    """The report, line by line."""
    server, how = inventory.server, "its application" if inventory.is_app else "as `callboard run` serves it"
    yield _heading(f"{server.name} {server.version}: {program}, {how}")
    yield from _tell_rows("HTTP", _describe_http(inventory.http))
    yield from _tell_rows("Limits (* above the default)", [("", _describe_limits(inventory.http))])
    yield from _tell_rows("stdio", [("reached by", "whoever starts the process, as the principal `local`, who has every scope")])
    yield from _tell_rows("Server, on every transport", _describe_server(server))
    yield from _tell_parts(inventory.parts)
    yield ""
    yield _heading("Findings")
    for finding in findings:
        yield from _tell_finding(finding)
    counts = ", ".join(f"{sum(each.severity == severity for each in findings)} {severity}" for severity in reversed(SEVERITIES))
    yield ""
    yield f"{counts}. What each protection is for: docs/deployment.md."


def _heading(text: str) -> str:
    return click.style(one_line(text), bold=True)


def _tell_rows(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield _heading(title)
    for label, text in rows:
        indent = " " * (_LABEL + 2 if label else 2)
        yield from textwrap.wrap(
            one_line(text),
            WIDTH,
            initial_indent=f"  {label:{_LABEL}}" if label else indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _describe_http(http: HttpFacts) -> Iterator[tuple[str, str]]:
    yield "endpoint", f"{http.path}{', inside another application' if http.hosted else ''}; protocol {', '.join(http.versions)}"
    yield "reached by", _REACHED[http.exposure]
    yield "Host", f"{', '.join(http.hosts)}{', any IP address' if http.exposure == 'remote' else ''}"
    if http.codings:
        yield "encodings", f"{', '.join(http.codings)}; inflated up to max_body"
    yield "Origin", f"{', '.join(http.origins) or 'none but its own'}; preflights {'answered' if http.cors else 'refused'}"
    for verifier in http.auth:
        yield "auth", _describe_verifier(verifier)
    if not http.auth:
        yield "auth", "none; principal= names callers" if http.names_callers else "none: callers have no name"
    if http.auth:
        yield "resource", http.resource or "none"
        yield "scopes", f"{' '.join(http.scopes)} of every request" if http.scopes else "none of every request"
        yield "metadata", ", ".join(http.metadata) or "none: no authorization server"
    if http.json_only:
        yield "streams", "none (json_only=True)"
    else:
        yield "streams", f"a comment after {http.keep_alive:g} s of silence" if http.keep_alive else "no keep-alive"
    sessions = http.sessions
    if sessions is None:
        yield "sessions", "none: clients of 2025 are not served"
    else:
        yield (
            "sessions",
            "; ".join(f"{name.removeprefix('session_')}: {_show(value)}" for name, value in sessions.items() if name not in http.limits),
        )
    if http.sse_path is not None:
        yield "HTTP+SSE", http.sse_path


def _describe_verifier(verifier: VerifierFacts) -> str:
    facts = {
        "header": verifier.header,
        **({"issuers": verifier.issuers} if verifier.issuers and "issuer" not in verifier.facts else {}),
        **verifier.facts,
    }
    return f"{verifier.kind} ({'; '.join(f'{name}: {_show(value)}' for name, value in facts.items())})"


def _describe_limits(http: HttpFacts) -> str:
    shown = (
        f"{name}{'*' if name in http.raised else ''}={_show_limit(name, value)}".replace(" ", "\N{NO-BREAK SPACE}")
        for name, value in http.limits.items()
    )
    return " ".join(shown)


def _show_limit(name: str, value: Any) -> str:
    if type(value) is int and name in _BYTES:
        for size, unit in _UNITS:
            if value >= size and value % size == 0:
                return f"{value // size} {unit}"
    return _show(value)


_BYTES = frozenset({"max_body", "max_line", "max_headers", "max_arguments", "max_result", "max_buffered", "max_kept", "stream_buffer"})


def _describe_server(server: ServerFacts) -> Iterator[tuple[str, str]]:
    yield "exceptions", "masked: clients get an error id" if server.mask_errors else "shown to clients"
    yield "arguments", "unknown ones refused" if server.strict_input else "unknown ones passed over"
    keys = {"given": "given", "random": "random, of this process", "none": "none"}[server.keys]
    yield "keys", f"{keys}; what they seal is taken {'once' if server.single_use else 'until it ends'}"
    if server.extensions:
        yield "extensions", ", ".join(server.extensions)
    if server.providers:
        yield "providers", "; ".join(server.providers)


def _tell_parts(parts: Sequence[PartFacts]) -> Iterator[str]:
    header = ("kind", "name", "scopes", "visible", "rate", "timeout", "says of itself")
    rows = [header, *(_show_part(part) for part in parts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    yield ""
    yield _heading(f"Components ({len(parts)})")
    if parts:
        for row in rows:
            yield "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _show_part(part: PartFacts) -> tuple[str, ...]:
    rate = "-" if part.rate is None else f"{part.rate[0]}/{part.rate[1]:g} s"
    timeout = "-" if part.timeout is None else f"{part.timeout:g} s"
    cells = (part.kind, part.name, " ".join(part.scopes) or "-", part.visible or "-", rate, timeout, _show_hints(part))
    return tuple(one_line(cell) for cell in cells)


def _show_hints(part: PartFacts) -> str:
    if part.kind != "tool":
        return ""
    hints = part.hints or {}
    said = [word for key, word in _HINTS.items() if hints.get(key) is True]
    if hints.get("destructiveHint") is False:
        said.append("not destructive")
    text = ", ".join(said) or "nothing"
    return f"{text}; task {part.task}" if part.task != "never" else text


_HINTS = {"readOnlyHint": "read-only", "destructiveHint": "DESTRUCTIVE", "idempotentHint": "idempotent", "openWorldHint": "open world"}


def _show(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, int | float) for item in value):
        return f"{value[0]:g}/{value[1]:g} s"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tell_finding(finding: Finding) -> Iterator[str]:
    mark = f"{finding.severity:8}"
    text = one_line(f"{finding.text}{f' [{finding.setting}]' if finding.setting else ''}")
    lines = textwrap.wrap(text, WIDTH - 10, break_long_words=False, break_on_hyphens=False)
    yield f"  {click.style(mark, fg=_COLORS[finding.severity])}{lines[0]}"
    for line in lines[1:]:
        yield f"  {'':8}{line}"
