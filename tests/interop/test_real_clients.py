"""The official clients against a server of ours, over HTTP and stdio: all must see the same facts.

peers.py installs them; where that can't be done these tests skip and say why, or fail when REQUIRE_PEERS=1 (as in CI).
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from interop.playing import MODERN, STAGE, Seen, client_command, look, play, served, text


def use(what: str) -> Seen:
    """Lets a client do everything."""
    client, way = what.split("-")
    command = [*client_command(client), way]
    if way == "stdio":
        return Seen(client, way, play([*command, sys.executable, str(STAGE), "stdio"]))
    with TemporaryDirectory() as folder, served("app", Path(folder, "log")) as url:
        return Seen(client, way, play([*command, url]))


def come_late(client: str) -> dict[str, Any]:
    """Lets a client of 2025 come to a server that speaks the current protocol alone."""
    command = client_command(client)
    with TemporaryDirectory() as folder, served("modern", Path(folder, "log")) as url:
        return play([*command, "outdated", url])["outdated"]


def stay(client: str) -> dict[str, Any]:
    """Lets a client listen until the server ends its stream."""
    command = client_command(client)
    with TemporaryDirectory() as folder, served("fleeting", Path(folder, "log")) as url:
        return play([*command, "farewell", url])["farewell"]


AHEAD = {"session": use, "outdated": come_late, "farewell": stay}


@pytest.fixture(scope="module", params=["python-http", "python-stdio", "node-http", "node-stdio"])
def session(request: pytest.FixtureRequest) -> Seen:
    return look(use, request.param)


@pytest.fixture(scope="module", params=["python", "node"])
def outdated(request: pytest.FixtureRequest) -> dict[str, Any]:
    return look(come_late, request.param)


@pytest.fixture(scope="module", params=["python", "node"])
def farewell(request: pytest.FixtureRequest) -> dict[str, Any]:
    return look(stay, request.param)


def test_the_current_protocol_is_found_without_being_told(session: Seen) -> None:
    seen = session.steps["discover"]
    assert seen["version"] == MODERN
    assert seen["server"] == {"name": "stage", "version": "1.2.3", "title": "Stage"}
    assert seen["instructions"] == "Ask the prompter."
    assert seen["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "completions": {},
        "logging": {},
    }


def test_the_current_protocol_is_spoken_without_asking(session: Seen) -> None:
    assert session.steps["pinned"]["version"] == MODERN
    assert session.steps["pinned"]["result"]["structuredContent"] == {"total": 2}


def test_tools_of_all_pages_are_listed_in_the_order_of_their_registration(session: Seen) -> None:
    seen = session.steps["tools"]
    names = "add count log refuse crash seat double hold released perform prompt_actor "  # pages of five
    names += "tally interval whisper shout departed announce sell"
    assert seen["names"] == names.split()
    first = seen["first"]
    assert (first["title"], first["description"], first["annotations"]) == ("Addition", "Add two numbers.", {"readOnlyHint": True})
    assert first["inputSchema"]["properties"]["a"] == {"type": "integer", "description": "The first."}
    assert first["inputSchema"]["required"] == ["a", "b"]
    assert first["outputSchema"]["properties"]["total"]["type"] == "integer"


def test_resources_templates_and_prompts_are_listed(session: Seen) -> None:
    assert session.steps["resources"]["uris"] == ["stage://tickets", "stage://poster"]
    assert session.steps["templates"]["uris"] == ["stage://cast/{role}"]
    (prompt,) = session.steps["prompts"]["prompts"]
    assert (prompt["name"], prompt["title"]) == ("review", "Review")
    arguments = [(argument["name"], argument.get("required", False)) for argument in prompt["arguments"]]
    assert arguments == [("play", True), ("tone", False)]
    assert [argument["description"] for argument in prompt["arguments"]] == ["Which play.", "How to speak of it."]


def test_a_call_answers_structured_content_and_text(session: Seen) -> None:
    result = session.steps["call"]["result"]
    assert result["structuredContent"] == {"total": 5}
    assert json.loads(text(result)) == {"total": 5}
    assert not result.get("isError")


def test_every_progress_note_arrives_before_the_result(session: Seen) -> None:
    assert session.steps["progress"] == {
        "notes": [[1, 3, "number 1"], [2, 3, "number 2"], [3, 3, "number 3"]],
        "text": "counted to 3",
    }


def test_an_argument_that_travels_in_a_header_arrives(session: Seen) -> None:
    assert session.steps["header"] == {"text": "row Süd"}


def test_concurrent_calls_get_their_own_answers(session: Seen) -> None:
    assert session.steps["concurrent"]["answers"] == [2 * number for number in range(20)]


def test_resources_are_read(session: Seen) -> None:
    (tickets,) = session.steps["read"]["contents"]
    assert (tickets["uri"], tickets["mimeType"], json.loads(tickets["text"])) == ("stage://tickets", "application/json", {"left": 7})
    (poster,) = session.steps["read_binary"]["contents"]
    assert (poster["uri"], poster["mimeType"], poster["blob"]) == ("stage://poster", "image/png", "iVBORw0K")
    (actor,) = session.steps["read_template"]["contents"]
    assert (actor["uri"], actor["text"]) == ("stage://cast/hamlet", "hamlet is played by Ada")


def test_a_prompt_is_made_of_its_messages(session: Seen) -> None:
    assert session.steps["prompt"]["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Write a kind review of Hamlet."}},
        {"role": "assistant", "content": {"type": "text", "text": "Gladly."}},
    ]


def test_arguments_of_prompts_and_templates_are_completed(session: Seen) -> None:
    assert session.steps["complete"]["values"] == ["Hamlet", "Hedda Gabler"]
    assert session.steps["complete_template"]["values"] == ["ghost", "gertrude"]


@pytest.mark.parametrize("step", ["unknown_tool", "unknown_prompt", "missing_resource"])
def test_what_does_not_exist_is_a_protocol_error(session: Seen, step: str) -> None:
    assert session.steps[step]["code"] == -32602


def test_a_missing_resource_is_named(session: Seen) -> None:
    assert session.steps["missing_resource"]["data"] == {"uri": "stage://cast/ghost"}


def test_bad_arguments_are_told_to_the_model_all_at_once(session: Seen) -> None:
    result = session.steps["bad_argument"]["result"]
    assert result["isError"] is True
    complaint = text(result)
    assert "a: " in complaint
    assert "integer" in complaint
    assert "b: " in complaint
    assert "required" in complaint
    assert "two" not in complaint


def test_a_tool_fails_in_band(session: Seen) -> None:
    result = session.steps["tool_error"]["result"]
    assert result["isError"] is True
    assert text(result) == "The curtain is stuck."


def test_a_crash_keeps_its_secrets(session: Seen) -> None:
    seen = session.steps["crash"]
    assert seen["code"] == -32603
    assert "hunter2" not in json.dumps(seen)


def test_a_cancellation_reaches_the_handler_at_once(session: Seen) -> None:
    seen = session.steps["cancel"]
    assert seen["name"] == session.client
    assert seen["seconds"] < 0.5  # SA25
    assert seen.get("rejected", True)


def test_a_listener_hears_of_the_changes_it_asked_for(session: Seen) -> None:
    seen = session.steps["listen"]
    assert seen["honored"] == {"toolsListChanged": True, "resourceSubscriptions": ["stage://tickets"]}
    assert (seen["first"], seen["second"], seen["uri"]) == ("ToolsListChanged", "ResourceUpdated", "stage://tickets")
    assert seen["listed"] is True
    assert seen.get("closed", "local") == "local"


def test_logs_come_to_those_who_asked_and_from_their_level_on(session: Seen) -> None:
    assert session.steps["no_logs"]["lines"] == []
    assert session.steps["logs"]["lines"] == [["info", "asked", "stage"], ["error", "asked", "stage"]]


def test_a_client_leaves_without_waiting(session: Seen) -> None:
    assert session.steps["left"]["seconds"] < 2


def test_the_same_client_is_served_as_one_of_2025(session: Seen) -> None:
    seen = session.steps["legacy"]
    assert seen["version"] == "2025-11-25"
    assert seen["result"]["structuredContent"] == {"total": 4}


def test_a_client_of_2025_is_told_what_is_spoken_here(outdated: dict[str, Any]) -> None:
    """VN-11: it may be the only diagnosis that such a client shows."""
    assert outdated["code"] is not None
    assert f"supported: {MODERN}" in outdated["message"]


def test_a_listener_is_told_goodbye(farewell: dict[str, Any]) -> None:
    assert farewell == {"events": 0, "end": "graceful"}


def test_no_client_complained(session: Seen) -> None:
    assert session.steps.get("client_error") is None
