"""What holds for URLs on both sides, and how they are shown; `test_key_set.py` and `client/oauth/test_urls.py` have what each side makes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.urls import UnfitUrlError, check_host, is_fit, is_inside, is_public, masked, printable, shown, split

LOGIN = "https://ann:hunter2@mcp.example.com:8443/mcp"


@pytest.mark.parametrize(
    ("url", "ending"),
    [
        ("https://x.example/" + "a" * 83, "longer than 100 characters"),
        ("https://x.example/\t", "no URL holds"),
        ("https://x.example\\@evil.example", "no URL holds"),
        ("https://[::1", "is no URL"),
        ("https://x.example:70000", "is no URL"),
        ("ftp://x.example", "neither https nor http"),
        (LOGIN, "user name or password"),
        ("https://@x.example", "user name or password"),
        ("https://x.example/#", "fragment"),
        ("https://x.example/a/.%2e", r"\.\. in its path"),
        ("https://[::1]x.example/", "beside the brackets"),
        ("https://x.example:0/", "no host and port"),
        ("https://./", "no host and port"),
        ("https://x..example/", "usual form"),
        ("https://127.1/", "usual form"),
        ("https://x.example.0x7f/", "usual form"),
    ],
)
def test_what_no_url_may_hold(url: str, ending: str) -> None:  # SC-03, SC-07, SA37
    with pytest.raises(UnfitUrlError, match=ending) as caught:
        split(url, 100)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://x.example/" + "a" * 82, "HTTP://X.EXAMPLE.:1/a..b/.c?../", "https://[fe80::1%25eth0]:1/", "https://1.2.3.4./"]
)
def test_what_urls_hold(url: str) -> None:
    assert split(url, 100).hostname


@pytest.mark.parametrize(
    "host",
    ["10.0.0.1", "::ffff:10.0.0.1", "2002:a00:1::", "64:ff9b::a00:1", "fd00::1", "100.64.0.1", "localhost.", "a.localhost", "4000::1"],
)
def test_hosts_inside_are_for_who_is_inside(host: str) -> None:  # SC-03
    assert is_inside(host)
    check_host(host, inside=True)
    with pytest.raises(UnfitUrlError, match="private network"):
        check_host(host, inside=False)


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "::ffff:a9fe:a9fe", "64:ff9b::a9fe:a9fe", "fe80::1", "fe80::1%eth0", "0.0.0.0", "::", "224.0.0.1", "ff02::1"],
)
@pytest.mark.parametrize("inside", [True, False])
def test_hosts_that_nobody_is_led_to(host: str, *, inside: bool) -> None:  # SC-03
    assert not is_fit(host)
    with pytest.raises(UnfitUrlError, match="no authorization server"):
        check_host(host, inside=inside)


@given(st.ip_addresses().map(str) | st.from_regex(r"[a-z]{1,9}\.example", fullmatch=True))
def test_every_host_is_public_inside_or_a_name(host: str) -> None:
    assert is_public(host) + is_inside(host) + host.endswith(".example") == 1


@pytest.mark.parametrize(
    ("url", "page", "endpoint"),
    [
        (LOGIN, "https://mcp.example.com:8443/mcp", "https://***@mcp.example.com:8443/mcp"),
        ("https://x.example/mcp?key=hunter2&hunter2#hunter2", "https://x.example/mcp", "https://x.example/mcp?key=***&***"),
        ("https://x.example/@ann/mcp?", "https://x.example/@ann/mcp", "https://x.example/@ann/mcp"),
        ("https://x.example#hunter2", "https://x.example", "https://x.example"),
        ("ann:hunter2@x.example", "x.example", "***@x.example"),
        ("https://x.example/a b\x1b[31m", "https://x.example/a?b?[31m", "https://x.example/a b\x1b[31m"),
        ("", "", ""),
    ],
)
def test_how_urls_are_shown(url: str, page: str, endpoint: str) -> None:
    assert shown(url) == page
    assert masked(url) == endpoint


@given(st.text(max_size=300))
def test_every_text_can_be_shown(text: str) -> None:
    assert shown(text) == printable(shown(text))
    assert " " not in shown(text)
    assert masked(masked(text)) == masked(text)
