"""Pure checks of an HTTP request before anything of it is read."""

from typing import Any

import pytest

from callboard.errors import REASONS, Fail, Reason, RegistrationError
from callboard.transport.security import LOOPBACK_HOSTS, HttpRules, accepted_types, check, check_caller, check_media, is_loopback

RULES = HttpRules()
SECRET = "https://evil.example\x00\x1b[31m"


def caller(
    *, rules: HttpRules = RULES, peer: str | None = "127.0.0.1", host: str | None = "127.0.0.1:8000", origin: str | None = None
) -> Reason | None:
    """Why a caller is refused."""
    fail = check_caller(rules, peer, None if host is None else host.encode("latin-1"), None if origin is None else origin.encode("latin-1"))
    return None if fail is None else fail.reason


def shape(*headers: tuple[bytes, bytes], rules: HttpRules = RULES) -> Fail | None:
    """What is wrong with headers."""
    return check(rules, {"headers": list(headers)}, dict(headers))


# Peers


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.255.0.3", "::1", "::ffff:127.0.0.1", "::1%lo", "testclient", "", None])
def test_this_machine_may_connect(peer: str | None) -> None:
    # HM-03
    assert caller(peer=peer) is None


@pytest.mark.parametrize("peer", ["10.0.0.1", "192.168.1.2", "8.8.8.8", "0.0.0.0", "::", "::ffff:8.8.8.8", "fe80::1%eth0", "2001:db8::1"])
def test_other_machines_may_only_when_they_are_let_in(peer: str) -> None:
    # HM-03
    assert caller(peer=peer) is Reason.REMOTE_PEER
    assert caller(peer=peer, rules=HttpRules(allow_remote=True)) is None
    assert not is_loopback(peer)


# Hosts


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:8000"])
def test_loopback_names_are_this_servers(host: str) -> None:
    # HM-04
    assert caller(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example#127.0.0.1",
        "localhost@evil.example",
        "localhost:80:80",
        "localhost:x",
        "localhost:",
        "localhost ",
        "::1",
        "0.0.0.0",
        "localhost, evil.example",
        "lócalhost",
    ],
)
def test_other_names_are_not(host: str | None) -> None:
    # HM-04: DNS rebinding
    assert caller(host=host) is Reason.HOST


@pytest.mark.parametrize(
    ("rule", "host", "fits"),
    [
        ("mcp.example.com", "mcp.example.com", True),
        ("mcp.example.com", "mcp.example.com:443", True),
        ("mcp.example.com", "MCP.Example.com", True),
        ("mcp.example.com", "x.mcp.example.com", False),
        ("mcp.example.com:8443", "mcp.example.com:8443", True),
        ("mcp.example.com:8443", "mcp.example.com", False),
        ("mcp.example.com:8443", "mcp.example.com:443", False),
        ("*.example.com", "a.example.com:1", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("*", "anything.at.all:1", True),
    ],
)
def test_a_rule_names_a_host(rule: str, host: str, fits: bool) -> None:
    # A34
    assert (caller(host=host, rules=HttpRules(hosts=(rule,))) is None) == fits


# Origins


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost:3000",
        "https://127.0.0.1.evil",
        "http://127.0.0.1:8000.evil.example",
        "http://127.0.0.1:8000@evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:8001",
        "file://127.0.0.1:8000",
        "chrome-extension://127.0.0.1:8000",
        "127.0.0.1:8000",
        "",
        "://",
        "http://",
        "http://127.0.0.1:8000/",
        "http://127.0.0.1:8000, https://evil.example",
    ],
)
def test_other_web_pages_may_not_call(origin: str) -> None:
    # SA16, HM-02
    assert caller(origin=origin) is Reason.ORIGIN


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8000", "HTTP://127.0.0.1:8000", "https://127.0.0.1:8000"])
def test_the_servers_own_pages_may(origin: str) -> None:
    # HM-02, HM-04
    assert caller(origin=origin) is None


def test_no_origin_is_no_web_page() -> None:
    # HM-02
    assert caller(origin=None) is None


def test_named_origins_may() -> None:
    rules = HttpRules(origins=("https://app.example.com",))
    assert caller(origin="https://app.example.com", rules=rules) is None
    assert caller(origin="https://App.Example.com", rules=rules) is None
    assert caller(origin="http://app.example.com", rules=rules) is Reason.ORIGIN
    assert caller(origin="https://app.example.com:444", rules=rules) is Reason.ORIGIN
    assert caller(origin="https://app.example.com.evil.example", rules=rules) is Reason.ORIGIN


def test_an_origin_of_an_empty_host_is_nobodys() -> None:
    assert caller(host="", origin="http://", rules=HttpRules(hosts=("*",))) is Reason.ORIGIN


@pytest.mark.parametrize("origin", ["*", "app.example.com", "https://app.example.com/", "https://", "", "https://a/b"])
def test_what_is_no_origin_is_refused_when_it_is_configured(origin: str) -> None:
    # SA17: never a wildcard
    with pytest.raises(RegistrationError, match="origin"):
        HttpRules(origins=(origin,))


@pytest.mark.parametrize(
    ("fail", "setting"),
    [
        (check_caller(RULES, "10.0.0.1", b"localhost", None), "allow_remote"),
        (check_caller(RULES, "127.0.0.1", b"mcp.example.com", None), "hosts"),
        (check_caller(RULES, "127.0.0.1", b"localhost", b"https://a.example"), "origins"),
        (shape((b"a", b"x" * 20_000)), "max_headers"),
        (shape((b"content-length", b"99999999")), "max_body"),
    ],
)
def test_a_refusal_names_the_setting(fail: Fail | None, setting: str) -> None:
    # A34
    assert fail is not None
    assert setting in fail.text


def test_a_refusal_shows_what_was_sent_only_when_it_is_harmless() -> None:
    # SA13
    for fail in (check_caller(RULES, None, SECRET.encode(), None), check_caller(RULES, None, b"localhost", SECRET.encode())):
        assert fail is not None
        assert fail.text.isprintable()
        assert "evil.example" not in fail.text
    long = check_caller(RULES, None, b"x" * 10_000, None)
    assert long is not None
    assert len(long.text) < 400


# Duplicates and sizes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"host", Reason.INVALID_REQUEST),
        (b"origin", Reason.INVALID_REQUEST),
        (b"content-type", Reason.INVALID_REQUEST),
        (b"content-length", Reason.INVALID_REQUEST),
        (b"content-encoding", Reason.INVALID_REQUEST),
        (b"authorization", Reason.INVALID_REQUEST),
        (b"mcp-method", Reason.HEADER_MISMATCH),
        (b"mcp-name", Reason.HEADER_MISMATCH),
        (b"mcp-protocol-version", Reason.HEADER_MISMATCH),
        (b"mcp-param-region", Reason.HEADER_MISMATCH),
    ],
)
def test_a_header_that_decides_something_comes_once(name: bytes, reason: Reason) -> None:
    # HH-06, HH-19: a proxy may have read the other one
    fail = shape((name, b"1"), (b"x", b"y"), (name, b"1"))
    assert fail is not None
    assert fail.reason is reason
    assert name.decode() in fail.text


def test_other_headers_may_come_twice() -> None:
    assert shape((b"accept", b"a/b"), (b"accept", b"c/d"), (b"x-forwarded-for", b"1"), (b"x-forwarded-for", b"2")) is None


def test_headers_fit_up_to_the_limit() -> None:
    rules = HttpRules(max_headers=100)
    for size, fits in ((99, True), (100, True), (101, False)):
        fail = shape((b"abc", b"x" * (size - 3)), rules=rules)
        assert (fail is None) == fits
        assert fail is None or fail.reason is Reason.HEADERS_TOO_LARGE


def test_a_body_fits_up_to_the_limit_by_what_it_says_of_itself() -> None:
    # SA08, A44
    rules = HttpRules(max_body=100)
    for size, fits in ((99, True), (100, True), (101, False), (10**30, False)):
        fail = shape((b"content-length", b"%d" % size), rules=rules)
        assert (fail is None) == fits
        assert fail is None or fail.reason is Reason.BODY_TOO_LARGE


@pytest.mark.parametrize("length", [b"", b"-1", b"abc", b"1 1", b"0x10", b"+5", "²".encode("latin-1")])
def test_a_length_that_is_no_number_is_the_http_servers_to_refuse(length: bytes) -> None:
    assert shape((b"content-length", length)) is None


# Media types


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/json;charset=UTF-8",
        " application/json ",
        "APPLICATION/JSON",
        "application/json; a=b; c=d",
    ],
)
def test_json_is_json_however_it_is_spelled(content_type: str) -> None:
    # A58
    assert check_media({b"content-type": content_type.encode()}) is None


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "text/plain; charset=application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "application/json, text/plain",
        "application/problem+json",
        "application/json/x",
        "json",
    ],
)
def test_nothing_else_is(content_type: str | None) -> None:
    # SA14: what a browser sends without a preflight must not run anything
    headers = {} if content_type is None else {b"content-type": content_type.encode()}
    fail = check_media(headers)
    assert fail is not None
    assert (fail.reason, REASONS[fail.reason].status) == (Reason.MEDIA_TYPE, 415)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "identity, gzip", "x"])
def test_a_compressed_body_is_refused_unread(encoding: str) -> None:
    # SA09
    fail = check_media({b"content-type": b"application/json", b"content-encoding": encoding.encode()})
    assert fail is not None
    assert (fail.reason, REASONS[fail.reason].status) == (Reason.ENCODING, 415)


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_no_encoding_is_none(encoding: str) -> None:
    assert check_media({b"content-type": b"application/json", b"content-encoding": encoding.encode()}) is None


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, (True, True)),
        ("application/json, text/event-stream", (True, True)),
        ("text/event-stream,application/json", (True, True)),
        ("Application/JSON , TEXT/event-stream;q=0.5", (True, True)),
        ("*/*", (True, True)),
        ("application/*, text/*", (True, True)),
        ("application/json", (True, False)),
        ("text/event-stream", (False, True)),
        ("text/*", (False, True)),
        ("application/json;q=0.9, text/event-stream;q=0", (True, False)),
        ("application/json;q=0, */*", (False, True)),
        ("*/*, application/json;q=0", (False, True)),
        ("*/*;q=0, text/event-stream", (False, True)),
        ("application/json; q=0.0, text/event-stream", (False, True)),
        ("application/json;profile=x, text/event-stream", (True, True)),
        ("application/json;q=bad, text/event-stream", (False, True)),
        ("application/json;q=nan, text/event-stream", (False, True)),
        ("text/html", (False, False)),
        ("application/xml, text/html;q=0.9", (False, False)),
        ("", (False, False)),
        (",,", (False, False)),
        ("application/jsonx", (False, False)),
        ("é/ü", (False, False)),
    ],
)
def test_accept_is_read_by_its_rules(accept: str | None, expected: tuple[bool, bool]) -> None:
    # HM-05, HM-08, A58
    assert accepted_types(None if accept is None else accept.encode("latin-1")) == expected


def test_loopback_names_are_what_the_default_is() -> None:
    assert RULES.hosts == LOOPBACK_HOSTS
    assert set(LOOPBACK_HOSTS) == {"localhost", "127.0.0.1", "[::1]"}


def test_rules_are_data() -> None:
    with pytest.raises(AttributeError):
        RULES.max_body = 1  # type: ignore[misc]


def test_a_whole_request_that_is_fine() -> None:
    headers: list[Any] = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"2")]
    assert shape(*headers) is None
