"""Header mirroring: the value codec, the map of annotated parameters, and both directions of a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.headers import (
    ANNOTATION,
    SAFE_INTEGER,
    HeaderAnnotationError,
    HeaderParam,
    HeaderValueError,
    compare_name,
    compare_params,
    compile_param_map,
    decode_value,
    encode_value,
    mirror_params,
    mirror_value,
)

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "headers.json").read_text(encoding="utf-8"))
PARAMS = compile_param_map(VECTORS["call_schema"])
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text("=?base64YQ ", max_size=14).map(lambda text: f"=?base64?{text}?=")


def _rows(name: str) -> list[Any]:
    return [pytest.param(row, id=row["case"]) for row in VECTORS[name]]


# The value codec (HH-16, HH-17, HH-18)


@pytest.mark.parametrize("row", _rows("encode"))
def test_encodes(row: dict[str, str]) -> None:
    """HH-16, HH-17: plain text goes as it is; everything else, and what looks like the sentinel, is wrapped."""
    assert encode_value(row["value"]) == row["wire"]
    assert decode_value(row["wire"]) == row["value"]


@pytest.mark.parametrize("row", _rows("decode"))
def test_decodes(row: dict[str, str | None]) -> None:
    """HH-08, HH-18, SA13: white space around is dropped, a sentinel is decoded strictly, the rest is literal."""
    assert row["wire"] is not None
    if row["value"] is None:
        with pytest.raises(HeaderValueError):
            decode_value(row["wire"])
    else:
        assert decode_value(row["wire"]) == row["value"]


def test_a_lone_surrogate_has_no_encoding() -> None:
    with pytest.raises(HeaderValueError, match="lone surrogate"):
        encode_value("a\ud800")


@settings(deadline=None)
@given(TEXT)
def test_every_text_survives_as_visible_ascii(text: str) -> None:
    wire = encode_value(text)
    assert all(" " <= character <= "~" for character in wire)
    assert wire == wire.strip()
    assert decode_value(f" {wire}\t") == text


@pytest.mark.parametrize(("value", "text"), [("x", "x"), ("", ""), (42, "42"), (-7, "-7"), (True, "true"), (False, "false")])
def test_mirrors_a_value_as_text(value: str | int | bool, text: str) -> None:
    """HH-16: integers in decimal, booleans in lower case."""
    assert mirror_value(value) == text


@pytest.mark.parametrize("sign", [1, -1])
def test_mirrors_integers_up_to_what_every_reader_holds(sign: int) -> None:
    """HH-12: plus and minus 2^53-1 travel, one more does not."""
    assert mirror_value(sign * SAFE_INTEGER) == f"{'-' if sign < 0 else ''}9007199254740991"
    with pytest.raises(HeaderValueError, match=r"outside \+-\(2\^53-1\)"):
        mirror_value(sign * (SAFE_INTEGER + 1))


# Standard headers (HH-06, HH-07, HH-08)


@pytest.mark.parametrize(
    ("header", "expected", "same"),
    [
        (b"add", "add", True),
        (b" \tadd ", "add", True),
        (b"=?base64?YWRk?=", "add", True),
        (b"=?base64?5LiW?=", "世", True),
        (b"", "", True),
        (b"a\tb", "a\tb", True),
        (None, "add", False),
        (b"ADD", "add", False),
        (b"TOOLS/CALL", "tools/call", False),
        (b"ad", "add", False),
        (b"", "add", False),
        (b"=?base64?YWRk?=", "=?base64?YWRk?=", False),
        (b"=?base64?YWR?=", "add", False),
        ("世".encode(), "世", False),
        (b"caf\xe9", "café", False),
        (b"a\nb", "a\nb", False),
        (b" a", " a", False),
        (b"\xff", "\ud800", False),
    ],
)
def test_compares_a_name(header: bytes | None, expected: str, same: bool) -> None:
    """HH-06, HH-07, HH-08: missing, malformed, different and differently cased values are not the name."""
    assert compare_name(header, expected) is same


@settings(deadline=None)
@given(TEXT, TEXT | st.none())
def test_a_name_equals_what_its_encoding_says_and_nothing_else(name: str, other: str | None) -> None:
    header = encode_value(name).encode()
    assert compare_name(header, name)
    assert compare_name(header, name if other is None else other) == (other is None or other == name)


# The map (HH-11, HH-12, HH-13)


@pytest.mark.parametrize("row", _rows("valid_schemas"))
def test_compiles_a_map(row: dict[str, Any]) -> None:
    """HH-09, HH-10, HH-13: every annotated property that `properties` alone leads to."""
    assert compile_param_map(row["schema"]) == tuple(
        HeaderParam(h.encode(), name, tuple(path), kind) for h, name, path, kind in row["params"]
    )


@pytest.mark.parametrize("row", _rows("invalid_schemas"))
def test_refuses_an_invalid_annotation(row: dict[str, Any]) -> None:
    """HH-11, HH-12, HH-13, HH-14: each broken rule is named, with its place."""
    with pytest.raises(HeaderAnnotationError) as caught:
        compile_param_map(row["schema"])
    assert caught.value.path == tuple(row["path"])
    assert str(caught.value).startswith(f"{ANNOTATION} at {'.'.join(row['path']) or 'the root of the schema'}: ")
    assert row["problem"] in str(caught.value)


@pytest.mark.parametrize("depth", [100, 20_000])
def test_a_deep_schema_takes_no_stack(depth: int) -> None:
    """HH-13: nesting is fine, as deep as it goes; the walk is no recursion."""
    schema: dict[str, Any] = {"type": "string", ANNOTATION: "Deep"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"p": schema}}
    (param,) = compile_param_map(schema)
    assert param.path == ("p",) * depth


# A call (HH-15, HH-19, HH-20)


@pytest.mark.parametrize("row", _rows("calls"))
def test_compares_a_call(row: dict[str, Any]) -> None:
    """HH-19, HH-20, HH-23: headers and arguments are both there and equal, or both absent; unknown headers are ignored."""
    headers = {b"mcp-param-" + name.encode(): value.encode("latin-1") for name, value in row["headers"].items()}
    assert compare_params(PARAMS, headers, row["arguments"]) == row["problem"]


@pytest.mark.parametrize("row", _rows("mirrored"))
def test_mirrors_a_call(row: dict[str, Any]) -> None:
    """HH-15, HH-16: a header per argument with a value, none for null, absent and containers."""
    assert mirror_params(PARAMS, row["arguments"]) == row["headers"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"n": 2**53}, "argument 'n': integer is outside"), ({"deep": {"key": "\ud800"}}, "argument 'deep.key': .*lone")],
)
def test_names_the_argument_that_can_not_be_mirrored(arguments: dict[str, Any], problem: str) -> None:
    """HH-12: an integer no header may carry is refused before it is sent."""
    with pytest.raises(HeaderValueError, match=problem):
        mirror_params(PARAMS, arguments)


SCALARS = (
    st.none() | TEXT | st.integers(-SAFE_INTEGER, SAFE_INTEGER) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False, width=16)
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries({}, optional={"region": SCALARS, "n": SCALARS, "dry": SCALARS, "deep": st.fixed_dictionaries({"key": SCALARS})})
)
def test_what_a_client_mirrors_a_server_accepts(arguments: dict[str, Any]) -> None:
    """HH-15, HH-19: both ends agree on which headers a call has."""
    headers = {name.lower().encode(): value.encode() for name, value in mirror_params(PARAMS, arguments).items()}
    assert compare_params(PARAMS, headers, arguments) is None
    for header in headers:
        culprit = compare_params(PARAMS, {name: value for name, value in headers.items() if name != header}, arguments)
        assert culprit is not None
        assert culprit.lower().startswith(header.decode() + ": missing")


@settings(deadline=None)
@given(st.integers(-SAFE_INTEGER, SAFE_INTEGER), st.integers(0, 8), st.booleans())
def test_integers_compare_as_numbers(number: int, zeros: int, as_float: bool) -> None:
    """HH-20: 42.0 is 42, and no neighbour of a number is that number."""
    wire = f"{number}.{'0' * zeros}".removesuffix(".").encode()
    headers = {b"mcp-param-n": wire}
    assert compare_params(PARAMS, headers, {"n": float(number) if as_float else number}) is None
    assert compare_params(PARAMS, headers, {"n": number - 1 if number > 0 else number + 1}) == "Mcp-Param-N: differs from argument 'n'"
