"""What an ask is known by, what is remembered between rounds, what a client must have declared."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.inputs import MAX_ROUNDS, Ask, AskTwiceError, Log, Memory, digest_request, find_missing, read_responses
from callboard.errors import Fail, Reason

ELICIT = "elicitation/create"
YES: dict[str, Any] = {"action": "accept", "content": {}}


def question(text: str) -> dict[str, Any]:
    return {"mode": "form", "message": text, "requestedSchema": {"type": "object", "properties": {}}}


def ask(log: Log, text: str, key: str | None = None) -> Ask:
    return log.identify(ELICIT, question(text), key)


def remember(log: Log, *asks: Ask) -> Memory:
    """What a client would bring back, through the bytes that it travels in."""
    memory = log.next_memory({each.key: each.digest for each in asks})
    return msgspec.json.decode(msgspec.json.encode(memory), type=Memory)


def test_an_ask_is_known_by_its_content_and_how_often_it_was_asked() -> None:
    first, again = Log(Memory("c"), {}), Log(Memory("c"), {})
    one = ask(first, "a")
    assert ask(again, "a") == one
    assert ask(first, "a").key != one.key, "asked again, after the first was answered"
    assert ask(first, "b").key != one.key
    assert ask(first, "a", "mine").key == "mine"


def test_the_order_of_keys_in_a_question_does_not_matter() -> None:
    assert digest_request(ELICIT, {"a": 1, "b": {"c": 2, "d": 3}}) == digest_request(ELICIT, {"b": {"d": 3, "c": 2}, "a": 1})
    assert digest_request(ELICIT, {"a": 1}) != digest_request("roots/list", {"a": 1})


def test_asks_that_can_not_be_told_apart_are_refused() -> None:
    log = Log(Memory("c"), {})
    waiting = ask(log, "a")
    log.pending[waiting.key] = waiting
    with pytest.raises(AskTwiceError, match="key= of its own"):
        ask(log, "a")
    ask(log, "a", "x")
    with pytest.raises(AskTwiceError, match="number them"):
        ask(log, "other", "x")


def test_an_answer_belongs_to_its_question() -> None:
    # MR-10
    first = Log(Memory("c"), {})
    asked = ask(first, "Delete a?", "sure")
    second = Log(remember(first, asked), {"sure": YES})
    assert second.recall(ask(second, "Delete all?", "sure")) is None
    third = Log(remember(first, asked), {"sure": YES})
    assert third.recall(ask(third, "Delete a?", "sure")) == YES


def test_what_was_answered_stays_answered_whether_it_is_asked_for_or_not() -> None:
    first = Log(Memory("c"), {})
    a, b = ask(first, "a"), ask(first, "b")
    second = Log(remember(first, a, b), {a.key: YES, b.key: YES})
    third = Log(remember(second, ask(second, "c")), {})
    assert third.recall(ask(third, "b")) == YES
    assert third.recall(ask(third, "a")) == YES
    assert third.recall(ask(third, "c")) is None


def test_answers_to_what_was_not_asked_are_nobodys() -> None:
    # MR-10
    first = Log(Memory("c"), {})
    asked = ask(first, "a")
    second = Log(remember(first, asked), {"b-key": YES})
    assert second.recall(ask(second, "b", "b-key")) is None


def test_without_a_memory_the_key_counts_and_what_does_not_fit_is_asked_again() -> None:
    log = Log(Memory("c"), {"x": {"action": "maybe"}})
    asked = ask(log, "a", "x")
    assert log.recall(asked) == {"action": "maybe"}
    assert log.refuse(asked) is True
    second = Log(remember(log, asked), {"x": {"action": "maybe"}})
    again = ask(second, "a", "x")
    assert second.recall(again) == {"action": "maybe"}
    assert second.refuse(again) is False


def test_a_call_does_not_ask_for_ever() -> None:
    # MR-09
    with pytest.raises(Fail, match=str(MAX_ROUNDS)) as caught:
        Log(Memory("c", MAX_ROUNDS), {}).next_memory({})
    assert caught.value.reason is Reason.INTERNAL


@pytest.mark.parametrize("raw", [b"1", b"null", b"[]", b'"x"'])
def test_a_response_is_an_object(raw: bytes) -> None:
    # MR-11
    with pytest.raises(Fail, match="result object") as caught:
        read_responses({"who": msgspec.Raw(raw)})
    assert caught.value.reason is Reason.INVALID_PARAMS


FORM, URL = {"mode": "form"}, {"mode": "url"}
SAMPLE, ROOTS = "sampling/createMessage", "roots/list"


@pytest.mark.parametrize(
    ("method", "params", "declared", "missing"),
    [
        (ELICIT, FORM, {}, {"elicitation": {}}),
        (ELICIT, FORM, {"elicitation": {}}, None),
        (ELICIT, {}, {"elicitation": {}}, None),
        (ELICIT, FORM, {"elicitation": {"form": {}}}, None),
        (ELICIT, FORM, {"elicitation": {"form": {}, "url": {}}}, None),
        (ELICIT, FORM, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        (ELICIT, FORM, {"elicitation": True}, {"elicitation": {}}),
        (ELICIT, URL, {}, {"elicitation": {"url": {}}}),
        (ELICIT, URL, {"elicitation": {}}, {"elicitation": {"url": {}}}),
        (ELICIT, URL, {"elicitation": {"url": {}}}, None),
        (SAMPLE, {}, {}, {"sampling": {}}),
        (SAMPLE, {}, {"sampling": {}}, None),
        (SAMPLE, {"tools": []}, {"sampling": {}}, {"sampling": {"tools": {}}}),
        (SAMPLE, {"toolChoice": {}}, {"sampling": {}}, {"sampling": {"tools": {}}}),
        (SAMPLE, {"tools": []}, {"sampling": {"tools": {}}}, None),
        (SAMPLE, {"includeContext": "thisServer"}, {"sampling": {}}, {"sampling": {"context": {}}}),
        (SAMPLE, {"includeContext": "none"}, {"sampling": {}}, None),
        (SAMPLE, {"includeContext": "allServers", "tools": []}, {}, {"sampling": {"context": {}, "tools": {}}}),
        (ROOTS, {}, {}, {"roots": {}}),
        (ROOTS, {}, {"roots": {"listChanged": True}}, None),
    ],
)
def test_what_a_client_must_have_declared(method: str, params: dict[str, Any], declared: dict[str, Any], missing: Any) -> None:
    # MR-05, EL-01, EL-02, SM-01, SM-02, SM-08, RT-01, RT-04, DP-03
    assert find_missing(method, params, declared) == missing


_TEXTS = st.text(max_size=3)


@given(st.lists(_TEXTS, min_size=1, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8))
def test_any_sequence_of_asks_gets_each_answer_once_it_was_given(texts: list[str], given_now: list[bool]) -> None:
    """One ask after another, as in a loop; answers come or get lost."""
    memory, responses = Memory("c"), dict[str, dict[str, Any]]()
    losses = iter(given_now)
    for _round in range(2 * len(texts) + len(given_now) + 1):
        log = Log(memory, responses)
        stuck: Ask | None = None
        heard = []
        for number, text in enumerate(texts):
            now = ask(log, text)
            found = log.recall(now)
            if found is None:
                stuck = now
                break
            assert found == {"action": "accept", "content": {"n": number}}
            log.accept(now, found)
            heard.append(found)
        if stuck is None:
            assert len(heard) == len(texts)
            return
        memory = remember(log, stuck)
        arrives = next(losses, True)
        responses = {stuck.key: {"action": "accept", "content": {"n": len(heard)}}} if arrives else {}
    pytest.fail("it did not come to an end")
