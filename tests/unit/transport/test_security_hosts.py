"""Which hosts and origins are a server's, in every shape of deployment (DNS rebinding, HM-02, HM-04)."""

import pytest

from callboard.errors import Fail, Reason, RegistrationError
from callboard.transport.security import HttpRules, check_caller, check_media, make_field, read_coding

LAN = HttpRules(hosts=("localhost", "127.0.0.1", "[::1]", "box.local"), allow_remote=True)
PROXIED = HttpRules(hosts=("mcp.example.com",))


def reason(rules: HttpRules, host: str | None, origin: str | None = None, peer: str | None = "127.0.0.1") -> Reason | None:
    """Why a caller is refused."""
    fail = check_caller(rules, peer, None if host is None else host.encode("latin-1"), None if origin is None else origin.encode("latin-1"))
    return None if fail is None else fail.reason


@pytest.mark.parametrize(
    "host", ["localhost.", "localhost.:8000", "LocalHost.:80", "127.0.0.1.", "[0:0:0:0:0:0:0:1]", "[0000::1]:8000", "[::0001]"]
)
def test_one_host_has_many_spellings(host: str) -> None:
    # HM-04
    assert reason(HttpRules(), host) is None


NO_HOSTS = [
    "a b: x.example.com",
    "a/b?.example.com",
    "evil.example:80@x.example.com",
    "user@x.example.com",
    "x.example.com:80:80",
    "x.example.com:²",
    "x.example.com:",
    "x.example.com:123456",
    "x.example.com:-1",
    "x..example.com",
    ".x.example.com",
    "..example.com",
    "x.example.com..",
    "x.example.com%00.example.com",
    "x.example.com\t.example.com",
    "x.example.com, y.example.com",
    "ü.example.com",
    "[::1].example.com",
    "[::1%evil].example.com",
    "[::1%25lo]",
    "[::%254]:0",
    "[fe80::1%25.example.com]",
    "http://x.example.com",
    "x.example.com/",
    "*.example.com",
    ".",
]


@pytest.mark.parametrize("host", NO_HOSTS)
@pytest.mark.parametrize("rule", ["*.example.com", "*"])
def test_what_is_no_host_fits_no_rule(host: str, rule: str) -> None:
    # FUZZ-3: a suffix proves nothing about what is in front of it
    rules = HttpRules(hosts=(rule,), allow_remote=True)
    assert reason(rules, host) is Reason.HOST
    assert reason(rules, "x.example.com:8000") is None


def test_any_host_may_be_none_at_all() -> None:
    # HTTP/1.0 needs no Host; whoever allows any has something in front that checks
    assert reason(HttpRules(hosts=("*",)), None) is None
    assert reason(HttpRules(hosts=("*.example.com",)), None) is Reason.HOST


@pytest.mark.parametrize("host", ["192.168.1.5:8000", "10.0.0.1", "[fe80::1]:8000", "[2001:db8::5]", "127.0.0.1:1", "box.local:8000"])
def test_over_the_lan_addresses_will_do(host: str) -> None:
    # a page that asks for an address is of that address, so there is nothing to rebind
    assert reason(LAN, host, peer="192.168.1.9") is None
    assert reason(LAN, host, f"http://{host}", peer="192.168.1.9") is None
    assert reason(LAN, host, "http://evil.example", peer="192.168.1.9") is Reason.ORIGIN


@pytest.mark.parametrize(
    "host",
    ["evil.example:8000", "2001:db8::5", "::1%evil.example", "[::1%evil.example]", "[fe80::1%25eth0]:80", "1.2.3.4.evil.example", "127.1"],
)
def test_over_the_lan_other_names_will_not(host: str) -> None:
    # HM-04
    assert reason(LAN, host, peer="192.168.1.9") is Reason.HOST


def test_behind_a_proxy_its_name_has_to_be_told() -> None:
    # A34: the proxy passes on what the client asked for; loopback names are nobody's then
    assert reason(PROXIED, "mcp.example.com") is None
    assert reason(PROXIED, "mcp.example.com:443", "https://mcp.example.com:443") is None
    for host in ("localhost", "127.0.0.1:8000", "[::1]"):
        assert reason(PROXIED, host) is Reason.HOST
    fail = check_caller(PROXIED, "127.0.0.1", b"internal:8000", None)
    assert fail is not None
    assert "'internal:8000'" in fail.text
    assert "hosts=" in fail.text
    assert "proxy" in fail.text


def test_a_client_of_another_machine_behind_a_proxy_has_to_be_let_in() -> None:
    # uvicorn puts the address of X-Forwarded-For in place of the proxy's
    fail = check_caller(PROXIED, "8.8.8.8", b"mcp.example.com", None)
    assert fail is not None
    assert fail.reason is Reason.REMOTE_PEER
    assert "proxy" in fail.text
    assert "allow_remote=True" in fail.text


def test_a_unix_socket_has_no_peer_but_a_host() -> None:
    # a proxy on this machine speaks over it, or a web page through that proxy
    assert reason(HttpRules(), "localhost", peer=None) is None
    assert reason(HttpRules(), "evil.example", peer=None) is Reason.HOST
    assert reason(HttpRules(), "", peer=None) is Reason.HOST


@pytest.mark.parametrize(
    ("rule", "host"),
    [
        ("Bücher.example", "xn--bcher-kva.example"),
        ("*.bücher.example", "a.xn--bcher-kva.example:80"),
        ("MCP.Example.com.", "mcp.example.com"),
        ("2001:db8::5", "[2001:0db8::0005]:80"),
        ("[2001:db8::5]:443", "[2001:db8::5]:443"),
        ("::1", "[::1]"),
    ],
)
def test_a_rule_is_read_as_browsers_write_it(rule: str, host: str) -> None:
    assert reason(HttpRules(hosts=(rule,)), host) is None
    assert reason(HttpRules(hosts=(rule,)), "evil.example") is Reason.HOST


@pytest.mark.parametrize(
    "rule", ["https://mcp.example.com", "mcp.example.com/mcp", "", " ", "*.", "a b", "*.*.example.com", "**", "x:y", "ü" * 80]
)
def test_a_rule_that_no_host_could_fit_is_refused_when_it_is_configured(rule: str) -> None:
    with pytest.raises(RegistrationError, match="hosts"):
        HttpRules(hosts=(rule,))


@pytest.mark.parametrize(
    ("rule", "origin"),
    [
        ("https://App.Example.com:443", "https://app.example.com"),
        ("http://app.example.com:80", "http://app.example.com"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("http://[0::1]:3000", "http://[::1]:3000"),
        ("vscode-webview://abc", "vscode-webview://abc"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ],
)
def test_an_origin_is_read_as_browsers_write_it(rule: str, origin: str) -> None:
    rules = HttpRules(origins=(rule,))
    assert reason(rules, "localhost", origin) is None
    assert reason(rules, "localhost", origin + "0") is Reason.ORIGIN


@pytest.mark.parametrize(
    "rule", ["null", "https://*.example.com", "https://a?b", "https://a#b", "https://u@a", "https://a b", "https://a:b"]
)
def test_an_origin_that_no_browser_sends_is_refused_when_it_is_configured(rule: str) -> None:
    # SA16, SA17
    with pytest.raises(RegistrationError, match="origins"):
        HttpRules(origins=(rule,))


@pytest.mark.parametrize(
    "origin", ["http://localhost.evil", "http://user@localhost:8000", "http://localhost:8000.", "http://localhost:8000#"]
)
def test_a_page_is_the_hosts_own_only_if_nothing_is_added(origin: str) -> None:
    # SA16
    assert reason(HttpRules(), "localhost:8000", origin) is Reason.ORIGIN


# Headers of answers


@pytest.mark.parametrize("value", ["x", 'Bearer realm="a b", scope="c"', "a\tb", "!~"])
def test_a_header_is_made_of_visible_characters(value: str) -> None:
    assert make_field("www-authenticate", value) == (b"www-authenticate", value.encode())


@pytest.mark.parametrize(
    "value", ["", " ", "a\r\nset-cookie: x", "a\n", "\ra", "a\x00b", "é", "a\x7f", " a", "a ", "\u2028", "a\x85b", "a\x0bb"]
)
def test_nothing_else_gets_into_one(value: str) -> None:
    # SA13: header injection
    with pytest.raises(ValueError, match="header x-a") as raised:
        make_field("x-a", value)
    assert "set-cookie" not in str(raised.value)
    assert str(raised.value).isascii()
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["", "X-A", "a:b", "a b", "a\r\nb", "é", "a\n"])
def test_a_name_of_one_is_a_token(name: str) -> None:
    # SA13
    with pytest.raises(ValueError, match="name of a header"):
        make_field(name, "x")


# Compressed bodies


@pytest.mark.parametrize(
    ("encoding", "coding"),
    [
        ("gzip", "gzip"),
        ("X-GZIP", "gzip"),
        (" Deflate ", "deflate"),
        ("identity", ""),
        ("", ""),
        ("br", "br"),
        ("gzip, gzip", "gzip, gzip"),
    ],
)
def test_a_coding_is_read(encoding: str, coding: str) -> None:
    assert read_coding(encoding.encode()) == coding


@pytest.mark.parametrize(
    ("encoding", "allowed"), [("gzip", True), ("x-gzip", True), ("identity", True), ("deflate", False), ("gzip, gzip", False)]
)
def test_only_what_was_allowed_is_taken(encoding: str, allowed: bool) -> None:
    # SA09
    fail = check_media({b"content-type": b"application/json", b"content-encoding": encoding.encode()}, ("gzip",))
    assert (fail is None) == allowed
    if fail is not None:
        assert (fail.reason, "gzip would do" in fail.text) == (Reason.ENCODING, True)


def test_a_refused_coding_names_the_setting() -> None:
    fail = check_media({b"content-type": b"application/json", b"content-encoding": b"gzip"})
    assert isinstance(fail, Fail)
    assert "encodings=" in fail.text


@pytest.mark.parametrize("coding", ["br", "zstd", "identity", ""])
def test_a_coding_that_nobody_reads_here_is_refused_when_it_is_configured(coding: str) -> None:
    with pytest.raises(RegistrationError, match="gzip, deflate"):
        HttpRules(codings=(coding,))
