"""Which URLs of somebody else's are followed, and what a server is called."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.urls import Place, origin_of, place_of, same_page
from callboard.core.urls import is_loopback, printable

PUBLIC = place_of("https://mcp.example.com/mcp")
LOCAL = place_of("http://localhost:8000/mcp")
PRIVATE = place_of("https://10.1.2.3/mcp")


@pytest.mark.parametrize(
    ("url", "resource"),
    [
        ("https://Mcp.Example.COM/Mcp", "https://mcp.example.com/Mcp"),
        ("HTTPS://mcp.example.com:443/mcp/", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com:8443", "https://mcp.example.com:8443"),
        ("https://mcp.example.com/", "https://mcp.example.com"),
        ("https://mcp.example.com/mcp#part", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com/mcp?tenant=1", "https://mcp.example.com/mcp?tenant=1"),
        ("http://[::1]:80/mcp", "http://[::1]/mcp"),
    ],
)
def test_canonical_uri(url: str, resource: str) -> None:  # AC-05
    assert place_of(url).resource == resource


@pytest.mark.parametrize("url", ["ftp://mcp.example.com", "mcp.example.com", "https://", "https://u:p@mcp.example.com", "https://a b/", ""])
def test_what_is_no_endpoint(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        place_of(url)


@pytest.mark.parametrize(
    ("resource", "covers"),
    [
        ("https://mcp.example.com/mcp", True),
        ("https://mcp.example.com/mcp/", True),
        ("https://mcp.example.com", True),
        ("https://mcp.example.com/", True),
        ("https://MCP.example.com:443/mcp", True),
        ("https://mcp.example.com/mc", False),
        ("https://mcp.example.com/mcp/deeper", False),
        ("https://mcp.example.com/MCP", False),
        ("https://mcp.example.com:444/mcp", False),
        ("http://mcp.example.com/mcp", False),
        ("https://evil.example.com/mcp", False),
        ("https://mcp.example.com.evil.example/mcp", False),
        ("https://mcp.example.com/mcp#x", False),
        ("https://mcp.example.com/mcp?x=1", False),
        ("https://mcp.example.com@evil.example/mcp", False),
        ("https://mcp.example.com/other/../mcp", False),
        ("urn:mcp", False),
        ("", False),
        ("https://[", False),
    ],
)
def test_a_resource_covers_the_endpoint(resource: str, *, covers: bool) -> None:  # AC-06
    assert PUBLIC.is_covered_by(resource) is covers


def test_a_resource_with_a_query_covers_that_very_endpoint() -> None:  # AC-06
    place = place_of("https://mcp.example.com/mcp?tenant=1")
    assert place.is_covered_by("https://mcp.example.com/mcp?tenant=1")
    assert not place.is_covered_by("https://mcp.example.com/mcp?tenant=2")


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "vbscript:x",
        "ftp://as.example.com/",
        "//as.example.com/authorize",
        "/authorize",
        "",
        "https://",
        "https://user@as.example.com/",
        "https://user:pass@as.example.com/",
        "https://as.example.com/#fragment",
        "https://as.example.com/a b",
        "https://as.example.com/\nX",
        "https://as.example.com\\@evil.example/",
        "https://as.example.com/<script>",
        "https://as.example.com:99999/",
        "https://as.example.com:0/",
        "https://as.example.com:port/",
        "https://[::1/",
        "https://exämple.com/",
        "https://as..example.com/",
        "https://as.example.com/a/../b",
        "https://as.example.com/%2e%2E/b",
        "https://as.example.com/" + "x" * 9000,
    ],
)
@pytest.mark.parametrize("place", [PUBLIC, LOCAL])
def test_urls_that_nobody_may_be_sent_to(place: Place, url: str) -> None:  # SC-07, SA37
    with pytest.raises(AuthorizationFailed, match="the page"):
        place.check(url, "the page")


INSIDE = [
    "https://127.0.0.1/",
    "http://localhost/",
    "https://localhost./",
    "https://api.localhost/",
    "https://[::1]/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://[fd00::1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[64:ff9b::a00:1]/",
]
NOWHERE = ["https://169.254.169.254/", "https://[fe80::1]/", "https://0.0.0.0/", "https://224.0.0.1/", "https://[::]/"]
# What resolvers take for 127.0.0.1 or 10.0.0.1, and a check that looks at names does not.
DISGUISED = ["https://2130706433/", "https://0x7f000001/", "https://127.1/", "https://0177.0.0.1/", "https://10.1/", "https://0x0a.0.0.1/"]


@pytest.mark.parametrize("url", [*INSIDE, *NOWHERE, *DISGUISED])
def test_a_public_server_leads_into_no_private_network(url: str) -> None:  # SC-03, SA37
    with pytest.raises(AuthorizationFailed):
        PUBLIC.check(url, "the page")


@pytest.mark.parametrize("place", [LOCAL, PRIVATE])
@pytest.mark.parametrize("url", INSIDE)
def test_a_private_server_may_have_a_private_authorization_server(place: Place, url: str) -> None:  # SC-03
    assert place.check(url, "the page") == url


@pytest.mark.parametrize("url", [*NOWHERE, *DISGUISED])
def test_nobody_is_sent_to_link_local_addresses(url: str) -> None:  # SC-03
    with pytest.raises(AuthorizationFailed):
        LOCAL.check(url, "the page")


@pytest.mark.parametrize(
    "url", ["https://as.example.com/authorize?x=1", "https://as.example.com:8443/", "https://8.8.8.8/", "https://xn--e.com/"]
)
def test_public_https_urls_are_followed(url: str) -> None:
    assert PUBLIC.check(url, "the page") == url


def test_plain_http_is_for_this_machine_and_for_the_servers_own_origin() -> None:  # SC-03
    inner = place_of("http://mcp.internal:8000/mcp")
    assert inner.check("http://mcp.internal:8000/.well-known/x", "the page")
    with pytest.raises(AuthorizationFailed, match="plain http"):
        inner.check("http://as.internal:8000/token", "the page")
    with pytest.raises(AuthorizationFailed, match="plain http"):
        LOCAL.check("http://as.example.com/token", "the page")


def test_the_error_names_the_culprit_and_stays_short() -> None:
    with pytest.raises(AuthorizationFailed) as caught:
        PUBLIC.check("https://evil.example/" + "\x1b[31m" * 1000, "the token_endpoint of as.example")
    assert "the token_endpoint of as.example 'https://evil.example/?[31m" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "page", "same"),
    [
        ("http://127.0.0.1:4000/callback?code=1", "http://127.0.0.1:4000/callback", True),
        ("http://localhost:4000/callback?code=1", "http://127.0.0.1:4000/callback", True),
        ("http://localhost:4000/other", "http://127.0.0.1:4000/callback", False),
        ("https://app.example.com/callback?code=1", "https://app.example.com/callback", True),
        ("https://app.example.com:444/callback", "https://app.example.com/callback", False),
        ("https://evil.example/callback", "https://app.example.com/callback", False),
        ("http://app.example.com/callback", "https://app.example.com/callback", False),
        ("https://[", "https://app.example.com/callback", False),
    ],
)
def test_same_page(url: str, page: str, *, same: bool) -> None:
    assert same_page(url, page) is same


@given(st.text(max_size=300))
def test_no_text_is_too_strange(text: str) -> None:
    with contextlib.suppress(AuthorizationFailed):
        assert PUBLIC.check(text, "the page").startswith("https://")
    assert isinstance(PUBLIC.is_covered_by(text), bool)
    assert isinstance(same_page(text, "https://app.example.com/"), bool)
    assert len(printable(text)) <= 203


@given(st.ip_addresses())
def test_every_address_is_public_or_refused(address: object) -> None:  # SC-03
    host = f"[{address}]" if ":" in str(address) else str(address)
    try:
        PUBLIC.check(f"https://{host}/", "the page")
    except AuthorizationFailed:
        return
    assert getattr(address, "is_global", False)


def test_names_of_this_machine() -> None:
    assert all(is_loopback(host) for host in ("localhost", "LOCALHOST", "x.localhost", "127.0.0.1", "127.9.9.9", "::1"))
    assert not any(is_loopback(host) for host in ("localhost.example.com", "example.com", "0.0.0.0", "10.0.0.1", ""))
    assert origin_of("HTTPS://Example.com:443/x?y") == "https://example.com"
