"""Sealed text: it opens for whom and what it was made for, until it ends, and in every other case fails in one way (scenarios 42-46)."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.seal import MAX_SEALED, NONCE_SIZE, KeyRing, SealError, bind
from callboard.errors import RegistrationError

KEY, OTHER, THIRD = b"k" * 32, "o" * 32, b"t" * 40
RING = KeyRing([KEY])
NONCE = bytes(range(NONCE_SIZE))
NOW, END = 1_796_000_000, 1_796_003_600
CALL: dict[str, Any] = {
    "version": "2026-07-28",
    "method": "tools/call",
    "subject": "delete",
    "arguments": b'{"name": "a", "deep": {"y": [1, 2], "x": null}}',
    "principal": "ann",
    "server": "desk",
}
BINDING = bind(**CALL)
TEXT = RING.seal(b'{"step": 1}', BINDING, nonce=NONCE, expires=END)

texts = st.text(max_size=40)
fields = st.fixed_dictionaries(
    {
        "version": texts,
        "method": texts,
        "subject": texts,
        "arguments": st.sampled_from([b"", b"{}", b"null", b"[1, 2]", b'{"a": 1}', b'{"a": "1"}', b'{"a": 1.0}', b"no JSON", b"\xff"]),
        "principal": st.none() | texts,
        "server": texts,
    }
)


def refused(text: object, binding: bytes = BINDING, *, ring: KeyRing = RING, now: int = NOW) -> None:
    """One exception for everything, and not a word in it."""
    with pytest.raises(SealError) as caught:
        ring.open(text, binding, now=now)
    assert type(caught.value) is SealError
    assert caught.value.args == ()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


# What opens


@given(payload=st.binary(max_size=2000), nonce=st.binary(min_size=NONCE_SIZE, max_size=NONCE_SIZE), request=fields)
def test_what_was_sealed_opens(payload: bytes, nonce: bytes, request: dict[str, Any]) -> None:
    """MR-06, scenario 42: byte for byte."""
    text = RING.seal(payload, bind(**request), nonce=nonce, expires=END)
    assert RING.open(text, bind(**request), now=NOW) == payload
    assert text.isascii()
    assert "=" not in text


def test_the_payload_can_not_be_read() -> None:
    """MR-06: a client learns nothing from what it keeps for us."""
    secret = b"the password is swordfish"
    text = RING.seal(secret, BINDING, nonce=NONCE, expires=END)
    raw = urlsafe_b64decode(text.removeprefix("v1.") + "==")
    assert not any(secret[at : at + 4] in raw for at in range(len(secret) - 4))
    assert END.to_bytes(8, "big") not in raw


def test_a_text_opens_again_until_it_ends() -> None:
    """MR-08: a seal alone is not single use; who needs that takes a note of what was opened."""
    assert [RING.open(TEXT, BINDING, now=now) for now in (NOW, NOW, END - 1)] == [b'{"step": 1}'] * 3


@pytest.mark.parametrize("now", [END, END + 1, 2**62])
def test_it_ends(now: int) -> None:
    refused(TEXT, now=now)  # MR-07, SA28: expired


def test_the_ring_of_another_process_opens_it() -> None:
    assert KeyRing([KEY.decode()]).open(TEXT, BINDING, now=NOW) == b'{"step": 1}'


# Keys


def test_rotation() -> None:
    """Scenario 46: the new key goes first, the old one goes when what it sealed has ended."""
    both, new = KeyRing([OTHER, KEY]), KeyRing([OTHER])
    assert both.open(TEXT, BINDING, now=NOW) == b'{"step": 1}'
    fresh = both.seal(b"2", BINDING, nonce=NONCE, expires=END)
    assert new.open(fresh, BINDING, now=NOW) == b"2"
    refused(TEXT, ring=new)
    refused(fresh, ring=RING)


@given(order=st.permutations([KEY, OTHER, THIRD]))
def test_every_key_of_the_ring_opens(order: Sequence[bytes | str]) -> None:
    for key in order:
        text = KeyRing([key]).seal(b"x", BINDING, nonce=NONCE, expires=END)
        assert KeyRing(order).open(text, BINDING, now=NOW) == b"x"
        refused(text, ring=KeyRing([other for other in order if other != key]))


@pytest.mark.parametrize(
    ("keys", "culprit"),
    [
        ([], "at least one key"),
        ("s" * 64, "a list of at least one key"),
        (b"s" * 64, "a list of at least one key"),
        (None, "a list of at least one key"),
        (7, "a list of at least one key"),
        ({KEY}, "a list of at least one key"),
        ([KEY, "short secret"], r"keys\[1\]: 32 bytes or more are needed, it has 12"),
        ([b""], r"keys\[0\]"),
        ([KEY, 5], r"keys\[1\]: bytes or str are needed, not int"),
    ],
)
def test_what_is_no_key_is_refused_with_the_way_out(keys: Any, culprit: str) -> None:
    with pytest.raises(RegistrationError, match=culprit) as caught:
        KeyRing(keys)
    assert 'python -c "import secrets; print(secrets.token_urlsafe(32))"' in str(caught.value)
    assert "secret " not in str(caught.value).replace("import secrets", "")


def test_the_length_of_a_key_counts_in_bytes() -> None:
    KeyRing(["ä" * 16])
    with pytest.raises(RegistrationError):
        KeyRing(["ä" * 15])


def test_a_ring_shows_no_key() -> None:
    assert "k" * 8 not in repr(RING) + str(RING)


# Tampering: MR-06, SA28


@given(at=st.integers(0, len(TEXT) - 1), letter=st.characters())
def test_no_letter_may_change(at: int, letter: str) -> None:
    """SA28: the last letter of base64 has bits of no meaning; they count too."""
    if letter != TEXT[at]:
        refused(TEXT[:at] + letter + TEXT[at + 1 :])


def test_no_letter_may_become_another_of_the_alphabet() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for at in range(len("v1."), len(TEXT)):
        for letter in alphabet:
            if letter != TEXT[at]:
                refused(TEXT[:at] + letter + TEXT[at + 1 :])


@given(bit=st.integers(0, len(TEXT) * 8))
def test_no_bit_may_flip(bit: int) -> None:
    raw = bytearray(urlsafe_b64decode(TEXT.removeprefix("v1.") + "=" * (-len(TEXT.removeprefix("v1.")) % 4)))
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    refused("v1." + urlsafe_b64encode(raw).rstrip(b"=").decode())


@given(at=st.integers(0, len(TEXT) - 1))
def test_nothing_may_be_missing(at: int) -> None:
    refused(TEXT[:at])
    refused(TEXT[at + 1 :])
    refused(TEXT[:at] + TEXT[at + 1 :])


@given(at=st.integers(0, len(TEXT)), more=st.text(min_size=1, max_size=8))
def test_nothing_may_be_added(at: int, more: str) -> None:
    refused(TEXT[:at] + more + TEXT[at:])


@pytest.mark.parametrize(
    "text",
    [
        TEXT + "=",
        TEXT + "==",
        TEXT + "-TAMPERED",
        TEXT + "\n",
        " " + TEXT,
        TEXT[:20] + "\n" + TEXT[20:],
        TEXT[:20] + "%" + TEXT[20:],
        TEXT.replace("v1.", "V1."),
        TEXT.replace("v1.", "v2."),
        TEXT.removeprefix("v1."),
        "v1." + TEXT,
    ],
)
def test_one_spelling(text: str) -> None:
    refused(text)  # SA28: decoders that skip what they don't know would open some of these


@pytest.mark.parametrize("text", ["", "v1.", "v1.A", "v1.AAAA", "v1." + "A" * 39, "v1." + "A" * 54, "é" * 60, "v1.\ud800" + "A" * 60])
def test_what_is_no_sealed_text(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("value", [None, True, 0, 1.5, [], [TEXT], {}, {"v1.": TEXT}, TEXT.encode(), bytearray(TEXT, "ascii"), object()])
def test_other_types(value: object) -> None:
    refused(value)  # SA28


@given(
    value=st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner))
)
def test_whatever_json_holds(value: object) -> None:
    refused(value)


def test_size_is_bounded_before_any_work() -> None:
    refused("v1." + "A" * (MAX_SEALED - 3))
    refused("v1." + "A" * MAX_SEALED)
    refused("v1." + "A" * (64 * MAX_SEALED))


def test_what_is_sealed_can_be_opened_however_big() -> None:
    fits = (MAX_SEALED - 3) * 3 // 4 - 40
    text = RING.seal(bytes(fits), BINDING, nonce=NONCE, expires=END)
    assert MAX_SEALED - 2 <= len(text) <= MAX_SEALED
    assert RING.open(text, BINDING, now=NOW) == bytes(fits)
    with pytest.raises(ValueError, match="keep it in a store"):
        RING.seal(bytes(fits + 1), BINDING, nonce=NONCE, expires=END)


def test_a_nonce_has_one_size() -> None:
    with pytest.raises(ValueError, match="12 bytes, this one has 16"):
        RING.seal(b"", BINDING, nonce=bytes(16), expires=END)


def test_parts_of_two_texts_make_no_third() -> None:
    """SA28: the head of one, the sealed part of another."""
    other = RING.seal(b'{"step": 2}', BINDING, nonce=NONCE[::-1], expires=END)
    head = len("v1.") + 16 * 4 // 3
    refused(TEXT[:head] + other[head:])
    refused(other[:head] + TEXT[head:])


# Binding: MR-07, scenario 43


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "2025-11-25"),
        ("method", "prompts/get"),
        ("subject", "delete2"),
        ("subject", "Delete"),
        ("arguments", b'{"name": "b", "deep": {"y": [1, 2], "x": null}}'),
        ("arguments", b'{"name": "a", "deep": {"y": [2, 1], "x": null}}'),
        ("arguments", b'{"name": "a", "deep": {"y": [1, 2]}}'),
        ("arguments", b""),
        ("principal", "bob"),
        ("principal", ""),
        ("principal", None),
        ("server", "board"),
    ],
)
def test_another_request_does_not_open_it(field: str, value: Any) -> None:
    refused(TEXT, bind(**{**CALL, field: value}))


def test_nobody_is_not_the_one_without_a_name() -> None:
    """MR-07: state of an anonymous client is not that of a principal whose name is empty, in both directions."""
    nobody, nameless = (bind(**{**CALL, "principal": who}) for who in (None, ""))
    for mine, theirs in ((nobody, nameless), (nameless, nobody)):
        text = RING.seal(b"x", mine, nonce=NONCE, expires=END)
        assert RING.open(text, mine, now=NOW) == b"x"
        refused(text, theirs)


@given(one=fields, two=fields)
def test_different_requests_have_different_digests(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert (bind(**one) == bind(**two)) == (one == two)


names = ("version", "method", "subject", "principal", "server")


@given(request=fields, pair=st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True), letters=st.text(min_size=1, max_size=3))
def test_where_a_field_ends_is_never_in_doubt(request: dict[str, Any], pair: list[str], letters: str) -> None:
    """MR-07: letters that move from one field to another make another request."""
    here, there = pair
    begun = {**request, "principal": request["principal"] or ""}
    assert bind(**{**begun, here: begun[here] + letters}) != bind(**{**begun, there: begun[there] + letters})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def turned(value: Any) -> Any:
    """The same JSON, with the members of every object in the other order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


@given(value=st.dictionaries(texts, json_values, max_size=5))
def test_order_and_spaces_of_arguments_do_not_matter(value: dict[str, Any]) -> None:
    """A client may write the same arguments differently when it comes back."""
    spellings = (json.dumps(value), json.dumps(turned(value), indent=3), json.dumps(turned(value), ensure_ascii=False))
    assert len({bind(**{**CALL, "arguments": text.encode()}) for text in spellings}) == 1


@pytest.mark.parametrize(
    "arguments",
    [b"", b"{", b'{"a":1}x', b"\xff", b'"\\ud800"', b"1e999", b"[" * 200_000, b"9" * 5000, b"NaN", b'{"a":' * 3000 + b"1" + b"}" * 3000],
    ids=lambda arguments: arguments[:8].hex(),
)
def test_any_arguments_have_a_digest(arguments: bytes) -> None:
    digest = bind(**{**CALL, "arguments": arguments})
    assert digest == bind(**{**CALL, "arguments": arguments})
    assert digest != bind(**{**CALL, "arguments": arguments + b" "}) or arguments.strip(b"9") == b""


@given(request=fields, surrogate=st.sampled_from(["\ud800", "a\udfff"]))
def test_text_that_has_no_utf8_has_a_digest(request: dict[str, Any], surrogate: str) -> None:
    assert bind(**{**request, "subject": surrogate}) != bind(**{**request, "subject": "?"})
