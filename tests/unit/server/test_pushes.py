"""What a server tells its sessions without having been asked, as it travels on the Bus."""

import json
import logging
import threading
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from oracles import mcp_types_notification

from callboard import Server, types
from callboard.server.pushes import PUSHES, Push, decode_push
from callboard.stores.memory import MemoryStore
from callboard.wire import v2026_07_28 as v
from callboard.wire.versions import LOG_LEVELS

UPDATED = types.ResourceUpdatedNotification(params=types.ResourceUpdatedNotificationParams(uri="a://é"))


class Ear:
    """A server whose Bus is listened to."""

    def __init__(self) -> None:
        store = MemoryStore()
        self.heard: list[Push] = []
        self.threads: list[int] = []
        store.bus.subscribe(PUSHES, self._hear)
        self.server = Server("desk", store=store)

    def _hear(self, message: bytes) -> None:
        self.heard.append(decode_push(message))
        self.threads.append(threading.get_ident())

    def note(self) -> dict[str, Any]:
        """The only notification heard."""
        (push,) = self.heard
        note: dict[str, Any] = json.loads(bytes(push.note))
        return note


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.mark.parametrize(
    ("notification", "method", "params"),
    [
        (UPDATED, "notifications/resources/updated", {"uri": "a://é"}),
        (types.ToolListChangedNotification(), "notifications/tools/list_changed", None),
        (v.Notification(method="notifications/x", params={"a": 1}), "notifications/x", {"a": 1}),
        ({"method": "notifications/x", "params": {"a": [None, "b"]}}, "notifications/x", {"a": [None, "b"]}),
        (MappingProxyType({"method": "notifications/x", "params": MappingProxyType({"a": 1})}), "notifications/x", {"a": 1}),
        ({"method": "notifications/x"}, "notifications/x", None),
        ({"method": "notifications/x", "params": None}, "notifications/x", None),
    ],
)
def test_a_notification_may_be_a_type_or_a_mapping(ear: Ear, notification: Any, method: str, params: Any) -> None:
    ear.server.broadcast("news", notification)
    expected = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}
    assert ear.note() == expected


def test_a_broadcast_names_its_topic_and_a_notice_its_session(ear: Ear) -> None:
    ear.server.broadcast("news", UPDATED)
    ear.server.notify("s1", UPDATED)
    ear.server.log("s1", "info", "x")
    assert [(push.topic, push.session, push.level) for push in ear.heard] == [
        ("news", None, None),
        (None, "s1", None),
        (None, "s1", "info"),
    ]


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_a_log_message_carries_its_level(ear: Ear, level: str) -> None:
    # LG-01
    ear.server.log("s1", level, {"a": 1}, logger="db")
    assert ear.heard[0].level == level
    note = ear.note()
    assert note["params"] == {"level": level, "logger": "db", "data": {"a": 1}}
    mcp_types_notification(note["method"], note["params"])


def test_a_log_message_may_name_no_logger(ear: Ear) -> None:
    ear.server.log("s1", "info", None)
    assert ear.note()["params"] == {"level": "info", "data": None}


@pytest.mark.parametrize(
    ("notification", "key"),
    [
        (UPDATED, "a://é"),
        ({"method": "notifications/resources/updated", "params": {"uri": "b://c"}}, "b://c"),
        ({"method": "notifications/resources/updated", "params": {"uri": 1}}, ""),
        ({"method": "notifications/resources/updated", "params": {}}, ""),
        ({"method": "notifications/resources/updated"}, ""),
        (types.ToolListChangedNotification(), "notifications/tools/list_changed"),
        ({"method": "notifications/message", "params": {}}, ""),
    ],
)
def test_of_changes_only_the_last_matters(ear: Ear, notification: Any, key: str) -> None:
    ear.server.notify("s1", notification)
    assert [push.key for push in ear.heard] == [key]


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("data", [object(), "\ud800", CIRCLE, {(1, 2): object()}], ids=["object", "half a surrogate pair", "circle", "key"])
def test_what_can_not_be_encoded_is_logged_and_dropped(ear: Ear, data: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 24: and nobody else suffers."""
    ear.server.broadcast("news", {"method": "notifications/x", "params": {"data": data}})
    ear.server.notify("s1", {"method": "notifications/y", "params": {"data": data}})
    ear.server.log("s1", "info", data)
    assert ear.heard == []
    texts = [record.getMessage() for record in caplog.records]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    for text, method, target in zip(
        texts, ["notifications/x", "notifications/y", "notifications/message"], ["news", "a session", "a session"], strict=True
    ):
        assert method in text
        assert target in text
    ear.server.notify("s1", UPDATED)
    assert len(ear.heard) == 1


@pytest.mark.parametrize(
    "notification", [None, "notifications/x", {}, {"method": 5}, {"method": ""}, {"params": {}}, types.text("x"), [UPDATED]]
)
def test_what_is_no_notification_is_the_callers_mistake(ear: Ear, notification: Any) -> None:
    for tell, name in ((ear.server.broadcast, "broadcast"), (ear.server.notify, "notify")):
        with pytest.raises(TypeError, match=rf"server\.{name} takes a notification of callboard\.types, or \{{'method'"):
            tell("x", notification)
    assert ear.heard == []


@pytest.mark.parametrize("params", [[1], "x", 5])
def test_parameters_are_an_object(ear: Ear, params: Any) -> None:
    with pytest.raises(TypeError, match=r"server\.notify: params of notifications/x must be a mapping, not "):
        ear.server.notify("s1", {"method": "notifications/x", "params": params})
    assert ear.heard == []


@pytest.mark.parametrize("target", [None, 5, b"s1"])
def test_who_is_told_is_named_by_a_str(ear: Ear, target: Any) -> None:
    with pytest.raises(TypeError, match=r"server\.broadcast: topic is a str"):
        ear.server.broadcast(target, UPDATED)
    with pytest.raises(TypeError, match=r"server\.notify: session_id is a str"):
        ear.server.notify(target, UPDATED)
    with pytest.raises(TypeError, match=r"server\.log: session_id is a str"):
        ear.server.log(target, "info", "x")
    assert ear.heard == []


@pytest.mark.parametrize("level", ["verbose", "", "INFO", None])
def test_a_level_that_is_none_is_the_callers_mistake(ear: Ear, level: Any) -> None:
    with pytest.raises(ValueError, match=r"server\.log: unknown level .*; use one of debug, info"):
        ear.server.log("s1", level, "x")
    assert ear.heard == []


def test_anybody_may_tell_from_any_thread(ear: Ear) -> None:
    threads = [threading.Thread(target=ear.server.notify, args=(f"s{number}", UPDATED)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert {push.session for push in ear.heard} == {f"s{number}" for number in range(8)}
    assert threading.get_ident() not in ear.threads


def test_nobody_needs_to_listen() -> None:
    Server("desk").broadcast("news", UPDATED)


def test_a_push_is_read_as_it_was_written() -> None:
    push = Push(msgspec.Raw(b'{"jsonrpc":"2.0","method":"x"}'), session="s", level="info", key="k")
    again = decode_push(msgspec.json.encode(push))
    assert (bytes(again.note), again.session, again.topic, again.level, again.key) == (bytes(push.note), "s", None, "info", "k")
