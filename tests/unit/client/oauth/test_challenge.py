"""`WWW-Authenticate`, as written by those who can, those who can't and those who mean harm."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.client.oauth.challenge import MAX_CHALLENGES, MAX_SCOPES, Demand, Parameters, demand_of, parse, scopes_in


@pytest.mark.parametrize(
    ("header", "challenges"),
    [
        ("Bearer", [Parameters("bearer")]),
        ('Bearer realm="a"', [Parameters("bearer", {"realm": "a"})]),
        ('bearer Realm = "a" ,scope="x y"', [Parameters("bearer", {"realm": "a", "scope": "x y"})]),
        ('Bearer realm="a, Basic realm=b"', [Parameters("bearer", {"realm": "a, Basic realm=b"})]),
        (r'Bearer realm="say \"hi\" \\ \x"', [Parameters("bearer", {"realm": 'say "hi" \\ x'})]),
        ("Bearer error=invalid_token", [Parameters("bearer", {"error": "invalid_token"})]),
        ("Negotiate abc==", [Parameters("negotiate", {}, "abc==")]),
        ("Negotiate abc==, Bearer", [Parameters("negotiate", {}, "abc=="), Parameters("bearer")]),
        ("Negotiate, Basic", [Parameters("negotiate"), Parameters("basic")]),
        ('Basic realm="x", Bearer scope="a"', [Parameters("basic", {"realm": "x"}), Parameters("bearer", {"scope": "a"})]),
        ('Bearer a=1, DPoP algs="ES256 RS256"', [Parameters("bearer", {"a": "1"}), Parameters("dpop", {"algs": "ES256 RS256"})]),
        (", ,Bearer a=1,,b=2,", [Parameters("bearer", {"a": "1", "b": "2"})]),
        ("Bearer a=1, a=2", [Parameters("bearer", {"a": "1"})]),
        ("", []),
        ("   ", []),
        ("a=1", []),
        ('Bearer scope="never ends', [Parameters("bearer")]),
        ('Bearer a=, b="2"', [Parameters("bearer", {"b": "2"}, "a=")]),  # by the grammar a token68
        ("Bearer \x00\xff, error=x", [Parameters("bearer", {"error": "x"})]),
    ],
)
def test_headers(header: str, challenges: list[Parameters]) -> None:  # AC-02
    assert parse(header) == challenges


def test_what_a_refusal_asks() -> None:  # AC-02, AC-13
    headers = (
        ("content-type", "text/plain"),
        ("www-authenticate", 'Basic realm="x", scope="basic scopes"'),
        ("www-authenticate", 'Bearer error="insufficient_scope", scope="a  b a", resource_metadata="https://x/prm"'),
        ("www-authenticate", 'DPoP error="other", error_description="words"'),
    )
    assert demand_of(headers) == Demand(("basic", "bearer", "dpop"), "https://x/prm", ("a", "b"), "insufficient_scope", "words")
    assert demand_of(()) == Demand()


def test_scopes() -> None:  # AC-13
    assert scopes_in('a "b" c\\ ü mcp:tool/x a') == ("a", "mcp:tool/x")
    assert len(scopes_in(" ".join(map(str, range(1000))))) == MAX_SCOPES


def test_a_server_can_not_send_challenges_without_end() -> None:
    assert len(parse("B, " * 1000)) == MAX_CHALLENGES
    assert len(demand_of([("www-authenticate", "B, " * 1000)] * 5).schemes) == MAX_CHALLENGES


@pytest.mark.parametrize("piece", ['a="', " ", "a ", "a= ", 'x="\\",', "B =", "=", "\\", '"', "a=b ", ",", "a\t", 'B a="' + "\\" * 50])
def test_reading_is_linear(piece: str) -> None:
    started = time.process_time()
    parse(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 0.5


TOKENS = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=12)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.just("\t"), max_size=30)
CHALLENGES = st.lists(st.tuples(TOKENS, st.dictionaries(TOKENS.map(str.lower), VALUES, min_size=1, max_size=4)), min_size=1, max_size=5)


def quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@given(CHALLENGES, st.sampled_from([", ", ",", " , "]))
def test_what_is_written_is_read(challenges: list[tuple[str, dict[str, str]]], comma: str) -> None:
    header = comma.join(
        f"{scheme} {comma.join(f'{name}={quoted(value)}' for name, value in values.items())}" for scheme, values in challenges
    )
    assert parse(header) == [Parameters(scheme.lower(), values) for scheme, values in challenges]


@given(st.text(max_size=400) | st.text('aB =,"\\\t;', max_size=400))
def test_no_header_is_too_strange(header: str) -> None:
    for challenge in parse(header):
        assert challenge.scheme
    demand_of([("www-authenticate", header)])
