"""SA32 to SA34 over a socket: addresses that lead elsewhere, long ones, and schemas that fetch or explode."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from asgi_driver import LATEST
from e2e.hostile_driver import ERAS, V11, Speaker, Target, stall

from callboard import RegistrationError, Server


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with stall(tmp_path_factory.mktemp("uris"), limits={"max_headers": 512 * 1024}) as target:
        yield target


@pytest.fixture(params=ERAS)
def speaker(request: pytest.FixtureRequest, target: Target) -> Iterator[Speaker]:
    """Its next call is served, whatever was sent, and nothing has run."""
    with target.unharmed(request.param) as speaker:
        yield speaker


ELSEWHERE = [
    "..%2f..%2fetc/passwd",
    "%2e%2e/x",
    "../x",
    "a/../../x",
    "%5c..%5cx",
    "C:%5cx",
    "c:x",
    "a%00b",
    "/host/x",
    "%2f%2fhost",
    "%252e%252e%252fx",
    "%25252e%25252e%25252fx",
    "%c0%ae%c0%ae/x",
    "%25c0%25ae/x",
    "%e0%80%ae/x",
    "%ef%bc%8e%ef%bc%8e/x",
    "%" + "25" * 40,
    "%ff",
    "%",
    "%zz",
    "a\\..\\b",
]


@pytest.mark.parametrize("place", ["file:///{}", "shelf://room/{}/end", "shelf://{}/x/end", "shelf://room/x/end?page={}", "tree://top/{}"])
def test_an_address_that_leads_elsewhere_reaches_no_function(speaker: Speaker, place: str) -> None:
    # SA32: refused before the handler, whichever variable it is in
    for path in ELSEWHERE:
        if place == "shelf://{}/x/end" and path in {"../x", "a/../../x", "/host/x", "%2e%2e/x"}:
            continue  # a slash ends this variable
        answer = speaker.post("resources/read", {"uri": place.format(path)})
        assert answer.message["error"]["code"] in {-32602, -32002}, path
        assert answer.status == (400 if speaker.is_modern else 200)


def test_a_harmless_address_reaches_it(target: Target) -> None:
    # SA32: without this the test above would pass for a server that refuses all
    for version in ERAS:
        answer = target.speaker(version).post("resources/read", {"uri": "shelf://room/a/b..c/end?page=1"})
        assert answer.message["result"]["contents"][0]["text"] == "shelf"


SIZE = 65_000  # nearly what is matched at all
LONG = {
    "slashes": "shelf://room/" + "/" * SIZE,
    "many segments": "tree://top" + "/a" * (SIZE // 2),
    "almost an end": "shelf://room/" + "x/end" * (SIZE // 5) + "?",
    "dots and dashes": "list://" + ".-," * (SIZE // 3),
    "semicolons": "list://a.b-c,d" + ";a" * (SIZE // 2),
    "many pairs": "shelf://room/x/end?" + "&".join(f"k{number}=v" for number in range(SIZE // 9)),
    "escapes": "shelf://room/" + "%25" * (SIZE // 3) + "/end",
    "beyond ASCII": "shelf://room/" + "é" * (SIZE // 2),
    "broken escapes": "shelf://room/" + "%2" * (SIZE // 2),
    "no template": "x" * SIZE,
}


@pytest.mark.parametrize("uri", LONG.values(), ids=LONG)
def test_a_long_address_is_read_in_no_time(target: Target, uri: str) -> None:
    # SA33: 64 KiB, the best of three under 50 ms beyond what a body of this size takes
    speaker = target.speaker(LATEST)

    def took(method: str, params: dict[str, Any]) -> float:
        message = speaker.request(method, params)
        request = speaker.raw(json.dumps(message).encode(), message)
        with target.wire() as wire:
            started = time.monotonic()
            wire.send(request)
            assert wire.read().status in {200, 400}
            return time.monotonic() - started

    plain = min(took("prompts/get", {"name": uri}) for _ in range(3))
    assert min(took("resources/read", {"uri": uri}) for _ in range(3)) - plain < 0.05


def test_an_address_of_megabytes_stops_nobody(target: Target) -> None:
    # SA33: clients of 2025 need no header for it
    speaker = target.speaker(V11)
    for uri in (f"shelf://room/{'x/' * 1_500_000}end", "tree://top" + "/a" * 1_000_000, "é" * 1_000_000):
        started = time.monotonic()
        assert "error" in speaker.post("resources/read", {"uri": uri + "\\"}).message
        assert time.monotonic() - started < 2
    speaker.serves()


# Schemas


class Trap(BaseHTTPRequestHandler):
    """Counts who comes."""

    visits: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Somebody fetches."""
        self.visits.append(self.path)
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's names
        """Say nothing."""


@pytest.fixture(scope="module")
def trap() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Trap)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(5)
    server.server_close()
    assert Trap.visits == [], "somebody fetched a schema"


def add(schema: dict[str, Any]) -> None:
    """Add a tool with a schema of the author's."""
    server = Server("schemas")

    @server.tool(input_schema=schema)
    async def tool(arguments: dict[str, Any]) -> str:
        return str(len(arguments))


@pytest.mark.parametrize("where", ["{}/x.json", "file:///etc/passwd", "http://169.254.169.254/latest", "//127.0.0.1/x", "x.json", "{}#/a"])
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema", "$id"])
def test_no_reference_is_fetched(trap: str, where: str, keyword: str) -> None:
    # SA34: refused when the tool is added
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {keyword: where.format(trap)}}}
    if keyword == "$schema":
        schema = {"type": "object", keyword: where.format(trap)}
    if keyword == "$id":
        schema["properties"]["a"]["properties"] = {"b": {"$ref": "other.json"}}
    started = time.monotonic()
    with pytest.raises(RegistrationError):
        add(schema)
    assert time.monotonic() - started < 1


def chain(length: int, keyword: str = "allOf") -> dict[str, Any]:
    """Each definition applies the next one twice."""
    defs = {f"d{at}": {keyword: [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(length)}
    return {"type": "object", "$defs": {**defs, f"d{length}": {}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}


def deep(levels: int) -> dict[str, Any]:
    """A schema in a schema and so on."""
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BOMBS: dict[str, dict[str, Any]] = {
    "doubling": chain(30),
    "doubling alternatives": chain(60, "anyOf"),
    "deep": deep(500),
    "deeper": deep(20_000),
    "large": {"type": "object", "properties": {f"p{number}": {"description": "x" * 100} for number in range(20_000)}},
    "long enum": {"type": "object", "properties": {"a": {"enum": ["x" * 100 + str(number) for number in range(20_000)]}}},
    "a pattern that is none": {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
}


@pytest.mark.parametrize("schema", BOMBS.values(), ids=BOMBS)
def test_a_schema_that_explodes_is_refused_when_the_tool_is_added(schema: dict[str, Any]) -> None:
    # SA34, JS-05
    started = time.process_time()
    with pytest.raises(RegistrationError):
        add(schema)
    assert time.process_time() - started < 3


def test_a_reference_into_the_schema_itself_is_fine() -> None:
    # SA34: without this the tests above would pass for a server that takes none
    add({"type": "object", "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "properties": {"a": {"$ref": "#/$defs/n"}}})


def test_the_traps_are_watched(trap: str) -> None:
    # the fixture's last line has to see whoever comes
    assert trap.startswith("http://127.0.0.1:")
    assert Path("/").exists()
