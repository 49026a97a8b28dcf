"""The driver of a server over lines, as stdio has them. See `fuzz.drivers` for what a driver is.

An input is what a client writes. It is cut into lines by the transport's own reader, in pieces of as many bytes as its first one says. A line
that begins with a tilde is no line of the protocol: `~` lets everything happen that needs no time, `~5` five seconds. `$STATE`, `$TASK`,
`$CURSOR` and `"$ASK"` are what the server has last made up of that kind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from typing import Any, Final

from fuzz.hosting import Host, check_message, is_sampled, read_message, serve, settle
from fuzz.town import make_server

from callboard.compose import endpoint
from callboard.limits import Limits
from callboard.transport.pipe import Lines, Pipe

__all__ = ["run_stdio"]

LONGEST: Final = 2_000  # bytes of a line that the reader under test takes
MOST: Final = 60  # lines of one input
_LEARNT: Final = (
    (b"$STATE", re.compile(rb'"requestState":"([\w.-]+)"')),
    (b"$TASK", re.compile(rb'"taskId":"([\w-]+)"')),
    (b"$CURSOR", re.compile(rb'"nextCursor":"([\w=-]+)"')),
    (b'"$ASK"', re.compile(rb'"id":("?[\w-]+"?),"method"')),
)


class _Pipes(Host):
    """A host whose server has one client after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._endpoint = endpoint(make_server(), limits=Limits(max_line=LONGEST))

    def play(self, data: bytes) -> None:
        """Have a client write this, and hang up."""
        lines = _cut(data)
        self.run(self._play(lines), level=logging.DEBUG if is_sampled(data) else logging.WARNING)

    async def _play(self, lines: list[bytes]) -> None:
        mount = await self._endpoint.open()
        written: list[bytes] = []
        pipe = Pipe(self._endpoint, mount, written.extend)
        fed: list[bytes] = []
        known: dict[bytes, bytes] = {}
        for line in lines[:MOST]:
            if line.startswith(b"~"):
                seconds = line[1:3]
                await (asyncio.sleep(int(seconds)) if seconds.isdigit() else settle())
                known |= {name: found[-1] for name, pattern in _LEARNT if (found := pattern.findall(b"\n".join(written)))}
                continue
            for name, value in known.items():
                line = line.replace(name, value)  # noqa: PLW2901 - the line as the client means it
            fed.append(line)
            pipe.feed(line)
        await settle()
        await pipe.drain(1)
        await pipe.hang_up()
        await pipe.close()
        _check(fed, written)

    async def end(self) -> None:
        """End the server."""
        await self._endpoint.close()


def _cut(data: bytes) -> list[bytes]:
    """The lines of an input, as the reader cuts them; an independent one agrees."""
    size, text = max(1 + (data[:1] or b"\0")[0], len(data) // 1000), data[1:]
    reader = Lines(LONGEST)
    lines = [line for at in range(0, len(text), size) for line in reader.feed(text[at : at + size])]
    if last := reader.end():
        lines.append(last)
    meant = text.split(b"\n")
    meant = meant if meant[-1] else meant[:-1]
    assert len(lines) == len(meant), (lines, meant)
    for line, whole in zip(lines, meant, strict=True):
        assert line == whole or (len(whole) > LONGEST and len(line) > LONGEST and whole.startswith(line)), (line, whole)
    return lines


def _check(lines: list[bytes], written: list[bytes]) -> None:
    """Each line of the server is one message, or a batch; no id has more answers than the client has used it."""
    answered: Counter[tuple[type, Any]] = Counter()
    for line in written:
        assert b"\n" not in line, line
        assert b"\r" not in line, line
        value = read_message(line)
        messages: list[Any] = value if isinstance(value, list) and value else [value]
        for message in messages:
            check_message(message)
            if "method" not in message and message.get("id") is not None:
                answered[type(message["id"]), message["id"]] += 1
    asked = Counter(request_id for line in lines for request_id in _ids(line))
    assert answered <= asked, (lines, written)


def _ids(line: bytes) -> list[tuple[type, Any]]:
    """Ids of the messages of a line; none where nobody can read it."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return []
    messages = value if isinstance(value, list) else [value]
    ids = [message["id"] for message in messages if isinstance(message, dict) and "id" in message]
    return [(type(each), each) for each in ids if isinstance(each, int | str)]


_hosts: Final[list[Host]] = []


def run_stdio(data: bytes) -> None:
    """What a client writes; see the module."""
    serve(_hosts, _Pipes, data)
