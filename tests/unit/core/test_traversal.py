"""Values that would lead out of their place, however they are written (SA32)."""

import time

import pytest

from callboard.core.traversal import check_traversal
from callboard.core.uri import MAX_LENGTH, UriTemplate

UNSAFE = [
    "..",
    "../x",
    "a/../b",
    "a/..",
    "/etc/passwd",
    "//host/share",
    "C:\\x",
    "c:x",
    "a\\..\\b",
    "\\\\host",
    "a\0b",
    # once more decoded, and again
    "%2e%2e/x",
    "%2E%2e%2Fx",
    "%252e%252e",
    "%25252e%25252e%25252fx",
    "%" + "25" * 40,
    "%5c..%5c",
    "C%3a%5c",
    "a%00",
    "%2fetc",
    # bytes that careless readers take for dots and slashes
    "%c0%ae%c0%ae/x",
    "%e0%80%ae",
    "%c0%af",
    "a%ff",
    "%f8%80%80%80%ae",
    # wide characters that some file systems and libraries make plain
    "\uff0e\uff0e/x",
    "..\uff0fx",
    "\u2025/x",
    "\uff0fetc",
    "\uff3cx",
    "\uff23\uff1ax",
    "%ef%bc%8e%ef%bc%8e",
]
SAFE = [
    "a",
    "a..b",
    "...",
    "a/b",
    "a.b/c.d",
    "100%",
    "50%25",
    "xx:y",
    "é",
    "日本語",
    "a\uff0fb",
    "nul",
    "CON.txt",
    "a ",
    "~",
    "-",
    "%41",
    "a%20b",
]
ON_WINDOWS = [
    "NUL",
    "con",
    "aux.txt",
    "a/prn",
    "COM1",
    "com9.tar.gz",
    "LPT¹",
    "conin$",
    "nul .txt",
    "x:y",
    "a::$DATA",
    "a.",
    "a ",
    "a/b. /c",
    "...",
    ". .",
]


@pytest.mark.parametrize("value", UNSAFE)
def test_a_value_that_leads_elsewhere_is_found(value: str) -> None:
    # SA32
    for windows in (True, False):
        assert check_traversal({"a": "x", "v": value}, windows=windows) == "v"
        assert check_traversal({"v": ["x", value]}, windows=windows) == "v"
        assert check_traversal({"v": {"x": value}}, windows=windows) == "v"
        assert check_traversal({"v": {value: "x"}}, windows=windows) == "v"


@pytest.mark.parametrize("value", SAFE)
def test_other_values_pass(value: str) -> None:
    assert check_traversal({"v": value, "w": [value, value]}, windows=False) is None


@pytest.mark.parametrize("value", ON_WINDOWS)
def test_windows_has_more_names_that_lead_elsewhere(value: str) -> None:
    # SA32
    assert check_traversal({"v": value}, windows=True) == "v"


@pytest.mark.parametrize("value", ["console", "com", "lpt10", "nulls.txt", "a.con", "auxiliary/x", ".hidden", " a"])
def test_windows_has_other_names_too(value: str) -> None:
    assert check_traversal({"v": value}, windows=True) is None


@pytest.mark.parametrize(
    "value", [{"path": "dir/", "x": "1"}, {"u": "https://a.example"}, ["a/", "b"], ["https://a", "b"], {"a": "/"[:0], "b": ""}]
)
def test_parts_are_looked_at_one_by_one(value: list[str] | dict[str, str]) -> None:
    # FUZZ-4: what one ends with and the next begins with makes nothing of them
    assert check_traversal({"v": value}, windows=False) is None


def test_a_list_is_looked_at_as_a_whole() -> None:
    assert check_traversal({"v": ["a", "", "b"]}) is None
    assert check_traversal({"v": ["", "etc"]}) == "v"


@pytest.mark.parametrize("uri", ["x://%c0%ae%c0%ae/a", "x://a%ff", "x://%ed%a0%80", "x://\ud800"])
def test_what_is_no_utf_8_matches_nothing(uri: str) -> None:
    # SA32: overlong forms and halves of pairs
    assert UriTemplate("x://{+v}").match(uri) is None


@pytest.mark.parametrize("value", ["%" + "25" * 32_000, "%25" * 22_000, "é%41" * 16_000, "../" * 22_000, "\uff05" * 22_000, "a/" * 32_000])
def test_long_values_are_judged_in_no_time(value: str) -> None:
    # SA33: 64 KiB; the work is a few passes, where decoding on and on would be thousands
    started = time.process_time()
    check_traversal({"v": value})
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(("length", "fits"), [(MAX_LENGTH - 1, True), (MAX_LENGTH, True), (MAX_LENGTH + 1, False)])
@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_uri_is_read_up_to_the_limit(length: int, fits: bool, letter: str) -> None:
    # SA33: n-1, n, n+1 characters
    uri = "x://" + letter * (length - 4)
    assert (UriTemplate("x://{v}").match(uri) is not None) == fits
