"""SA25 to SA27 over a socket: clients that leave, tools that say too much, callers that call too often."""

import time
from collections.abc import Iterator

import pytest
from asgi_driver import LATEST, META_PREFIX, make_meta
from e2e.hostile_driver import ERAS, MIB, V11, Speaker, Target, stall, stream_messages
from e2e.raw_http import Response, Wire

MANY = 100_000
TALKATIVE = make_meta(progressToken="p", logLevel="debug")


@pytest.fixture(scope="module", params=["run", "uvicorn"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with stall(tmp_path_factory.mktemp("floods"), plain=request.param == "uvicorn", growth=64 * MIB) as target:
        yield target


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_client_that_leaves_takes_its_call_with_it(target: Target, how: str, streaming: bool) -> None:
    # SA25: within half a second, and nothing of it is left
    speaker = target.speaker(LATEST)
    before = target.health()
    wires = [target.wire() for _ in range(10)]
    for wire in wires:
        wire.send(speaker.raw_call("hang", meta=TALKATIVE if streaming else None))
    target.settle(lambda now: now["tasks"] >= before["tasks"] + len(wires))
    for wire in wires:
        if streaming:
            wire.head()
        wire.reset() if how == "reset" else wire.socket.close()
    target.settle(lambda now: now["ended"] == before["ended"] + len(wires), 2)
    after = target.settle(lambda now: now["tasks"] <= before["tasks"] and now["descriptors"] <= before["descriptors"])
    assert after["listeners"] == before["listeners"]


@pytest.mark.parametrize("version", [LATEST, V11])
def test_a_tool_that_says_too_much_is_cut_and_its_result_arrives(target: Target, version: str) -> None:
    # SA26: a hundred thousand of each; progress coalesces, logs are capped and counted
    speaker = target.speaker(version)
    if version != LATEST:
        assert "result" in speaker.post("logging/setLevel", {"level": "debug"}).message
    meta = TALKATIVE if version == LATEST else {"progressToken": "p"}
    with target.wire() as wire:
        wire.socket.settimeout(60)
        wire.send(speaker.raw_call("pour", {"count": MANY}, meta=meta))
        answer = wire.read()
    messages = stream_messages(answer)
    assert messages[-1]["result"]["content"][0]["text"] == "poured"
    kinds = [message["method"] for message in messages[:-1]]
    assert 0 < kinds.count("notifications/progress") < MANY // 2
    assert 0 < kinds.count("notifications/message") < 20_000
    assert len(answer.body) < 40 * MIB


def test_a_reader_that_reads_nothing_is_held_to_its_share(target: Target) -> None:
    # SA26: what waits for it is bounded
    speaker = target.speaker(LATEST)
    before = target.health()
    wires = [Wire(target.port, receive_buffer=4096) for _ in range(5)]
    for wire in wires:
        wire.send(speaker.raw_call("pour", {"count": MANY // 2}, meta=TALKATIVE))
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert target.health()["resident"] - before["resident"] < 48 * MIB
    for wire in wires:
        wire.reset()
    target.settle(lambda now: now["tasks"] <= before["tasks"] and now["descriptors"] <= before["descriptors"], 30)


# Rates


def too_many(answer: Response) -> None:
    """Demand that a caller was told to come back later."""
    assert answer.status == 429, answer.body
    assert 1 <= int(answer.headers["retry-after"]) <= 3600
    assert not -32768 <= answer.message["error"]["code"] <= -32000
    assert answer.message["jsonrpc"] == "2.0"


@pytest.mark.parametrize("version", ERAS)
def test_who_calls_too_often_is_told_to_wait(tmp_path_factory: pytest.TempPathFactory, version: str) -> None:
    # SA27: messages of one principal; others are not held up, and nothing runs
    with stall(tmp_path_factory.mktemp("messages"), watched=False, principals=True, limits={"message_rate": "10/h"}) as target:
        alice = Speaker(target.port, version, {"x-principal": "alice"})
        answers = [alice.call("echo", {"text": "x"}) for _ in range(12)]
        served = [answer for answer in answers if answer.status == 200]
        assert 0 < len(served) <= 10
        assert [answer.status for answer in answers] == [200] * len(served) + [429] * (12 - len(served))
        too_many(answers[-1])
        too_many(alice.send(alice.encode("tools/list")))
        bob = Speaker(target.port, version, {"x-principal": "bob"})
        bob.serves()
        assert target_runs(target) == ["echo"] * len(served)


def target_runs(target: Target) -> list[str]:
    """What has run, as somebody else asks."""
    found: list[str] = Speaker(target.port, LATEST, {"x-principal": "carol"}).call("ran").structured
    return found


def test_an_address_that_asks_too_often_is_told_to_wait_before_anything_is_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    # SA27: whatever it sends, garbage and preflights included
    with stall(tmp_path_factory.mktemp("requests"), watched=False, limits={"address_rate": "20/h"}) as target:
        speaker = Speaker(target.port, LATEST)
        answers = [speaker.send(b"garbage") for _ in range(25)]
        assert [answer.status for answer in answers] == [400] * 20 + [429] * 5
        too_many(answers[-1])
        too_many(speaker.call("quick"))
        too_many(speaker.call("quick", mcp_session_id="x", user_agent="another"))


def test_the_level_is_named() -> None:
    # the flood's logs would stay unsent otherwise
    assert TALKATIVE[f"{META_PREFIX}logLevel"] == "debug"
