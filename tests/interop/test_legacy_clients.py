"""The official clients of 2025 against a server of ours, over HTTP in each version of the protocol and over stdio.

PyPI's `mcp` 1.30 and 2.3 (in its legacy mode) and npm's `@modelcontextprotocol/sdk` 1.32: all must see the same facts, but for what a
version of the protocol can't say. All offer 2025-11-25; the older versions are what a server answers that serves no other.
peers.py installs them; where that can't be done these tests skip and say why, or fail when REQUIRE_PEERS=1 (as in CI).
"""

import json

import pytest
from interop.playing import APPS, MARCH, Seen, look, text, use_as_of_2025

CLIENTS = ("python1", "python2-legacy", "node1")
AHEAD = {"seen": use_as_of_2025, "seen_over_http": use_as_of_2025}


@pytest.fixture(scope="module", params=[f"{client} {way}" for client in CLIENTS for way in (*APPS, "stdio")])
def seen(request: pytest.FixtureRequest) -> Seen:
    return look(use_as_of_2025, request.param)


@pytest.fixture(scope="module", params=[f"{client} {way}" for client in CLIENTS for way in APPS])
def seen_over_http(request: pytest.FixtureRequest) -> Seen:
    return look(use_as_of_2025, request.param)


def test_versions_are_agreed_on(seen: Seen) -> None:
    hello = seen.steps["hello"]
    assert hello.get("protocolVersion", seen.way) == seen.way  # the npm client shows it over HTTP alone
    titled = {} if seen.way == MARCH else {"title": "Stage"}
    assert hello["serverInfo"] == {"name": "stage", "version": "1.2.3", **titled}
    assert hello["instructions"] == "Ask the prompter."
    assert hello["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "completions": {},
        "logging": {},
    }


def test_a_ping_answers_nothing(seen: Seen) -> None:
    assert seen.steps["ping"] == {"result": {}}


def test_tools_of_all_pages_are_listed(seen: Seen) -> None:
    names = seen.steps["tools"]["names"]
    assert names[:5] == ["add", "count", "log", "refuse", "crash"]
    assert len(names) == len(set(names)) == 18
    first = seen.steps["tools"]["first"]
    assert (first["description"], first["annotations"]) == ("Add two numbers.", {"readOnlyHint": True})
    assert first["inputSchema"]["properties"]["a"] == {"type": "integer", "description": "The first."}
    assert first["inputSchema"]["required"] == ["a", "b"]


def test_what_a_version_has_no_word_for_is_left_out_of_definitions(seen: Seen) -> None:
    first = seen.steps["tools"]["first"]
    (prompt,) = seen.steps["prompts"]["prompts"]
    if seen.way == MARCH:
        assert not {"title", "outputSchema"} & {*first, *prompt}
    else:
        assert (first["title"], prompt["title"]) == ("Addition", "Review")
        assert first["outputSchema"]["properties"]["total"]["type"] == "integer"


def test_resources_templates_and_prompts_are_listed(seen: Seen) -> None:
    assert seen.steps["resources"]["uris"] == ["stage://tickets", "stage://poster"]
    assert seen.steps["templates"]["uris"] == ["stage://cast/{role}"]
    (prompt,) = seen.steps["prompts"]["prompts"]
    assert prompt["name"] == "review"
    assert [(argument["name"], argument.get("required", False)) for argument in prompt["arguments"]] == [("play", True), ("tone", False)]


def test_a_call_answers_text_and_where_there_is_such_a_thing_structured_content(seen: Seen) -> None:
    result = seen.steps["call"]["result"]
    assert json.loads(text(result)) == {"total": 5}
    assert result.get("structuredContent") == (None if seen.way == MARCH else {"total": 5})
    assert not result.get("isError")


def test_structured_content_that_is_no_object_is_wrapped(seen: Seen) -> None:
    """The clients check it against the output schema that they were told."""
    one = seen.steps["concurrent"]["one"]
    assert one.get("structuredContent") == (None if seen.way == MARCH else {"result": 8})


def test_concurrent_calls_get_their_own_answers(seen: Seen) -> None:
    assert seen.steps["concurrent"]["answers"] == [str(2 * number) for number in range(20)]


def test_every_progress_note_arrives_before_the_result(seen: Seen) -> None:
    assert seen.steps["progress"] == {
        "notes": [[1, 3, "number 1"], [2, 3, "number 2"], [3, 3, "number 3"]],
        "text": "counted to 3",
    }


def test_headers_of_the_current_protocol_are_not_asked_for(seen: Seen) -> None:
    assert seen.steps["header"] == {"text": "row Süd"}


def test_no_count_of_a_session_is_lost(seen: Seen) -> None:
    assert seen.steps["state"] == {"counts": list(range(1, 21)), "after": 21}


def test_resources_are_read(seen: Seen) -> None:
    (tickets,) = seen.steps["read"]["contents"]
    assert (tickets["uri"], tickets["mimeType"], json.loads(tickets["text"])) == ("stage://tickets", "application/json", {"left": 7})
    (poster,) = seen.steps["read_binary"]["contents"]
    assert (poster["uri"], poster["mimeType"], poster["blob"]) == ("stage://poster", "image/png", "iVBORw0K")
    (actor,) = seen.steps["read_template"]["contents"]
    assert (actor["uri"], actor["text"]) == ("stage://cast/hamlet", "hamlet is played by Ada")


def test_a_prompt_is_made_of_its_messages(seen: Seen) -> None:
    assert seen.steps["prompt"]["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Write a kind review of Hamlet."}},
        {"role": "assistant", "content": {"type": "text", "text": "Gladly."}},
    ]


def test_arguments_of_prompts_and_templates_are_completed(seen: Seen) -> None:
    assert seen.steps["complete"]["values"] == ["Hamlet", "Hedda Gabler"]
    assert seen.steps["complete_template"]["values"] == ["ghost", "gertrude"]


def test_what_does_not_exist_is_a_protocol_error(seen: Seen) -> None:
    assert [seen.steps[step]["code"] for step in ("unknown_tool", "unknown_prompt", "missing_resource")] == [-32602, -32602, -32002]
    assert seen.steps["missing_resource"]["data"] == {"uri": "stage://cast/ghost"}


def test_failures_of_a_tool_are_in_band(seen: Seen) -> None:
    bad, failed = seen.steps["bad_argument"]["result"], seen.steps["tool_error"]["result"]
    assert bad["isError"] is failed["isError"] is True
    assert "a: " in text(bad)
    assert "two" not in text(bad)
    assert text(failed) == "The curtain is stuck."


def test_a_crash_keeps_its_secrets(seen: Seen) -> None:
    crash = seen.steps["crash"]
    assert crash["code"] == -32603
    assert "hunter2" not in json.dumps(crash)


def test_a_cancellation_reaches_the_handler_at_once(seen: Seen) -> None:
    cancel = seen.steps["cancel"]
    assert cancel["name"] == ("node" if seen.client == "node1" else "python")
    assert cancel["seconds"] < 0.5  # SA25
    assert cancel.get("rejected", True)


def test_logs_come_from_the_level_on_that_was_set(seen: Seen) -> None:
    """A session that set none hears of `info` and above."""
    assert seen.steps["logs"]["lines"] == [
        ["info", "by default", "stage"],
        ["error", "by default", "stage"],
        ["error", "errors only", "stage"],
    ]


def test_the_server_speaks_on_its_own_account(seen: Seen) -> None:
    assert seen.steps["pushes"] == {
        "listed": True,
        "updated": {"uri": "stage://tickets"},
        "whispered": {"level": "info", "logger": "prompter", "data": "psst"},
        "shouted": {"level": "notice", "data": "to all"},
        "updates": 1,  # the second came after the subscription had ended
    }


BORNE_BY_NPM = (  # what its client calls an error and goes on: a stream that was cut, and a cancelled call that nobody can come back for
    "Error: SSE stream disconnected",
    "Error: Streamable HTTP error: Failed to open SSE stream: Bad Request",
    "Error: Maximum reconnection attempts (2) exceeded.",
    "Error: Failed to reconnect SSE stream: Streamable HTTP error: Failed to open SSE stream: Bad Request",
)


def test_a_client_leaves_without_waiting_or_complaining(seen: Seen) -> None:
    assert seen.steps["left"]["seconds"] < 2
    assert [line for line in seen.steps["left"]["complaints"] if not line.startswith(BORNE_BY_NPM)] == []


def test_an_answer_is_a_stream_only_when_there_is_more_to_say(seen_over_http: Seen) -> None:
    media = seen_over_http.steps["media"]
    streamed = {name for name, kind in media.items() if kind == "text/event-stream"}
    assert streamed == {"count", "hold", "log", "interval"}
    assert {name for name in media.keys() - streamed if media[name] != "application/json"} <= {
        "notifications/initialized",
        "notifications/cancelled",
    }


def test_a_stream_that_was_cut_is_taken_up_where_it_was(seen_over_http: Seen) -> None:
    assert seen_over_http.steps["reconnect"] == {"cut": 1, "lines": ["before", "meanwhile", "after"], "resumed": True}


def test_a_call_outlives_the_stream_that_the_server_closed(seen_over_http: Seen) -> None:
    """Only clients of 2025-11-25 know to come back (SEP-1699); for others the stream stays open."""
    assert seen_over_http.steps["polling"] == {"notes": ["the curtain falls", "the curtain rises"], "text": "applause"}


def test_a_session_ends_with_its_client(seen_over_http: Seen) -> None:
    assert seen_over_http.steps["departed"] == {"reason": "deleted", "count": 21}


def test_a_client_whose_session_is_gone_starts_again(seen_over_http: Seen) -> None:
    deleted = seen_over_http.steps["deleted"]
    assert (deleted["status"], deleted["again"]) == (204, 404)
    # mcp 1.30 makes 32600 of the status, 2.3 passes our error on, the npm client shows the status.
    assert deleted["lost"]["code"] == {"python1": 32600, "python2-legacy": -32600, "node1": 404}[seen_over_http.client]
    assert seen_over_http.steps["again"] == {"fresh": True, "tally": 1}
