"""Independent readers: what drivers hold the product against. Slow and plain; none of them shares code with it."""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["Frame", "Pairs", "Reading", "Stream", "host_is_ours", "is_unsafe", "read_header", "read_host", "read_json", "read_stream"]

LONG = 300  # digits past which readers differ
_LINE = re.compile(rb"\r\n|\r|\n")


class Pairs(list[tuple[str, Any]]):
    """A JSON object, keys that come twice included."""


class Reading(NamedTuple):
    """What a body is.

    Attributes:
        value: Its JSON; objects as `Pairs`.
        odd: Whether it has half of a surrogate pair, or a number that is too large to be read: JSON by its grammar alone.
    """

    value: Any
    odd: bool

    @property
    def object(self) -> dict[str, Any] | None:
        """The outermost object, nested ones as `Pairs`; None where it is something else."""
        return dict(self.value) if isinstance(self.value, Pairs) else None

    @property
    def repeats(self) -> bool:
        """Whether a key is twice where none may be: in the outermost object, in the `params` of what has a method, and in two members of these."""
        watched = [self.value]
        outer = self.object or {}
        if "method" in outer:
            params = outer.get("params")
            watched += [params, *(dict(params).get(name) for name in ("_meta", "arguments") if isinstance(params, Pairs))]
        return any(isinstance(each, Pairs) and len(each) != len(dict(each)) for each in watched)

    @property
    def depth(self) -> int:
        """How deep objects and arrays nest."""
        deepest, stack = 0, [(self.value, 1)]
        while stack:
            value, depth = stack.pop()
            if isinstance(value, list):
                deepest = max(deepest, depth)
                inner = [each for _, each in value] if isinstance(value, Pairs) else value
                stack += [(each, depth + 1) for each in inner]
        return deepest


def read_json(body: bytes) -> Reading | None:
    """Python's reading of a body, without what it takes beyond JSON; None where it is no JSON in UTF-8."""
    endless: list[str] = []

    def read_float(text: str) -> float:
        number = float(text)
        if number in {float("inf"), float("-inf")}:
            endless.append(text)
        return number

    def read_int(text: str) -> int | str:
        if len(text) >= LONG:
            endless.append(text)
        return int(text) if math.isfinite(float(text)) else text

    try:
        value = json.loads(body.decode(), object_pairs_hook=Pairs, parse_constant=_refuse, parse_float=read_float, parse_int=read_int)
    except (ValueError, RecursionError):
        return None
    return Reading(value, bool(endless) or (b"\\u" in body and _has_half(value)))


def _refuse(name: str) -> None:
    raise ValueError(name)


def _has_half(value: Any) -> bool:
    stack = [value]  # what can just be read may be too deep for a function that calls itself
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            if any("\ud800" <= letter <= "\udfff" for letter in each):
                return True
        elif isinstance(each, list | tuple):
            stack += each
    return False


class Frame(NamedTuple):
    """One event."""

    data: bytes
    event: str
    id: str


class Stream(NamedTuple):
    """What a whole event stream says.

    Attributes:
        events: Its events.
        last_id: The last event id.
        retry: When to come back, in milliseconds; None where it does not say.
    """

    events: list[Frame]
    last_id: str
    retry: int | None


def read_stream(stream: bytes) -> Stream:
    """The events of a whole stream, by the letter of the HTML standard, section 9.2.6."""
    lines = _LINE.split(stream.removeprefix(b"\xef\xbb\xbf"))[:-1]  # the last is not ended
    events: list[Frame] = []
    data, kind, event_id, last_id, retry = list[bytes](), "", "", "", None
    for line in lines:
        if not line:
            last_id = event_id
            if data:
                events.append(Frame(b"\n".join(data), kind or "message", event_id))
            data, kind = [], ""
            continue
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            event_id = value.decode("utf-8", "replace")
        elif name == b"retry" and re.fullmatch(rb"[0-9]{1,12}", value):  # more digits are a fault of the server
            retry = int(value)
    return Stream(events, last_id, retry)


def read_header(value: bytes) -> str | None:
    """What a mirrored header says (HH-08, HH-16..18); None where it can't be read."""
    if re.fullmatch(rb"[\t\x20-\x7e]*", value) is None:
        return None
    text = value.decode("ascii").strip(" \t")
    found = re.fullmatch(r"=\?base64\?(.*)\?=", text)
    if found is None:
        return text
    payload = found[1]
    if re.fullmatch(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", payload) is None:
        return None
    raw = base64.b64decode(payload)
    try:
        return raw.decode() if base64.b64encode(raw).decode() == payload else None
    except UnicodeDecodeError:
        return None


def host_is_ours(host: str, *, remote: bool = False) -> bool:
    """Whether a `Host` is this machine's by name or address, with a port or without; with `remote`, any address."""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+|[0-9a-f:.]+)(?::[0-9]*)?", host.lower())
    if found is None:
        return False
    name = found[1] if found[1].startswith("[") else found[1].removesuffix(".")  # the root is in every name
    if name in {"localhost", "127.0.0.1", "[::1]"}:
        return True
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return remote or address == ipaddress.IPv6Address("::1")  # however it is written


def read_host(text: str) -> tuple[object, str] | None:
    """Name or address, and port, of a host as `Host` and `Origin` have it, equal for all spellings; None for what is none."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::([0-9]{1,5}))?", text.lower())
    if found is None:
        return None
    address, name, port = found.groups("")
    try:
        return (ipaddress.IPv6Address(address), port) if address else (name.removesuffix("."), port)
    except ValueError:
        return None


def is_unsafe(text: str) -> bool:
    """Whether a text could lead out of a folder, as it is or decoded once more (SA32)."""
    for each in (text, unquote(text)):
        if each.startswith(("/", "\\")) or "\\" in each or "\0" in each or re.match(r"[A-Za-z]:", each):
            return True
        if any(part == ".." for part in each.split("/")):
            return True
    return False
