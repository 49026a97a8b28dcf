"""SA22 to SA24, SA28 over a socket: ids and states that are made up, gone, somebody else's, or tampered with."""

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asgi_driver import LATEST, make_meta
from e2e.hostile_driver import V03, V06, V11, Speaker, Target, stall
from e2e.raw_http import Response, ask, make_head

LEGACY = (V11, V06, V03)
ASKS = make_meta({"elicitation": {}})


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with stall(tmp_path_factory.mktemp("state"), principals=True, session_ttl=60, quiet=False) as target:
        yield target


@pytest.fixture(scope="module")
def fleeting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Its sessions end at once."""
    with stall(tmp_path_factory.mktemp("fleeting"), session_ttl=1.0) as target:
        yield target


def speaker_of(target: Target, version: str, who: str | None) -> Speaker:
    """A client of somebody's."""
    return Speaker(target.port, version, {} if who is None else {"x-principal": who})


def in_every_way(speaker: Speaker, **changed: Any) -> list[Response]:
    """What a call, a notification, a stream and the end of the session come to."""
    note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}).encode()
    return [
        speaker.call("echo", {"text": "x"}, **changed),
        speaker.send(note, **changed),
        ask(speaker.port, make_head(None, speaker.headers(**changed), verb="GET")),
        ask(speaker.port, make_head(None, speaker.headers(**changed), verb="DELETE")),
    ]


@pytest.mark.parametrize("version", LEGACY)
def test_a_session_that_there_is_not_is_404_in_every_way(target: Target, version: str) -> None:
    # SA22: made up, deleted
    before = target.runs()
    speaker = speaker_of(target, version, None)
    gone = speaker_of(target, version, None)
    gone.close()
    for session_id in ("0" * 32, gone.session, speaker.session[:-1], speaker.session + "0", speaker.session.swapcase() + "x"):
        for answer in in_every_way(speaker, mcp_session_id=session_id):
            assert answer.status == 404
            assert session_id not in answer.body.decode()
    assert target.runs() == before
    speaker.serves()
    speaker.close()


def test_a_session_that_has_expired_is_404(fleeting: Target) -> None:
    # SA22
    speakers = [Speaker(fleeting.port, version) for version in LEGACY]
    fleeting.settle(lambda _: all(_is_gone(speaker) for speaker in speakers))
    for speaker in speakers:
        assert {answer.status for answer in in_every_way(speaker)} == {404}


def _is_gone(speaker: Speaker) -> bool:
    """Whether its session has ended, asked without keeping it alive: the stream's refusal comes first."""
    answer = ask(speaker.port, make_head(None, {**speaker.headers(), "accept": "application/json"}, verb="GET"))
    return answer.status == 404


@pytest.mark.parametrize("version", LEGACY)
@pytest.mark.parametrize("thief", ["bob", None])
def test_a_session_of_somebody_else_is_404_and_stays_theirs(target: Target, version: str, thief: str | None) -> None:
    # SA23
    alice = speaker_of(target, version, "alice")
    alice.call("remember", {"value": "alice's"})
    before = target.runs()
    robber = speaker_of(target, version, thief)
    for answer in in_every_way(robber, mcp_session_id=alice.session):
        assert answer.status == 404
        assert "alice" not in answer.body.decode()
    assert target.runs() == before, "something of alice's ran"
    events = [line for line in target.log.read_text().splitlines() if "event=session" in line]
    assert events, "nobody has written down that a session was asked for by somebody else"
    assert not any(alice.session in line for line in events), "the id of a session is as good as a password"
    assert alice.call("remember", {"value": "x"}).message["result"]["content"][0]["text"] == "alice's"
    alice.close()
    robber.close()


@pytest.mark.parametrize("version", LEGACY)
def test_an_id_in_flight_is_taken(target: Target, version: str) -> None:
    # SA24: the second is refused, the first goes on
    speaker = speaker_of(target, version, None)
    with target.wire() as first:
        first.send(speaker.raw_call("sleepy", {"seconds": 0.5}, request_id="same"))
        target.settle(lambda now: now["tasks"] > 0)
        with target.wire() as second:
            second.send(speaker.raw_call("quick", request_id="same"))
            answer = second.read()
            assert answer.message["error"]["code"] == -32600
        assert first.read().message["result"]["content"][0]["text"] == "slept"
    answer = speaker.post("tools/call", {"name": "quick", "arguments": {}}, request_id="same")
    assert "result" in answer.message
    speaker.close()


def test_without_sessions_an_id_is_its_requests_alone(target: Target) -> None:
    # SA24: on the current protocol every request is a connection's own
    speaker = speaker_of(target, LATEST, None)
    with target.wire() as first:
        first.send(speaker.raw_call("sleepy", {"seconds": 0.3}, request_id="same"))
        answer = speaker.post("tools/call", {"name": "quick", "arguments": {}}, request_id="same")
        assert answer.message["result"]["content"][0]["text"] == "quick"
        assert first.read().message["result"]["content"][0]["text"] == "slept"


@pytest.mark.parametrize("version", LEGACY)
def test_time_does_not_tell_what_is_hidden(target: Target, version: str) -> None:
    # SA21: a hidden tool that takes the state would wait for it; so does what there is not, and what is hidden without taking it
    bob = speaker_of(target, version, "bob")
    with target.wire() as first, ExitStack() as stack:
        first.send(bob.raw_call("brood", {"seconds": 0.7}, request_id="first"))
        target.settle(lambda _: bob.call("quick").status == 200)
        started = time.monotonic()
        wires = {name: stack.enter_context(target.wire()) for name in ("hidden_keeper", "hidden", "not_there")}
        for name, wire in wires.items():
            wire.send(bob.raw_call(name, request_id=name))
        assert first.read().message["result"]["content"][0]["text"] == "nothing"
        answers = {name: wire.read() for name, wire in wires.items()}
        assert time.monotonic() - started > 0.2
        bodies = {answer.body.replace(name.encode(), b"@") for name, answer in answers.items()}
        assert len(bodies) == 1
    assert bob.call("remember", {"value": "x"}).message["result"]["content"][0]["text"] == "nothing"
    bob.close()


# What a call keeps with its client


def resume(
    speaker: Speaker, state: str, *, tool: str = "ask", topic: str = "a boat", key: str | None = None, name: str = "Ann", **changed: Any
) -> Response:
    """Go on with a call, with the answer to what it asked."""
    answers = {key or "": {"action": "accept", "content": {"name": name}}}
    params = {"name": tool, "arguments": {"topic": topic}, "inputResponses": answers, "requestState": state}
    message = speaker.request("tools/call", params, meta=ASKS)
    return speaker.send(json.dumps(message).encode(), message, **changed)


def begin(speaker: Speaker, tool: str = "ask") -> tuple[str, str]:
    """Begin a call that asks; the state that comes back, and the key of what it asks."""
    message = speaker.request("tools/call", {"name": tool, "arguments": {"topic": "a boat"}}, meta=ASKS)
    result = speaker.send(json.dumps(message).encode(), message).message["result"]
    assert result["resultType"] == "input_required"
    (key,) = result["inputRequests"]
    return result["requestState"], key


def flip(state: str, at: int) -> str:
    """A state with another character at a place."""
    at %= len(state)
    return state[:at] + ("A" if state[at] != "A" else "B") + state[at + 1 :]


def refused(answer: Response) -> str:
    """Demand that a state was refused; the text."""
    assert (answer.status, answer.message["error"]["code"]) == (400, -32602), answer.body
    return str(answer.message["error"]["message"])


def test_a_state_is_taken_back_from_whom_it_was_given(target: Target) -> None:
    # SA28: without this the test below would pass for a server that refuses all
    alice = speaker_of(target, LATEST, "alice")
    state, key = begin(alice)
    assert resume(alice, state, key=key).message["result"]["content"][0]["text"] == "Ann"


def test_a_state_that_was_tampered_with_or_is_of_something_else_is_refused_in_one_text(target: Target) -> None:
    # SA28: tampered, other principal, other arguments, other tool; no function runs
    alice, bob, nobody = (speaker_of(target, LATEST, who) for who in ("alice", "bob", None))
    state, key = begin(alice)
    other, _ = begin(alice, "ask_too")
    before = target.runs()
    raw = bytearray(urlsafe_b64decode(state.rpartition(".")[2] + "=="))
    raw[-1] ^= 1
    tampered = (
        state.rpartition(".")[0] + state[state.rfind(".") : state.rfind(".") + 1] + urlsafe_b64encode(bytes(raw)).decode().rstrip("=")
    )
    attempts: dict[str, Response] = {
        "tampered": resume(alice, tampered, key=key),
        "other principal": resume(bob, state, key=key),
        "no principal": resume(nobody, state, key=key),
        "other arguments": resume(alice, state, key=key, topic="a ship"),
        "other tool": resume(alice, state, key=key, tool="ask_too"),
        "other call's": resume(alice, other, key=key),
        "cut": resume(alice, state[:-5], key=key),
        "longer": resume(alice, state + "A", key=key),
        "empty": resume(alice, "", key=key),
        "made up": resume(alice, "A" * 200, key=key),
        "json": resume(alice, '{"round": 1}', key=key),
        **{f"character {at}": resume(alice, flip(state, at), key=key) for at in (0, 1, 5, len(state) // 2, -2)},
    }
    texts = {what: refused(answer) for what, answer in attempts.items()}
    assert len(set(texts.values())) == 1, texts
    assert target.runs() == before, "a function ran on"


def test_a_state_that_has_expired_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    # SA28: in the words of one that was tampered with
    with stall(tmp_path_factory.mktemp("expiring"), quiet=False, server={"request_state_ttl": 1.0}) as target:
        speaker = target.speaker(LATEST)
        state, key = begin(speaker)
        target.settle(lambda _: resume(speaker, state, key=key).status != 200)
        before = target.runs()
        text = refused(resume(speaker, state, key=key))
        assert text == refused(resume(speaker, flip(state, 5), key=key))
        assert target.runs() == before


def test_a_state_of_another_process_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    # SA28: nobody has its key any more
    with stall(tmp_path_factory.mktemp("before")) as before:
        state, key = begin(before.speaker(LATEST))
    with stall(tmp_path_factory.mktemp("after"), quiet=False) as after:
        refused(resume(after.speaker(LATEST), state, key=key))
