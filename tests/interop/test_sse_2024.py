"""The official clients of HTTP+SSE against a server of ours: they must see over it what the very same clients see over a pipe.

PyPI's `sse_client` of `mcp` 1.30 and 2.3, and `SSEClientTransport` of npm's `@modelcontextprotocol/sdk` 1.32. peers.py
installs them; where that can't be done these tests skip and say why, or fail when REQUIRE_PEERS=1 (as in CI).
"""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import pytest
from asgi_driver import make_headers, make_request
from interop.playing import Steps, client_command, look, play, served, text, use_as_of_2025

CLIENTS = ("python1", "python2-legacy", "node1")

# What npm's client calls an error: it leaves when an answer has come on the stream, and the POST has yet to hear that it was accepted.
BORNE = "AbortError: This operation was aborted"
# Of notes that come in one piece with the answer it takes the answer first.
LATE = "Error: Received a progress notification for an unknown token"


def same(facts: dict[str, Any]) -> Any:
    """Facts without those that are never the same twice."""
    shown = json.dumps({name: fact for name, fact in facts.items() if name not in {"seconds", "complaints", "protocolVersion"}})
    return json.loads(re.sub(r"\(id [0-9a-f]{8}\)", "", shown))


def ask(url: str, tool: str) -> str:
    """The text that a tool answers with to a client of the current protocol."""
    message = make_request("tools/call", {"name": tool})
    headers = {**make_headers(message), "accept": "application/json"}
    with urlopen(Request(url, json.dumps(message).encode(), headers), timeout=20) as response:
        return text(json.load(response)["result"])


def use(client: str) -> Steps:
    """Lets a client do everything over HTTP+SSE."""
    command = client_command(client)
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with served("sse", log) as url:
            seen = play([*command, "sse", url.replace("/mcp", "/sse")])
            seen["departed"] = json.loads(ask(url, "departed"))
        complaints = log.read_text().replace("RuntimeError: password=hunter2", "")  # what the tool `crash` is for
    assert not re.search("ASGI|never retrieved|Error:", complaints), complaints
    return seen


def use_below(client: str) -> Steps:
    """Lets a client do everything over HTTP+SSE where the application is mounted."""
    command = client_command(client)
    with TemporaryDirectory() as folder, served("mounted", Path(folder, "log")) as url:
        return play([*command, "sse", url.replace("/mcp", "/tools/sse")])


AHEAD = {"client": use, "steps_below": use_below}


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def steps(client: str) -> Steps:
    """What a client saw over HTTP+SSE."""
    return look(use, client)


@pytest.fixture(scope="module", params=CLIENTS)
def steps_below(request: pytest.FixtureRequest) -> Steps:
    return look(use_below, request.param)


def test_a_client_sees_over_a_stream_what_it_sees_over_a_pipe(client: str, steps: Steps) -> None:
    """Lists, calls, state, resources, prompts, errors, a cancellation, logs, subscriptions and pushes."""
    over_a_pipe = look(use_as_of_2025, f"{client} stdio").steps
    assert steps.keys() - {"departed"} == over_a_pipe.keys()
    assert len(over_a_pipe) > 20
    for step in over_a_pipe.keys() - {"progress"}:
        assert same(steps[step]) == same(over_a_pipe[step]), step


def test_a_client_leaves_at_once_and_without_complaints(steps: Steps) -> None:
    assert steps["left"]["seconds"] < 2
    assert [line for line in steps["left"]["complaints"] if not line.startswith((BORNE, LATE))] == []


def test_every_progress_note_arrives(steps: Steps) -> None:
    late = sum(line.startswith(LATE) for line in steps["left"]["complaints"])
    assert steps["progress"]["text"] == "counted to 3"
    assert [note[0] for note in steps["progress"]["notes"]] == [1, 2, 3][: 3 - late]


def test_a_session_ends_with_its_client(steps: Steps) -> None:
    assert steps["departed"] == {"reason": "closed", "count": 21}


def test_a_cancellation_reaches_the_handler_at_once(steps: Steps) -> None:
    assert steps["cancel"]["seconds"] < 0.5  # SA25


def test_a_mounted_server_is_found_where_it_is(steps_below: Steps) -> None:
    assert "end" in steps_below
    assert json.loads(steps_below["call"]["result"]["content"][0]["text"]) == {"total": 5}
