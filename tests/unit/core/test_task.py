"""The machine of one task."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from callboard.core.task import MAX_MESSAGE, Moment, Result, Task
from callboard.errors import Fail, Reason

TTL, POLL = 60.0, 2.0
QUESTION = {"method": "roots/list", "params": {}}
DONE = Result(b'{"content":[]}')


def at(seconds: float) -> Moment:
    return Moment(seconds, f"T{seconds:g}")


def make(task_id: str = "t") -> Task:
    return Task(task_id, at(0), ttl=TTL, poll=POLL)


def test_it_is_created_working() -> None:
    # TX-05, TK-03
    task = make()
    assert task.render(at(0)) == {
        "taskId": "t",
        "status": "working",
        "createdAt": "T0",
        "lastUpdatedAt": "T0",
        "ttlMs": 60_000,
        "pollIntervalMs": 2000,
    }
    assert task.render_whole(at(0)) == task.render(at(0))


def test_an_ask_makes_it_input_required_until_it_is_answered() -> None:
    # TX-08, TX-11, TK-04
    task = make()
    assert task.ask("a", QUESTION, at(1)) == "a"
    assert task.ask("b", QUESTION, at(2)) == "b"
    assert task.render_whole(at(2))["inputRequests"] == {"a": QUESTION, "b": QUESTION}
    assert task.answer({"a": {"roots": []}, "c": {}}, at(3)) == {"a": {"roots": []}}
    assert (task.status, task.render_whole(at(3))["inputRequests"]) == ("input_required", {"b": QUESTION})
    assert task.answer({"a": {}, "b": {}}, at(4)) == {"b": {}}
    assert (task.status, task.updated) == ("working", at(4))
    assert "inputRequests" not in task.render_whole(at(4))


def test_a_key_is_never_used_again() -> None:
    # TX-12
    task = make()
    keys = []
    for key in ("a", "a", "a#2", "a", "b", "a#2"):
        found = task.ask(key, QUESTION, at(1))
        assert found is not None
        keys.append(found)
        task.withdraw(found, at(1))
    assert keys == ["a", "a#2", "a#2#2", "a#3", "b", "a#2#3"]


def test_an_ask_that_is_withdrawn_waits_no_more() -> None:
    task = make()
    task.ask("a", QUESTION, at(1))
    assert task.withdraw("a", at(2))
    assert not task.withdraw("a", at(3))
    assert (task.status, task.updated) == ("working", at(2))


def test_a_tool_that_failed_has_completed() -> None:
    # TX-09
    task = make()
    assert task.complete(Result(b'{"content":[],"isError":true}', is_error=True), at(5))
    whole = task.render_whole(at(9))
    assert whole["status"] == "completed"
    assert whole["result"] == msgspec.Raw(b'{"content":[],"isError":true}')
    assert "error" not in whole


def test_a_protocol_error_has_failed() -> None:
    # TX-08, TX-09
    task = make()
    assert task.refuse(Fail(Reason.INVALID_PARAMS, "No.", {"why": 1}), at(5))
    whole = task.render_whole(at(9))
    assert (whole["status"], whole["statusMessage"]) == ("failed", "No.")
    assert whole["error"] == {"code": -32602, "message": "No.", "data": {"why": 1}}
    assert "result" not in whole
    custom = make()
    custom.refuse(Fail.custom(7, "Own."), at(5))
    assert custom.render_whole(at(9))["error"] == {"code": 7, "message": "Own."}


def test_it_says_how_it_is_getting_on() -> None:
    task = make()
    assert task.say("Half way.", at(1))
    assert not task.say("Half way.", at(2))
    assert task.render(at(2))["statusMessage"] == "Half way."
    assert task.updated == at(1)
    assert task.say("x" * 5000, at(3))
    assert task.message == "x" * MAX_MESSAGE
    task.cancel("Enough.", at(4))
    assert not task.say("Still at it.", at(5))
    assert task.message == "Enough."


@pytest.mark.parametrize("first", ["complete", "refuse", "cancel"])
def test_an_end_is_final(first: str) -> None:
    # TK-04, TX-09
    ends: dict[str, Any] = {"complete": DONE, "refuse": Fail(Reason.INTERNAL), "cancel": "Enough."}
    task = make()
    task.ask("a", QUESTION, at(1))
    assert getattr(task, first)(ends[first], at(2))
    before = task.render_whole(at(2))
    for end, given in ends.items():
        assert not getattr(task, end)(given, at(3))
    assert task.ask("b", QUESTION, at(3)) is None
    assert task.answer({"a": {}}, at(3)) == {}
    assert task.render_whole(at(3)) == before
    assert "inputRequests" not in before


def test_it_is_kept_after_its_end_as_long_as_it_says() -> None:
    # TX-05, TK-03
    task = make()
    assert (task.expires, task.render(at(100))["ttlMs"]) == (None, 160_000)
    task.complete(DONE, at(130))
    assert task.expires == 190
    assert task.render(at(150))["ttlMs"] == 190_000
    assert Task("t", at(10), ttl=1, poll=1).render(at(9))["ttlMs"] == 1000, "a clock that was set back shortens nothing"


class Lives(RuleBasedStateMachine):
    """Any history of one task."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.task = make()
        self.keys: list[str] = []
        self.waiting: set[str] = set()
        self.end: dict[str, Any] | None = None
        self.promised = 0.0

    def now(self) -> Moment:
        self.time += 1
        return at(self.time)

    @rule(key=st.sampled_from(["a", "a#2", "b"]))
    def ask(self, key: str) -> None:
        given = self.task.ask(key, QUESTION, self.now())
        assert (given is None) == (self.end is not None)
        if given is not None:
            self.keys.append(given)
            self.waiting.add(given)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        keys = data.draw(st.sets(st.sampled_from([*self.keys, "stranger"])))
        assert self.task.answer({key: {} for key in keys}, self.now()).keys() == keys & self.waiting
        self.waiting -= keys

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([*self.keys, "stranger"]))
        assert self.task.withdraw(key, self.now()) == (key in self.waiting)
        self.waiting.discard(key)

    @rule(text=st.sampled_from(["one", "two"]))
    def say(self, text: str) -> None:
        self.task.say(text, self.now())

    @rule(end=st.sampled_from(["complete", "refuse", "cancel"]))
    def finish(self, end: str) -> None:
        given: Any = {"complete": DONE, "refuse": Fail(Reason.INTERNAL), "cancel": "Enough."}[end]
        assert getattr(self.task, end)(given, self.now()) == (self.end is None)
        if self.end is None:
            self.end = self.task.render_whole(self.now())
            self.waiting.clear()

    @invariant()
    def holds(self) -> None:
        # TX-08, TX-11, TX-12, TK-04
        whole = self.task.render_whole(at(self.time))
        assert len(self.keys) == len(set(self.keys)), "a key was used twice"
        assert set(whole.get("inputRequests", {})) == self.waiting
        assert ("inputRequests" in whole) == (whole["status"] == "input_required")
        assert ("result" in whole) == (whole["status"] == "completed")
        assert ("error" in whole) == (whole["status"] == "failed")
        assert (self.task.expires is None) == (self.end is None)
        if self.end is not None:
            assert whole == self.end, "an end is final"
        kept = self.task.created.seconds + whole["ttlMs"] / 1000
        assert kept >= self.promised, "it was said to be kept for longer"
        self.promised = kept


TestLives = Lives.TestCase
