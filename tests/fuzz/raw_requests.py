"""Raw HTTP requests, in order and out of it: what the programs of `test_whole_calls` are made of."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from benchmarks import legacy_traffic, traffic
from callboard.limits import Limits

ANN, BOB = (f"a-token-of-32-characters-for-{name}" for name in ("ann", "bob"))
CREDENTIALS = [b"Bearer " + ANN.encode(), b"Bearer " + BOB.encode(), b"Bearer nobody's", None]
PEERS = ["127.0.0.1", "127.0.0.1", "127.0.0.2", "10.1.2.3"]
PAGE = "https://page.example"


def notification(method: str, **params: Any) -> bytes:
    """A notification's JSON."""
    return traffic.encode({"jsonrpc": "2.0", "method": method, "params": params})


BODIES = {
    "initialize": legacy_traffic.initialize().body,
    "initialized": legacy_traffic.initialized().body,
    "visit": legacy_traffic.call("visit", {}).body,
    "whoami": legacy_traffic.call("whoami", {}).body,
    "tell": legacy_traffic.call("tell", {}, token="t").body,
    "fail": legacy_traffic.call("fail", {}).body,
    "list": legacy_traffic.request("tools/list", {}).body,
    "ping": legacy_traffic.request("ping", {}).body,
    "wrong": legacy_traffic.request("no/such", {}).body,
    "cancel": notification("notifications/cancelled", requestId=1),
    "answer": traffic.encode({"jsonrpc": "2.0", "id": 7, "result": {}}),
    "batch": b"[" + legacy_traffic.request("ping", {}).body + b"]",
    "broken": b"{",
    "none": b"",
    "long": legacy_traffic.call("whoami", {"text": "x" * 5000}).body,
    "claims": traffic.call("whoami", {}).body,
    "modern visit": traffic.call("visit", {}).body,
    "modern whoami": traffic.call("whoami", {}).body,
    "modern list": traffic.request("tools/list").body,
}
# Most are of one length: what is known of the heads of some is known of the others'.
BODIES = {kind: body.ljust(240 if body else 0) for kind, body in BODIES.items()}
COMMON = ["initialize"] * 3 + ["initialized", "visit", "visit", "whoami", "DELETE", "DELETE"]
KINDS = [*COMMON * 4, *BODIES]


# Heads, and what is wrong with them


class Lines(NamedTuple):
    """A request before it is put together.

    Attributes:
        start: Its first line.
        fields: Its headers, each a line.
        body: Its body.
    """

    start: bytes
    fields: list[bytes]
    body: bytes

    @property
    def data(self) -> bytes:
        """What goes over the wire."""
        return b"\r\n".join([self.start, *self.fields, b"", b""]) + self.body


LATE, EARLY = b"mcp-session-id: ", b"Mcp-Session-Id:"
MORE = [
    b"X-Trace: 1",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Expect: 100-continue",
    b"X-Forwarded-For: 8.8.8.8",
    b"X-Forwarded-For: 127.0.0.1",
    b"Forwarded: for=8.8.8.8",
    b"TE: trailers",
    b"Upgrade: h2c",
    b"Content-Encoding: gzip",
    b"Content-Encoding: identity",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Cookie: mcp-session-id: session-0000",
    b"Host: evil.example",
    b"Accept: text/html",
    b"Origin: https://evil.example",
    b"Origin: " + PAGE.encode(),
    b"MCP-Protocol-Version: 2025-06-18",
    b"MCP-Protocol-Version: 2026-07-28",
    b"Authorization: " + CREDENTIALS[1],  # type: ignore[operator] # not the last
    b"Mcp-Session-Id: session-0000",
    b"MCP-SESSION-ID: session-0001",
    b"mcp-session-id:",
    b"mcp-session-id : session-0001",
    b" mcp-session-id: session-0001",
    b"X: 1\nmcp-session-id: session-0001",
    b"X: 1\rmcp-session-id: session-0001",
    b"X: \x00",
    b"X-Request-ID: request-of-a-client",
    b"X-Long: " + b"x" * 300,
]
STARTS = [
    b"POST /mcp/ HTTP/1.1",
    b"POST /mcp?session=1 HTTP/1.1",
    b"POST /mcpx HTTP/1.1",
    b"POST /%6dcp HTTP/1.1",
    b"POST  /mcp HTTP/1.1",
    b"POST /mcp HTTP/1.0",
    b"POST /mcp HTTP/2.0",
    b"POST /mcp",
    b"post /mcp HTTP/1.1",
    b"PUT /mcp HTTP/1.1",
    b"OPTIONS /mcp HTTP/1.1",
    b"DELETE /mcp HTTP/1.1",
    b"DELETE /mcp HTTP/1.0",
    b"DELETED /mcp HTTP/1.1",
    b"\r\nPOST /mcp HTTP/1.1",
]
# What is done to one header's line.
TWISTS: dict[str, Any] = {
    "gone": lambda line: [],
    "twice": lambda line: [line, line],
    "upper": lambda line: [line.partition(b":")[0].upper() + b":" + line.partition(b":")[2]],
    "upper all": lambda line: [line.upper()],
    "space before": lambda line: [b" " + line],
    "space behind": lambda line: [line + b" "],
    "tabs": lambda line: [line.replace(b": ", b":\t\t") + b"\t"],
    "space in front of the colon": lambda line: [line.replace(b":", b" :", 1)],
    "no space": lambda line: [line.replace(b": ", b":", 1)],
    "folded": lambda line: [line.replace(b":", b":\r\n ", 1)],
    "another line folded into it": lambda line: [line, b" more"],
    "line feed": lambda line: [line + b"\nX: 1"],
    "longer": lambda line: [line + b"0"],
    "shorter": lambda line: [line[:-1]],
    "other": lambda line: [line[:-1] + b"1"],
    "zeros": lambda line: [line.replace(b": ", b": 00", 1)],
    "plus": lambda line: [line.replace(b": ", b": +", 1)],
    "listed": lambda line: [line + b", " + line.partition(b": ")[2]],
    "very long": lambda line: [line + b"0" * 300],
    "not ASCII": lambda line: [line + b"\xe9"],
    "empty": lambda line: [line.partition(b":")[0] + b":"],
}


class Twist(NamedTuple):
    """Something that is wrong with a head.

    Attributes:
        kind: What is done to a line; else a line that is added, or put in the place of the first.
        line: Which line it is done to, or added at.
    """

    kind: str | bytes
    line: int

    def apply(self, lines: Lines) -> Lines:
        """Do it."""
        at = self.line % max(len(lines.fields), 1)
        fields = lines.fields
        if self.kind in STARTS:
            return lines._replace(start=self.kind)
        if isinstance(self.kind, bytes):
            return lines._replace(fields=[*fields[:at], self.kind, *fields[at:]])
        changed = TWISTS[self.kind](fields[at]) if fields else []
        return lines._replace(fields=[*fields[:at], *changed, *fields[at + 1 :]])


@dataclass(frozen=True)
class Habit:
    """What the requests of a client have in common.

    Attributes:
        version: The version header of messages of older protocols; None for none.
        session: The name of the header that names the session.
        place: Where it stands among the others.
        behind: What stands behind the session's id.
        accept: The `Accept` header.
        more: More lines.
        ends: The length that a DELETE announces; None for none.
        twists: What is always wrong.
    """

    version: bytes | None
    session: bytes
    place: int
    behind: bytes
    accept: bytes | None
    more: tuple[bytes, ...]
    ends: bytes | None
    twists: tuple[Twist, ...]


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        kind: One of `KINDS`.
        session: Number of the session that it names, from the one that was opened last; -1 for none, -2 for one that never was.
        owner: Whose credential it has.
        body: What a DELETE sends along; an `initialize` that has one names a session.
        twists: What is wrong with it.
    """

    kind: str
    session: int
    owner: int
    body: bytes
    twists: tuple[Twist, ...]

    def make(self, habit: Habit, sessions: list[str], *, auth: bool) -> bytes:
        """What goes over the wire."""
        is_end, is_modern = self.kind == "DELETE", self.kind.startswith("modern")
        body = self.body if is_end else BODIES[self.kind]
        fields = [b"Host: 127.0.0.1:8000"]
        if is_modern:
            method, _, tool = {"list": "tools/list"}.get(self.kind[7:], "tools/call " + self.kind[7:]).partition(" ")
            fields += [b"MCP-Protocol-Version: 2026-07-28", b"Mcp-Method: " + method.encode()]
            fields += [b"Mcp-Name: " + tool.encode()] if tool else []
        elif habit.version is not None:
            fields.append(b"MCP-Protocol-Version: " + habit.version)
        fields += [b"Accept: " + habit.accept] if habit.accept is not None else []
        fields += habit.more
        if not is_end:
            fields.append(b"Content-Type: application/json")
        if not is_end or body or habit.ends is not None:
            fields.append(b"Content-Length: %d" % len(body))
        if auth and (credential := CREDENTIALS[self.owner]) is not None:
            fields.append(b"Authorization: " + credential)
        if self.session != -1 and not is_modern and (self.kind != "initialize" or self.body):
            named = "session-9999" if self.session == -2 or not sessions else sessions[-1 - self.session % len(sessions)]
            fields.insert(habit.place % (len(fields) + 1), habit.session + named.encode() + habit.behind)
        lines = Lines(b"%b /mcp HTTP/1.1" % (b"DELETE" if is_end else b"POST"), fields, body)
        for twist in (*habit.twists, *self.twists):
            lines = twist.apply(lines)
        return lines.data


class Step(NamedTuple):
    """What is sent at once on one connection.

    Attributes:
        line: Which connection.
        asks: The requests, one behind the other.
        times: How often.
        cuts: Where it is cut into pieces, in thousandths.
        rest: What happens besides: before it `wait` for all to be forgotten, or begin to `drain`; after it the client is `gone`; or nothing.
    """

    line: int
    asks: list[Ask]
    times: int
    cuts: list[int]
    rest: str


@dataclass(frozen=True)
class Program:
    """All that happens.

    Attributes:
        options: Of the application.
        logged: Whether requests are logged, and told to a sink.
        habits: Of the clients.
        steps: With the number of a habit each.
    """

    options: dict[str, Any]
    logged: bool
    habits: tuple[Habit, Habit]
    steps: list[tuple[int, Step]]


OPTIONS: list[dict[str, Any]] = [
    *[{"origins": [PAGE]}] * 6,
    *[{"auth": True}] * 6,
    {"sessions": "off"},
    {"json_only": True},
    *[{"cors": True, "origins": [PAGE]}] * 2,
    {"versions": ["2025-11-25", "2025-06-18"]},
    {"versions": ["2026-07-28"]},
    {"allow_remote": True},
    {"handshake": "strict"},
    {"shared": True},
    {"options": True},
    {"encodings": ["gzip"]},
    {"sse_path": "/sse"},
    {"limits": Limits(max_sessions=2)},
    {"limits": Limits(max_sessions_per_principal=2)},
    {"limits": Limits(max_headers=400)},
    {"limits": Limits(max_body=250)},
    {"limits": Limits(max_items=20)},
    {"limits": Limits(max_in_flight=1)},
    {"limits": Limits(address_rate=(4, 10_000.0))},
    {"limits": Limits(message_rate=(4, 10_000.0))},
]


def merge(some: list[dict[str, Any]]) -> dict[str, Any]:
    """Options together, without what does not go with the others."""
    merged = {**some[0], **some[-1]}
    if {"versions", "sessions", "json_only"} & merged.keys():
        merged.pop("sse_path", None)
    return merged


def mostly(usual: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What is usual, and one time in six something else; `one_of` would take the same strategy once only."""
    return st.integers(0, 5).flatmap(lambda number: other if number == 5 else usual)


BROWSER = (b"Origin: " + PAGE.encode(),)
some_twists = st.lists(
    st.builds(Twist, kind=st.sampled_from([*MORE, *TWISTS, *STARTS]), line=st.integers(0, 12)), min_size=1, max_size=2
).map(tuple)
habits = st.builds(
    Habit,
    version=mostly(st.just(b"2025-11-25"), st.sampled_from([b"2025-06-18", b"2025-03-26", None, b"2026-07-28", b"2025-11-25x"])),
    session=st.sampled_from([LATE, LATE, EARLY, b"mcp-session-id:\t"]),
    place=st.integers(0, 12),
    behind=mostly(st.just(b""), st.sampled_from([b" ", b"\r\n more"])),
    accept=mostly(
        st.just(b"application/json, text/event-stream"),
        st.sampled_from([None, b"*/*", b"text/event-stream", b"application/json", b"text/html"]),
    ),
    more=st.sampled_from([(), (), (b"User-Agent: x", b"Cookie: a=b"), BROWSER, BROWSER, (b"Origin: http://127.0.0.1:8000",)]),
    ends=st.sampled_from([None, b"0"]),
    twists=st.just(()),
)
twisted = st.builds(lambda habit, some: replace(habit, twists=some), habits, some_twists)
asks = st.builds(
    Ask,
    kind=st.sampled_from(KINDS),
    session=st.sampled_from([*[0, 1, 2] * 4, -1, -2]),
    owner=st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2, 3]),
    body=st.sampled_from([b"", b"", b"", b"", b"x", b"{}"]),
    twists=mostly(st.just(()), some_twists),
)
steps = st.builds(
    Step,
    line=st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3]),
    asks=mostly(st.lists(asks, min_size=1, max_size=1), st.lists(asks, min_size=2, max_size=3)),
    times=st.sampled_from([1, 1, 2, 3]),
    cuts=mostly(st.just([]), st.lists(st.integers(0, 1000), min_size=1, max_size=3)),
    rest=st.sampled_from([""] * 40 + ["gone", "wait", "drain"]),
)
programs = st.builds(
    Program,
    options=st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=2).map(merge),
    logged=st.booleans(),
    habits=st.tuples(habits, twisted),
    steps=st.lists(st.tuples(st.sampled_from([0, 0, 1]), steps), min_size=4, max_size=16),
)


# After this what heads of the first habit have in common is known, but for that of a DELETE, which is by half.
PRELUDE = [Step(0, [Ask(kind, session, 0, b"", ())], 1, [], "") for kind, session in [("initialize", 0)] * 3 + [("visit", 1), ("visit", 2)]]
PRELUDE.append(Step(0, [Ask("DELETE", 2, 0, b"", ())], 1, [], ""))


def repeat(options: dict[str, Any], more: tuple[bytes, ...], behind: bytes, *kinds: tuple[str, ...]) -> Program:
    """A client that sends the same several times, in several sessions: requests of these kinds, each time at once."""
    habit = Habit(b"2025-11-25", LATE, 3, behind, b"application/json, text/event-stream", more, b"0", ())
    sent = [(0, Step(0, [Ask(kind, session, 0, b"", ()) for kind in each], 2, [], "")) for each in kinds for session in (0, 1, 0)]
    return Program(options, logged=False, habits=(habit, habit), steps=sent)


# What chance would have to find.
KNOWN = {
    "pages": repeat({"cors": True, "origins": [PAGE]}, BROWSER, b"", ("visit",), ("initialize",), ("DELETE",)),
    "pipelined": repeat({}, (), b"", ("visit", "visit"), ("DELETE",), ("initialize",), ("DELETE", "initialize"), ("visit", "DELETE")),
    "closing": repeat({}, (b"Connection: close",), b"", ("initialize",), ("visit",), ("DELETE",)),
    "folded": repeat({}, (), b"\r\n more", ("visit",), ("DELETE",)),
}
