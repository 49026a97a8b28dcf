"""The composition root: what `callboard.run` and `callboard.asgi` refuse before anything is served, and whom a host lets in."""

from __future__ import annotations

from typing import Any

import pytest

import callboard
from callboard import RegistrationError, Server
from callboard.transport.security import LOOPBACK_HOSTS, HttpRules, check_caller


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"transport": "streamable-http"}, "transport is 'http'"),
        ({"transport": "stduio"}, "not 'stduio'"),
        ({"transport": "stdio", "path": "/x"}, "path is an option of HTTP"),
        ({"port": 70000}, "not 70000"),
        ({"port": -1}, "not -1"),
        ({"port": "8000"}, "not '8000'"),
        ({"port": 6000}, "port 6000"),
        ({"log_level": "loud"}, "log_level is one of critical"),
        ({"stateless_http": True}, "takes no 'stateless_http'"),
        ({"session_tll": 5}, r"callboard\.run takes no 'session_tll'; .*did you mean session_ttl="),
        ({"transport": "stdio", "session_ttl": 5}, "session_ttl is an option of HTTP"),
        ({"transport": "stdio", "options": lambda caller: {}}, "only HTTP has"),
    ],
)
def test_a_wrong_option_of_run_is_named_before_anything_is_served(options: dict[str, Any], culprit: str) -> None:
    with pytest.raises(RegistrationError, match=culprit):
        callboard.run(Server("x"), **options)


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"hosts": "localhost"}, r"hosts=\['localhost'\]"),
        ({"origins": "https://a.example"}, "origins"),
        ({"origins": ["a.example"]}, "no web origin"),
        ({"keep_alive": 0}, "keep_alive"),
        ({"max_body": 1000}, r"write limits=Limits\(max_body=\.\.\.\)"),
        ({"session_buffer": 0}, r"write limits=Limits\(session_buffer=\.\.\.\)"),
        ({"limits": {"max_body": 1000}}, "limits takes a callboard.limits.Limits"),
        ({"options": 5}, "options must be a mapping"),
        ({"options": lambda: {"region": "eu"}}, "options: .* one argument, the Caller"),
        ({"options": lambda caller, more: {}}, "options: .* one argument, the Caller"),
        ({"instructions": 5}, "instructions must be a str"),
        ({"versions": "2025-11-25"}, "versions takes a list"),
        ({"versions": []}, "versions takes a list"),
        ({"versions": ["2024-11-05"]}, "2026-07-28, 2025-11-25, 2025-06-18, 2025-03-26"),
        ({"session_tll": 5}, "no 'session_tll'.* session_ttl"),
        ({"sessions": "on"}, "sessions is one of 'auto', 'off', not 'on'"),
    ],
)
def test_a_wrong_option_of_asgi_is_named(options: dict[str, Any], culprit: str) -> None:
    with pytest.raises(RegistrationError, match=culprit):
        callboard.asgi(Server("x"), **options)


@pytest.mark.parametrize(
    ("versions", "served", "older"),
    [
        (None, ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"), True),
        (["2025-03-26", "2026-07-28"], ("2026-07-28", "2025-03-26"), True),
        (["2025-06-18"], ("2025-06-18",), True),
        (("2026-07-28",), ("2026-07-28",), False),
    ],
)
async def test_versions_are_served_newest_first_whatever_their_order(versions: Any, served: tuple[str, ...], older: bool) -> None:
    # VN-05, VN-20
    endpoint = callboard.asgi(Server("x"), versions=versions).endpoint
    assert (await endpoint.open()).versions == served
    assert (endpoint.older is not None) is older


async def test_a_function_for_options_needs_http() -> None:
    with pytest.raises(RegistrationError, match="only HTTP has"):
        await callboard.stdio(Server("x"), options=lambda caller: {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"127.0.0.1:8000", True),
        (b"localhost", True),
        (b"[::1]:8000", True),
        (b"192.168.7.7:8000", True),
        (b"[fd00::1]:8000", True),
        (b"evil.example:8000", False),
        (b"127.0.0.1.evil.example", False),
        (b"", False),
    ],
)
def test_with_remote_clients_any_address_will_do_but_names_are_listed(host: bytes, allowed: bool) -> None:
    # HM-04, A34: DNS rebinding needs a name
    rules = HttpRules(allow_remote=True)
    assert (check_caller(rules, "10.0.0.9", host, None) is None) is allowed


@pytest.mark.parametrize("host", [b"192.168.7.7:8000", b"[fd00::1]:8000"])
def test_without_them_an_address_must_be_listed(host: bytes) -> None:
    assert check_caller(HttpRules(hosts=LOOPBACK_HOSTS), "127.0.0.1", host, None) is not None


async def test_run_inside_an_event_loop_names_the_way_out() -> None:
    with pytest.raises(RegistrationError, match=r"await callboard\.stdio"):
        callboard.run(Server("x"))


def test_only_a_server_is_served() -> None:
    with pytest.raises(RegistrationError, match="not 'x'"):
        callboard.asgi("x")  # type: ignore[arg-type]
