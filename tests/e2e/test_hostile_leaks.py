"""SA35, SA13 over a socket: what a function raises is the log's alone, and nothing that clients send can forge a line of it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_driver import LATEST
from e2e.hostile_driver import ERAS, V11, Speaker, Target, stall
from e2e.hostile_server import SECRET


@pytest.fixture(scope="module", params=["run", "uvicorn"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with stall(tmp_path_factory.mktemp("leaks"), plain=request.param == "uvicorn", quiet=False) as target:
        yield target


CRASHES: dict[str, tuple[str, dict[str, Any]]] = {
    "ValueError": ("leak", {"how": "value"}),
    "OSError": ("leak", {"how": "os"}),
    "KeyError": ("leak", {"how": "key"}),
    "in a thread": ("leak_sync", {}),
    "a group": ("leak_group", {}),
}


@pytest.mark.parametrize(("tool", "arguments"), CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("version", ERAS)
def test_what_a_function_raises_is_the_logs_alone(target: Target, tool: str, arguments: dict[str, Any], version: str) -> None:
    # SA35: a text that says nothing, and the id under which the log has the rest
    speaker = target.speaker(version)
    answer = speaker.call(tool, arguments)
    assert SECRET not in answer.body.decode()
    assert "Traceback" not in answer.body.decode()
    assert SECRET not in json.dumps(answer.headers)
    found = re.search(r"\(id ([0-9a-f]{8,})\)", answer.body.decode())
    assert found is not None
    printed = target.log.read_text()
    at = printed.index(found[1])
    assert SECRET in printed[at:]
    speaker.serves()


FORGED = "x\r\n2026-01-01 ERROR forged entry\x1b[2J\u2028forged"


@pytest.mark.parametrize("version", [LATEST, V11])
def test_no_client_writes_a_line_of_the_log(target: Target, version: str) -> None:
    # SA13: names, ids, methods, client info and headers with line breaks and terminal sequences
    speaker = target.speaker(version)
    for method, params in (
        ("tools/call", {"name": FORGED}),
        ("resources/read", {"uri": FORGED}),
        ("prompts/get", {"name": FORGED}),
        (FORGED, {}),
        ("tools/call", {"name": "leak", "arguments": {"how": FORGED}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": FORGED}, "argument": {"name": FORGED, "value": FORGED}}),
        ("initialize", {"protocolVersion": FORGED, "capabilities": {}, "clientInfo": {"name": FORGED, "version": FORGED}}),
    ):
        answer = speaker.post(method, params, request_id=FORGED, mcp_method=None, mcp_name=None)
        assert answer.status in {200, 400, 404}
    speaker.call("leak", {"how": "value"}, mcp_name="leak", user_agent="x\tERROR forged entry")
    lines = target.log.read_bytes().splitlines()
    assert not [line for line in lines if line.startswith((b"2026-01-01", b"forged"))]
    assert b"\x1b" not in target.log.read_bytes()
    assert "\u2028" not in target.log.read_text()


def test_answers_tell_browsers_and_caches_what_they_may_do(target: Target) -> None:
    # item 4: security headers on what has content
    for version in ERAS:
        speaker = target.speaker(version)
        answers = [
            speaker.call("quick"),
            speaker.send(b"{"),
            speaker.call("quick", host="evil.example"),
            speaker.call("quick", accept="text/event-stream"),
        ]
        answers.append(speaker.call("quick", content_type="text/plain"))
        for answer in answers:
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "no-store" in answer.headers["cache-control"]
            assert "server" not in answer.headers or answer.headers["server"] == "uvicorn"  # stock uvicorn's own


def test_a_token_is_in_no_log_and_no_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    # SA29, SA35
    token = "t0k3n-of-alice-that-nobody-else-sees"
    folder = tmp_path_factory.mktemp("tokens")
    with stall(folder, tokens={token: ["alice", []]}, quiet=False, watched=False) as target:
        good = Speaker(target.port, V11, {"authorization": f"Bearer {token}"})
        answers = [good.call("leak", {"how": "value"}), good.call("who"), good.call("quick", authorization=f"Bearer {token}x")]
        answers.append(Speaker(target.port, LATEST).call("quick", authorization=f"Basic {token}"))
        for answer in answers:
            assert token not in answer.body.decode()
            assert token not in json.dumps(answer.headers)
        good.close()
    assert token not in (folder / "log").read_text()
