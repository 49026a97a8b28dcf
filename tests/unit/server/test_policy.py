"""The policy of a component: what its options take, and the bucket of calls behind `rate`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import definition, make_context

from callboard import CacheHint, Context, RegistrationError, Server
from callboard.auth.principal import Principal
from callboard.server import rates
from callboard.server.policy import Policy, make_gate, sees, strictest
from callboard.types import ToolAnnotations

REFUSED: list[tuple[str, Any, str]] = [
    ("timeout", 0, "timeout must be a number of seconds above 0, not 0"),
    ("timeout", float("nan"), "timeout must be a number of seconds"),
    ("timeout", "1", "timeout must be a number of seconds"),
    ("concurrency", 0, "concurrency must be an integer of at least 1"),
    ("concurrency", True, "concurrency must be an integer of at least 1"),
    ("rate", "10", 'rate is "10/s"'),
    ("rate", "x/s", 'rate is "10/s"'),
    ("rate", "0/s", 'rate is "10/s"'),
    ("rate", "1/fortnight", 'rate is "10/s"'),
    ("rate", (1, 0), 'rate is "10/s"'),
    ("rate", (1.5, 1), 'rate is "10/s"'),
    ("rate", (True, 1), 'rate is "10/s"'),
    ("rate", (1, float("inf")), 'rate is "10/s"'),
    ("rate", 5, 'rate is "10/s"'),
    ("scopes", "files:write", "scopes is a set of str"),
    ("scopes", [1], "scopes is a set of str"),
    ("scopes", [""], "scopes is a set of str"),
    ("visible", True, "visible is a function of the Context"),
    ("visible", lambda: True, "visible is a function of the Context"),
    ("cache", 60_000, "cache must be a CacheHint"),
    ("idempotent", "yes", "idempotent is True or False"),
    ("annotations", {"readOnlyHint": True}, "annotations must be a types.ToolAnnotations"),
    ("icons", ["x.png"], "its definition can't be sent"),
    ("title", 5, "its definition can't be sent"),
    ("meta", {"x": object()}, "its definition can't be sent"),
    ("snapshot", True, "snapshot=True, but it takes no state"),
    ("task", "sometimes", "task"),
]


def add_tool(server: Server, mode: str, options: dict[str, Any]) -> None:
    """Adds a tool with these options, written as a function or as a class."""
    if mode == "function":
        server.tool(lambda: "x", name="tool", **options)
        return
    members = {name: staticmethod(value) if callable(value) else value for name, value in options.items()}
    server.add(type("Tool", (), {"execute": lambda self: "x", **members}))


@pytest.mark.parametrize(("option", "value", "text"), REFUSED)
@pytest.mark.parametrize("mode", ["function", "class"])
def test_an_option_that_can_not_work_fails_when_it_is_added(mode: str, option: str, value: Any, text: str) -> None:
    server = Server("desk")
    with pytest.raises(RegistrationError) as caught:
        add_tool(server, mode, {option: value})
    assert text in str(caught.value)
    assert "test_policy.py" in str(caught.value), "the text says where"
    assert not server.registry.tools


@pytest.mark.parametrize("option", ["timeout", "concurrency", "snapshot", "task", "idempotent"])
def test_what_only_tools_have_is_unknown_elsewhere(option: str) -> None:
    server = Server("desk")
    given: dict[str, Any] = {option: 1}
    with pytest.raises(RegistrationError, match=f"@server.prompt takes no '{option}'"):
        server.prompt(lambda: "x", **given)
    with pytest.raises(RegistrationError, match=f"@server.resource takes no '{option}'"):
        server.resource("a://x", **given)


@pytest.mark.parametrize("rate", ["x", 5])
def test_resources_and_prompts_check_theirs(rate: Any) -> None:
    server = Server("desk")
    with pytest.raises(RegistrationError, match='rate is "10/s"'):
        server.prompt(lambda: "x", rate=rate)
    with pytest.raises(RegistrationError, match='rate is "10/s"'):
        server.resource("a://x", rate=rate)(lambda: "x")
    with pytest.raises(RegistrationError, match="visible is a function"):
        server.resource("a://{x}", visible=rate)(lambda x: x)


def test_a_template_has_no_size() -> None:
    with pytest.raises(RegistrationError, match="stands for many resources, so it has no size"):
        Server("desk").resource("a://{x}", size=5)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (None, {"idempotentHint": True}),
        (ToolAnnotations(read_only_hint=False), {"readOnlyHint": False, "idempotentHint": True}),
        (ToolAnnotations(idempotent_hint=True), {"idempotentHint": True}),
    ],
)
def test_idempotent_is_a_hint_too(annotations: ToolAnnotations | None, expected: dict[str, bool]) -> None:
    server = Server("desk")
    server.tool(lambda: "x", name="x", annotations=annotations, idempotent=True)
    assert server.registry.tools["x"].policy.idempotent
    assert _annotations(server) == expected


def _annotations(server: Server) -> Any:
    return definition(server, "tools", "x", "Tool")["annotations"]


def test_two_texts_that_disagree_are_refused() -> None:
    with pytest.raises(RegistrationError, match="idempotent=True, but its annotations say idempotent_hint=False"):
        Server("desk").tool(lambda: "x", name="x", annotations=ToolAnnotations(idempotent_hint=False), idempotent=True)


# Visibility


async def test_who_can_not_be_asked_sees_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("desk")

    def broken(_ctx: Context) -> bool:
        raise OSError("no directory")

    server.tool(lambda: "x", name="x", visible=broken)
    assert not await sees(server.registry.tools["x"], make_context())
    assert "no directory" in caplog.text


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ([], None),
        ([CacheHint(5, "public")], CacheHint(5, "public")),
        ([CacheHint(5, "public"), CacheHint(3, "public")], CacheHint(3, "public")),
        ([CacheHint(5, "public"), CacheHint(9, "private")], CacheHint(5, "private")),
        ([CacheHint(), CacheHint(9, "public")], CacheHint(0, "private")),
    ],
)
def test_the_hint_of_parts_is_the_strictest(hints: list[CacheHint], expected: CacheHint | None) -> None:
    assert strictest(hints) == expected


# Principals


def test_a_principal_is_a_str_with_scopes() -> None:
    principal = Principal("ada", ["a", "b", "a"])
    assert (principal, principal.scopes, hash(principal)) == ("ada", frozenset({"a", "b"}), hash("ada"))
    assert Principal("ada").scopes == frozenset()
    with pytest.raises(TypeError, match=r"scopes=\['a', 'b'\]"):
        Principal("ada", "a b")


async def test_a_context_knows_the_scopes() -> None:
    assert make_context(principal=Principal("ada", {"a"})).scopes == {"a"}
    assert make_context(principal="ada").scopes == frozenset()
    assert make_context().scopes == frozenset()


# Rates


class Clocked:
    """A gate, and calls of it at chosen times."""

    def __init__(self, rate: Any) -> None:
        gate = make_gate(Policy(rate=rate), "x")
        assert gate is not None
        self._buckets = gate._buckets
        assert self._buckets is not None

    def wait(self, now: float, principal: str | None = "ada") -> float:
        assert self._buckets is not None
        return self._buckets.take(principal, now)


@pytest.mark.parametrize(("rate", "calls", "gap"), [("10/s", 10, 0.1), ("60/min", 60, 1.0), ("1/h", 1, 3600.0), ((3, 30), 3, 10.0)])
def test_a_rate_gives_a_burst_and_then_one_after_the_other(rate: Any, calls: int, gap: float) -> None:
    clock = Clocked(rate)
    assert [clock.wait(100) for _ in range(calls)] == [0.0] * calls
    assert clock.wait(100) == pytest.approx(gap)
    assert clock.wait(100 + gap / 2) == pytest.approx(gap / 2)
    assert clock.wait(100 + gap) == 0
    assert clock.wait(100 + gap) == pytest.approx(gap)
    assert clock.wait(100 + gap, "bob") == 0
    assert clock.wait(100 + gap, None) == 0


@given(
    times=st.lists(st.floats(0, 100, allow_nan=False), min_size=1, max_size=60).map(sorted),
    calls=st.integers(1, 5),
    seconds=st.floats(0.5, 20),
)
def test_no_window_lets_more_than_twice_the_rate_through(times: list[float], calls: int, seconds: float) -> None:
    """A burst and what comes back within one window; and who waits as long as was said gets through."""
    clock = Clocked((calls, seconds))
    let = [now for now in times if clock.wait(now) == 0]
    for begin in let:
        assert sum(begin <= now < begin + seconds for now in let) <= 2 * calls
    wait = clock.wait(times[-1])
    if wait:
        assert clock.wait(times[-1] + wait) == 0


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_KEYS", 3)
    monkeypatch.setattr(rates, "SHARED", 1)
    clock = Clocked("1/h")
    for name in "abcd":
        assert clock.wait(0, name) == 0
    assert all(clock.wait(1, name) > 0 for name in "abcd"), "nobody is forgotten before their time"
    assert clock.wait(1, "e") > 0, "who comes after all of them shares what is left"
    assert clock.wait(3601, "e") == 0
