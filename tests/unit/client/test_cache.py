"""What a client keeps of what it was answered, for how long, and for whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.client import cache as module
from callboard.client.cache import CACHEABLE, MAX_TTL, OVERHEAD, Cache, Hint, Key, fingerprint, key_of, read_hint

TARGET = "http://127.0.0.1:8000/mcp"


def key(method: str = "tools/list", params: dict[str, Any] | None = None, *, context: str = "a", target: str = TARGET) -> Key:
    made = key_of(target, context, method, params)
    assert made is not None
    return made


def read(uri: str, context: str = "a") -> Key:
    return key("resources/read", {"uri": uri}, context=context)


def held(cache: Cache, wanted: Key, now: float = 0.5) -> bytes | None:
    found = cache.get(wanted, now)
    return None if found is None else bytes(found)


@pytest.fixture(name="cache")
def make_cache() -> Cache:
    return Cache()


def test_an_answer_is_fresh_until_its_time_is_over(cache: Cache) -> None:
    # CA-04
    assert cache.put(key(), b"{}", 1000, "private", 10.0)
    assert held(cache, key(), 10.0) == b"{}"
    assert held(cache, key(), 10.999) == b"{}"
    assert held(cache, key(), 11.0) is None
    assert len(cache) == cache.size == 0, "what is stale is gone"


@pytest.mark.parametrize("ttl", [0, None, -1, -1e300, 0.0, float("nan")])
def test_without_time_nothing_is_kept(cache: Cache, ttl: float | None) -> None:
    # CA-04: absent and negative are 0
    assert not cache.put(key(), b"{}", ttl, "public", 0.0)
    assert held(cache, key(), 0.0) is None


@pytest.mark.parametrize("ttl", [10**12, 10**400, 1e308, float("inf")])
def test_a_day_is_the_longest(cache: Cache, ttl: float) -> None:
    cache.put(key(), b"{}", ttl, "private", 0.0)
    assert held(cache, key(), MAX_TTL - 1) == b"{}"
    assert held(cache, key(), MAX_TTL) is None


def test_an_answer_without_time_ends_the_one_before(cache: Cache) -> None:
    cache.put(key(), b"old", 60_000, "public", 0.0)
    cache.put(key(), b"new", 0, "public", 1.0)
    assert held(cache, key(), 1.0) is None


def test_a_private_answer_is_for_who_asked_alone(cache: Cache) -> None:
    # CA-06
    cache.put(key(context="a"), b"for a", 60_000, "private", 0.0)
    cache.put(key("prompts/list", context="a"), b"for all", 60_000, "public", 0.0)
    assert held(cache, key(context="b")) is None
    assert held(cache, key("prompts/list", context="b")) == b"for all"
    assert held(cache, key("prompts/list", target="http://127.0.0.1:9000/mcp")) is None, "another endpoint"


@pytest.mark.parametrize("scope", [None, "", "shared", "PUBLIC"])
def test_a_scope_that_is_not_public_is_private(cache: Cache, scope: str | None) -> None:
    cache.put(key(), b"{}", 60_000, scope, 0.0)
    assert held(cache, key(context="b")) is None
    assert held(cache, key()) == b"{}"


def test_what_became_private_is_no_longer_everybodys(cache: Cache) -> None:
    cache.put(key(context="a"), b"once public", 60_000, "public", 0.0)
    cache.put(key(context="b"), b"for b", 60_000, "private", 1.0)
    assert held(cache, key(context="a"), 1.0) is None
    cache.put(key(context="b"), b"public again", 60_000, "public", 2.0)
    assert held(cache, key(context="b"), 2.0) == held(cache, key(context="a"), 2.0) == b"public again"


def test_only_the_same_question_gets_the_answer(cache: Cache) -> None:
    # CA-05
    cache.put(read("file:///a"), b"a", 60_000, "private", 0.0)
    cache.put(key("tools/list", {"cursor": "2"}), b"page 2", 60_000, "private", 0.0)
    assert held(cache, read("file:///b")) is None
    assert held(cache, key("tools/list")) is None
    assert held(cache, key("tools/list", {"cursor": 2})) is None
    assert held(cache, key("tools/list", {"cursor": "2", "_meta": {"progressToken": 7}})) == b"page 2"
    assert key("skills/get", {"b": {"y": 1, "x": 2}, "a": 1}) == key("skills/get", {"a": 1, "b": {"x": 2, "y": 1}})


def test_what_must_not_be_kept_has_no_key() -> None:
    # MR-16, CA-05
    assert key_of(TARGET, "a", "tools/call", {"name": "add"}) is None
    assert key_of(TARGET, "a", "resources/read", {"uri": "x:y", "requestState": "s"}) is None
    assert key_of(TARGET, "a", "resources/read", {"uri": "x:y", "inputResponses": {}}) is None
    assert key_of(TARGET, "a", "resources/read", {"uri": object()}) is None
    assert key_of(TARGET, "a", "tools/list", None) == key_of(TARGET, "a", "tools/list", {}) is not None
    # CA-10
    lists = {"tools/list", "prompts/list", "resources/list", "resources/templates/list"}
    assert lists | {"server/discover", "resources/read", "skills/list", "skills/get"} == CACHEABLE


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (b'{"ttlMs": 5, "cacheScope": "public"}', Hint(5, "public")),
        (b'{"ttlMs": 5}', Hint(5, "private")),
        (b'{"ttlMs": 2.5, "cacheScope": 7}', Hint(2.5, "private")),
        (b'{"ttlMs": -3, "cacheScope": "public"}', Hint(0, "public")),
        (b'{"ttlMs": 5, "cacheScope": "public", "resultType": "input_required"}', Hint(0, "private")),
        (b'{"ttlMs": "5"}', Hint()),
        (b'{"ttlMs": true}', Hint()),
        (b'{"ttlMs": null}', Hint()),
        (b"{}", Hint()),
        (b"[]", Hint()),
        (b"{", Hint()),
        (b"[" * 5000, Hint()),
    ],
)
def test_a_hint_is_read_from_a_result(raw: bytes, hint: Hint) -> None:
    # CA-04, MR-16
    assert read_hint(raw) == read_hint(msgspec.Raw(raw)) == hint


@pytest.mark.parametrize(
    ("notification", "stale"),
    [
        ("notifications/tools/list_changed", {"tools/list"}),
        ("notifications/prompts/list_changed", {"prompts/list"}),
        ("notifications/resources/list_changed", {"resources/list", "resources/templates/list", "skills/list", "skills/get"}),
        ("notifications/progress", set()),
    ],
)
def test_a_change_makes_lists_stale_at_once(cache: Cache, notification: str, stale: set[str]) -> None:
    # CA-07
    for method in CACHEABLE:
        for context in ("a", "b"):
            cache.put(key(method, {"cursor": "1"}, context=context), b"{}", 60_000, "private", 0.0)
        cache.put(key(method, target="elsewhere"), b"{}", 60_000, "public", 0.0)
    assert cache.hear(TARGET, notification, 0.2) == 2 * len(stale)
    kept = {method for method in CACHEABLE if held(cache, key(method, {"cursor": "1"}))}
    assert kept == CACHEABLE - stale
    assert all(held(cache, key(method, target="elsewhere")) for method in CACHEABLE)


@pytest.mark.parametrize(
    ("updated", "gone"),
    [
        ("file:///a", {"file:///a", "file:///a/b", "file:///a?q", "file:///"}),
        ("file:///a/b", {"file:///a", "file:///a/b", "file:///"}),
        ("file:///ab", {"file:///ab", "file:///"}),
        ("file:///a#x", {"file:///a", "file:///"}),
        ("other:///a", set()),
    ],
)
def test_an_update_makes_what_it_may_be_a_part_of_stale(cache: Cache, updated: str, gone: set[str]) -> None:
    # SB-11, CA-07
    uris = {"file:///", "file:///a", "file:///a/b", "file:///a?q", "file:///ab"}
    for uri in uris:
        cache.put(read(uri), b"{}", 60_000, "public", 0.0)
    cache.put(key("resources/list"), b"{}", 60_000, "public", 0.0)
    cache.hear(TARGET, "notifications/resources/updated", 0.2, uri=updated)
    assert {uri for uri in uris if held(cache, read(uri)) is None} == gone
    assert held(cache, key("resources/list"))


def test_an_answer_that_a_change_overtook_is_not_kept(cache: Cache) -> None:
    # CA-07
    cache.hear(TARGET, "notifications/tools/list_changed", 5.0)
    assert not cache.put(key(), b"old", 60_000, "public", 6.0, asked=4.0)
    assert not cache.put(key(), b"old", 60_000, "public", 6.0, asked=5.0)
    assert cache.put(key("prompts/list"), b"{}", 60_000, "public", 6.0, asked=4.0)
    assert cache.put(key(), b"new", 60_000, "public", 7.0, asked=5.5)


def test_all_pages_go_when_a_cursor_has(cache: Cache) -> None:
    # CA-09
    for cursor in ("1", "2", "3"):
        cache.put(key(params={"cursor": cursor}), b"{}", 60_000, "public", 0.0)
    assert cache.drop(TARGET, "tools/list", 0.1) == 3
    assert cache.drop(TARGET, ["tools/list", "prompts/list"], 0.1) == 0


def test_what_was_of_no_use_for_longest_goes_first() -> None:
    cache = Cache(max_entries=2)
    for uri in ("x:1", "x:2"):
        cache.put(read(uri), b"{}", 60_000, "private", 0.0)
    assert held(cache, read("x:1"))
    cache.put(read("x:3"), b"{}", 60_000, "private", 0.0)
    assert [held(cache, read(uri)) is not None for uri in ("x:1", "x:2", "x:3")] == [True, False, True]


def test_bytes_are_bounded() -> None:
    each = len(read("x:1").params) + OVERHEAD + 100
    cache = Cache(max_bytes=3 * each)
    for number in range(10):
        cache.put(read(f"x:{number}"), b"." * 100, 60_000, "private", 0.0)
        assert cache.size <= 3 * each
    assert len(cache) == 3
    assert not cache.put(read("x:9"), b"." * 3 * each, 60_000, "private", 0.0), "larger than all"
    assert len(cache) == 2
    cache.clear()
    assert len(cache) == cache.size == 0


def test_what_is_remembered_of_changes_is_bounded() -> None:
    cache = Cache(max_entries=5)
    for number in range(100):
        cache.drop(f"target {number}", "tools/list", float(number))
    assert len(cache._dropped) == 5


def test_secrets_are_neither_kept_nor_shown(cache: Cache) -> None:
    # CA-06
    one, other = fingerprint({"Authorization": "Bearer s3cret"}), fingerprint({"Authorization": "Bearer 0ther"})
    assert one != other
    assert "s3cret" not in one
    assert one == fingerprint({"authorization": "Bearer s3cret", "DPoP": "new each time"})
    assert fingerprint({}) == ""
    assert fingerprint({"a": "b:c"}) != fingerprint({"a:b": "c"})
    cache.put(key(context="s3cret", params={"cursor": "s3cret"}), b"s3cret", 60_000, "private", 0.0)
    assert "s3cret" not in repr(cache)


def test_threads_may_share_it() -> None:
    cache = Cache(max_entries=20)

    def work(number: int) -> None:
        for turn in range(500):
            cache.put(read(f"x:{turn % 50}", context=str(number)), b"{}", 1000, "public" if turn % 3 else "private", turn / 1000)
            cache.get(read(f"x:{turn % 7}"), turn / 1000)
            if turn % 40 == 0:
                cache.hear(TARGET, "notifications/resources/updated", turn / 1000, uri="x:1")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(cache) <= 20
    assert cache.size == sum(entry.size for entry in cache._entries.values())


class Kept(NamedTuple):
    key: Key
    raw: bytes
    until: float
    public: bool


class Model:
    """The same, as a list that is read from its end; what is told of changes is kept in full."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.changes: list[tuple[str, str, float]] = []

    def matching(self, wanted: Key, now: float) -> Iterator[Kept]:
        for one in reversed(self.kept):
            same = one.key._replace(context="") == wanted._replace(context="")
            if same and now < one.until and (one.public or one.key.context == wanted.context):
                yield one

    def get(self, wanted: Key, now: float) -> bytes | None:
        found = sorted(self.matching(wanted, now), key=lambda one: one.public)
        return found[0].raw if found else None

    def put(self, one: Key, raw: bytes, ttl: float, scope: str, now: float, asked: float) -> None:
        def replaced(old: Kept) -> bool:
            return old.key._replace(context="") == one._replace(context="") and (old.public or old.key.context == one.context)

        self.kept = [old for old in self.kept if not replaced(old)]
        if ttl > 0 and not any((target, method) == one[:3:2] and when >= asked for target, method, when in self.changes):
            self.kept.append(Kept(one, raw, now + min(ttl / 1000, 86_400), scope == "public"))

    def drop(self, target: str, method: str, now: float, uri: str | None) -> None:
        def stale(old: Kept) -> bool:
            if (old.key.target, old.key.method) != (target, method):
                return False
            return uri is None or old.key.uri == uri or uri.startswith(f"{old.key.uri}/") or old.key.uri.startswith(f"{uri}/")

        self.kept = [old for old in self.kept if not stale(old)]
        self.changes.append((target, method, now))


TARGETS = st.sampled_from(["one", "two"])
URIS = st.sampled_from(["x://a", "x://a/b", "x://ab"])
KEYS = st.one_of(
    st.builds(
        lambda target, context, uri: key("resources/read", {"uri": uri}, context=context, target=target),
        TARGETS,
        st.sampled_from("ab"),
        URIS,
    ),
    st.builds(lambda target, context: key("tools/list", context=context, target=target), TARGETS, st.sampled_from("ab")),
)
STEPS = st.one_of(
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("put"), KEYS, st.sampled_from([-5, 0, 1000, 3000, 10**9]), st.sampled_from(["public", "private"]), st.integers(0, 3)),
    st.tuples(st.just("drop"), TARGETS, st.sampled_from(["resources/read", "tools/list"]), st.none() | URIS),
    st.tuples(st.just("wait"), st.integers(1, 4)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_it_is_what_a_list_of_all_answers_would_be(steps: list[tuple[Any, ...]]) -> None:
    """CA-04, CA-05, CA-06, CA-07."""
    cache, model, now = Cache(), Model(), 0.0
    for number, (step, *arguments) in enumerate(steps):
        if step == "wait":
            now += arguments[0]
        elif step == "get":
            assert held(cache, arguments[0], now) == model.get(arguments[0], now)
        elif step == "put":
            wanted, ttl, scope, before = arguments
            raw = f"{number}".encode()
            cache.put(wanted, raw, ttl, scope, now, asked=now - before)
            model.put(wanted, raw, ttl, scope, now, now - before)
        else:
            target, method, uri = arguments
            cache.drop(target, method, now, uri=uri if method == "resources/read" else None)
            model.drop(target, method, now, uri if method == "resources/read" else None)
    assert cache.size == sum(entry.size for entry in cache._entries.values())
    assert module.MAX_BYTES == 32 * 1024 * 1024
