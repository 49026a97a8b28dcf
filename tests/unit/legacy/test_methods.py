"""What a session itself serves, and the hooks of a server."""

import threading
from typing import Any

import pytest
from shop import Shop
from unit.legacy.lobby import error, lobby, make, result
from virtual_time import virtual_time

from callboard import Context, Fail, Server
from callboard.core.era import Request
from callboard.errors import Reason
from callboard.legacy.codec import Codec
from callboard.legacy.methods import OWN, lift_own
from callboard.wire.versions import LEGACY

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
BASE = Codec(LEGACY[0]).base


class Hooked:
    """Hooks that note what they are called with."""

    def __init__(self, *, fault: BaseException | None = None) -> None:
        self.seen: list[tuple[str, str, str | None, bool]] = []
        self.fault = fault
        self.main = threading.get_ident()

    def note(self, name: str, argument: str, ctx: Context) -> None:
        self.seen.append((name, argument, ctx.session_id, threading.get_ident() == self.main))
        if self.fault is not None:
            raise self.fault

    async def set_log_level(self, level: str, ctx: Context) -> None:
        self.note("level", level, ctx)

    def subscribe(self, uri: str, ctx: Context) -> None:
        self.note("subscribe", uri, ctx)

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        self.note("unsubscribe", uri, ctx)

    @property
    def shop(self) -> Shop:
        return Shop(set_log_level=self.set_log_level, subscribe=self.subscribe, unsubscribe=self.unsubscribe)


class Callable:
    """A hook that is an object."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, uri: str, ctx: Context) -> None:
        self.seen.append(uri)


# ------------------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("params", [None, {}, {"anything": [1]}, {"_meta": {"progressToken": 1}}])
def test_a_ping_has_no_parameters_that_matter(params: Any) -> None:
    request = lift_own(make("ping", params, 7), None, BASE)
    assert isinstance(request, Request)
    assert (request.id, request.method) == (7, "ping")


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_is_read(level: str) -> None:
    request = lift_own(make("logging/setLevel", {"level": level}), None, BASE)
    assert isinstance(request, Request)
    assert request.params.level == level


@pytest.mark.parametrize("params", [None, {}, {"level": None}, {"level": "INFO"}, {"level": "loud"}, {"level": 1}, {"level": ["info"]}])
def test_any_other_level_is_refused_with_the_names_of_the_eight(params: Any) -> None:
    """LG-05."""
    found = lift_own(make("logging/setLevel", params), None, BASE)
    assert isinstance(found, Fail)
    assert found.reason is Reason.INVALID_PARAMS
    assert all(level in str(found) for level in LEVELS)


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
@pytest.mark.parametrize("params", [None, {}, {"uri": None}, {"uri": 5}, {"uri": ["a"]}])
def test_a_subscription_names_a_resource(method: str, params: Any) -> None:
    found = lift_own(make(method, params), None, BASE)
    assert isinstance(found, Fail)
    assert found.reason is Reason.INVALID_PARAMS
    request = lift_own(make(method, {"uri": "shop://prices"}), None, BASE)
    assert isinstance(request, Request)
    assert request.params.uri == "shop://prices"


# ------------------------------------------------------------------------------------------------------------------------- serving


@virtual_time
async def test_a_ping_is_answered_by_any_server() -> None:
    """PG-01."""
    async with lobby(Server("bare")) as place:
        assert await result(await place.open(), make("ping")) == {}


@virtual_time
async def test_hooks_are_called_with_what_was_asked_for_and_the_session() -> None:
    """A `def` hook on a thread, like every `def` function."""
    hooked = Hooked()
    async with lobby(hooked.shop.server) as place:
        actor = await place.open()
        for method, params in (
            ("logging/setLevel", {"level": "error"}),
            ("resources/subscribe", {"uri": "shop://prices"}),
            ("resources/unsubscribe", {"uri": "shop://prices"}),
        ):
            assert await result(actor, make(method, params)) == {}
        assert hooked.seen == [
            ("level", "error", actor.id, True),
            ("subscribe", "shop://prices", actor.id, False),
            ("unsubscribe", "shop://prices", actor.id, True),
        ]
        assert actor.envelope.log_level == "error"


@pytest.mark.parametrize("fault", [Fail(Reason.INVALID_PARAMS, "Not this one."), ValueError("password=hunter2")])
@virtual_time
async def test_a_hook_that_fails_is_the_answer_and_nothing_has_changed(fault: Exception) -> None:
    hooked = Hooked(fault=fault)
    async with lobby(hooked.shop.server) as place:
        actor = await place.open()
        topics = set(actor.topics or ())
        for method, params in (("logging/setLevel", {"level": "error"}), ("resources/subscribe", {"uri": "shop://prices"})):
            found = await error(actor, make(method, params))
            if isinstance(fault, Fail):
                assert (found["code"], found["message"]) == (-32602, "Not this one.")
            else:
                assert found["code"] == -32603
                assert "password" not in found["message"]
        assert (actor.envelope.log_level, actor.topics) == ("info", topics)


@virtual_time
async def test_a_hook_may_be_an_object() -> None:
    hook = Callable()
    async with lobby(Shop(subscribe=hook).server) as place:
        actor = await place.open()
        await result(actor, make("resources/subscribe", {"uri": "shop://prices"}))
        assert hook.seen == ["shop://prices"]


@pytest.mark.parametrize("method", OWN)
@virtual_time
async def test_what_a_server_does_not_offer_is_not_found(method: str) -> None:
    """MT-18."""
    if method == "ping":
        return
    async with lobby(Server("bare"), logs=False) as place:
        found = await error(await place.open(), make(method, {"level": "info", "uri": "a:b"}))
        assert found["code"] == -32601


@virtual_time
async def test_subscriptions_are_served_only_where_they_are_promised() -> None:
    shop = Shop(capabilities={"resources": {"listChanged": True}})
    async with lobby(shop.server, logs=False) as place:
        actor = await place.open()
        assert (await error(actor, make("resources/subscribe", {"uri": "shop://prices"})))["code"] == -32601
        assert (await error(actor, make("logging/setLevel", {"level": "info"})))["code"] == -32601
