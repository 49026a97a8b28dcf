"""The machine of what one side asks the other, and a random walk on it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.peer import Peer
from callboard.errors import AskError
from callboard.wire.jsonrpc import RawResponse


def respond(request_id: Any, **parts: Any) -> RawResponse:
    """An answer as it is read; a text is taken as it is."""
    return RawResponse(
        request_id, **{name: msgspec.Raw(part if isinstance(part, bytes) else json.dumps(part).encode()) for name, part in parts.items()}
    )


def test_a_request_has_an_id_of_its_own_and_says_what_was_asked() -> None:
    peer = Peer()
    request_id, message = peer.ask("token", "roots/list", {"a": [1]})
    assert json.loads(message) == {"jsonrpc": "2.0", "id": request_id, "method": "roots/list", "params": {"a": [1]}}
    assert peer.pending == {request_id: "token"}


def test_ids_are_never_used_twice() -> None:
    """JR-03."""
    peer = Peer("us")
    first, _ = peer.ask(1, "x", {})
    peer.answer(respond(first, result={}))
    second, _ = peer.ask(2, "x", {})
    peer.give_up(second, "")
    third, _ = peer.ask(3, "x", {})
    assert [first, second, third] == ["us-1", "us-2", "us-3"]


def test_an_answer_goes_to_whoever_asked() -> None:
    peer = Peer()
    first, _ = peer.ask("first", "x", {})
    second, _ = peer.ask("second", "x", {})
    assert peer.answer(respond(second, result={"n": 2})) == ("second", {"n": 2})
    assert peer.answer(respond(first, result={"n": 1})) == ("first", {"n": 1})
    assert peer.pending == {}


@pytest.mark.parametrize("request_id", [None, 1, "1", "server-2", "server-01", "SERVER-1", ""])
def test_an_answer_to_anything_else_is_nobody_s(request_id: Any) -> None:
    peer = Peer()
    peer.ask("token", "x", {})
    assert peer.answer(respond(request_id, result={})) is None
    assert peer.pending == {"server-1": "token"}


def test_a_second_answer_is_nobody_s() -> None:
    peer = Peer()
    request_id, _ = peer.ask("token", "x", {})
    assert peer.answer(respond(request_id, result={})) is not None
    assert peer.answer(respond(request_id, result={})) is None


def test_an_error_is_an_exception_with_its_code_and_data() -> None:
    peer = Peer()
    request_id, _ = peer.ask("token", "x", {})
    found = peer.answer(respond(request_id, error={"code": -1, "message": "User rejected", "data": {"why": "no"}}))
    assert found is not None
    assert isinstance(found[1], AskError)
    assert (found[1].code, str(found[1]), found[1].data) == (-1, "User rejected", {"why": "no"})


NO_RESULTS: list[Any] = [None, 1, "x", [], True]
NO_ERRORS: list[Any] = [None, 1, "x", [], {}, {"code": "1"}, {"code": 1.5}, {"code": 1, "message": 5}]


@pytest.mark.parametrize(
    "parts",
    [
        *[{"result": value} for value in NO_RESULTS],
        *[{"error": value} for value in NO_ERRORS],
        {"result": b'{"a":'},
        {"result": b'{"a":"\xff"}'},
        {"error": b"{"},
        {},
    ],
)
def test_an_answer_that_can_not_be_read_ends_the_request_with_an_error(parts: dict[str, Any]) -> None:
    peer = Peer()
    request_id, _ = peer.ask("token", "x", {})
    found = peer.answer(respond(request_id, **parts))
    assert found is not None
    assert isinstance(found[1], AskError)
    assert "not readable" in str(found[1])
    assert peer.pending == {}


def test_whoever_gives_up_tells_the_other_side() -> None:
    """CN-07."""
    peer = Peer()
    request_id, _ = peer.ask("token", "x", {})
    note = peer.give_up(request_id, "too late")
    assert note is not None
    assert json.loads(note) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": request_id, "reason": "too late"},
    }
    assert peer.answer(respond(request_id, result={})) is None, "CN-05"


def test_only_what_is_pending_is_cancelled() -> None:
    """CN-02."""
    peer = Peer()
    request_id, _ = peer.ask("token", "x", {})
    peer.answer(respond(request_id, result={}))
    assert peer.give_up(request_id, "") is None
    assert peer.give_up("server-99", "") is None


def test_params_without_a_json_form_leave_nothing_pending() -> None:
    peer = Peer()
    with pytest.raises(TypeError):
        peer.ask("token", "x", {"a": object()})
    assert peer.pending == {}
    assert peer.ask("token", "x", {})[0] == "server-1"


def test_when_the_other_side_is_gone_nothing_is_waited_for() -> None:
    peer = Peer()
    first, _ = peer.ask("first", "x", {})
    peer.ask("second", "x", {})
    assert peer.clear() == ["first", "second"]
    assert peer.clear() == []
    assert peer.answer(respond(first, result={})) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ask", "answer", "fail", "give up", "clear"]), st.integers(0, 12)), max_size=40))
def test_whatever_comes_each_request_ends_once(steps: list[tuple[str, int]]) -> None:
    peer = Peer()
    asked: list[str] = []
    ended: list[int] = []
    for kind, number in steps:
        request_id = f"server-{number}"
        pending = request_id in peer.pending
        if kind == "ask":
            asked.append(peer.ask(len(asked), "x", {})[0])
        elif kind == "clear":
            ended += peer.clear()
        elif kind == "give up":
            ended += [peer.pending[request_id]] if pending else []
            assert (peer.give_up(request_id, "") is not None) == pending
        else:
            parts: dict[str, Any] = {"result": {}} if kind == "answer" else {"error": {"code": 1, "message": ""}}
            found = peer.answer(respond(request_id, **parts))
            assert (found is not None) == pending
            ended += [] if found is None else [found[0]]
    assert asked == [f"server-{number}" for number in range(1, len(asked) + 1)]
    assert sorted(ended + list(peer.pending.values())) == list(range(len(asked)))
