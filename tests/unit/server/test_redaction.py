"""What of a tool's arguments may stand in a log."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from callboard import Server
from callboard.server import redaction
from callboard.server.redaction import HIDDEN, Redactor, looks_secret, read_redactor, show_text
from callboard.types import Secret

VALUE = "tr0ub4dor"
MARKED: Any = Secret  # for what is put together at run time
PASSWORD = Annotated[str, msgspec.Meta(extra_json_schema={"format": "password"})]


@dataclass
class Login:
    """Somebody's."""

    user: str
    word: Secret[str]


class Row(msgspec.Struct):
    """One of several, which may hold others."""

    note: str
    hidden: Secret[str] | None = None
    rows: "list[Row]" = []


class Typed(TypedDict):
    """A mapping."""

    shown: str
    hidden: Secret[str]


class Model(pydantic.BaseModel):
    """Of pydantic."""

    shown: str
    marked: Secret[str] = ""
    text: pydantic.SecretStr = pydantic.SecretStr("")
    data: pydantic.SecretBytes = pydantic.SecretBytes(b"")
    said: str = pydantic.Field("", json_schema_extra={"writeOnly": True})


class Cat(msgspec.Struct, tag="cat"):
    """One of two."""

    name: str


class Spy(msgspec.Struct, tag="spy"):
    """The other."""

    name: Secret[str]


def show(annotation: Any, value: Any) -> Any:
    """What a log has of the argument `x` of a tool."""
    server = Server("s")

    def tool(x: Any) -> str:
        return ""

    tool.__annotations__["x"] = annotation
    server.tool(tool)
    shown = read_redactor(bytes(server.registry.tools["tool"].definition)).show(msgspec.json.encode({"x": value}))
    return shown["x"]


@pytest.mark.parametrize(
    ("annotation", "value", "shown"),
    [
        (str, "plain", "plain"),
        (Secret[str], VALUE, HIDDEN),
        (Secret[int], 4711, HIDDEN),
        (Secret[str] | None, VALUE, HIDDEN),
        (MARKED[str | None], VALUE, HIDDEN),
        (Secret[Annotated[str, msgspec.Meta(min_length=3)]], VALUE, HIDDEN),
        (Secret[Login], {"user": VALUE, "word": VALUE}, HIDDEN),
        (Secret[list[str]], [VALUE], HIDDEN),
        (PASSWORD, VALUE, HIDDEN),
        (pydantic.SecretStr, VALUE, HIDDEN),
        (pydantic.SecretBytes, VALUE, HIDDEN),
        (Login, {"user": "ada", "word": VALUE}, {"user": "ada", "word": HIDDEN}),
        (Login | None, {"user": "ada", "word": VALUE}, {"user": "ada", "word": HIDDEN}),
        (list[Login], [{"user": "ada", "word": VALUE}], [{"user": "ada", "word": HIDDEN}]),
        (dict[str, Login], {"a": {"user": "ada", "word": VALUE}}, {"a": {"user": "ada", "word": HIDDEN}}),
        (dict[str, Secret[str]], {"a": VALUE}, {"a": HIDDEN}),
        (list[Secret[str]], [VALUE, VALUE], [HIDDEN, HIDDEN]),
        (tuple[str, Secret[str]], ["a", VALUE], ["a", HIDDEN]),
        (Typed, {"shown": "a", "hidden": VALUE}, {"shown": "a", "hidden": HIDDEN}),
        (Row, {"note": "a", "rows": [{"note": "b", "hidden": VALUE}]}, {"note": "a", "rows": [{"note": "b", "hidden": HIDDEN}]}),
        (Cat | Spy, {"type": "spy", "name": VALUE}, {"type": "spy", "name": HIDDEN}),
        (list[Model], [{"shown": "a", "marked": VALUE, "text": VALUE}], [{"shown": "a", "marked": HIDDEN, "text": HIDDEN}]),
        (Model, {"shown": "a", "data": VALUE, "said": VALUE}, {"shown": "a", "data": HIDDEN, "said": HIDDEN}),
        (Any, {"deep": {"password": VALUE, "n": 1}}, {"deep": {"password": HIDDEN, "n": 1}}),
        (dict[str, str], {"Authorization": VALUE, "Accept": "a"}, {"Authorization": HIDDEN, "Accept": "a"}),
        (Literal["a", "b"], "a", "a"),
        (int, 2**80, HIDDEN),
        (bool, True, True),
    ],
)
def test_what_is_marked_is_hidden_wherever_it_stands(annotation: Any, value: Any, shown: Any) -> None:
    assert show(annotation, value) == shown


def test_the_marker_says_write_only_and_nothing_else() -> None:
    def schema(annotation: Any) -> dict[str, Any]:
        server = Server("s")

        def tool(x: Any) -> str:
            return ""

        tool.__annotations__ = {"x": annotation, "return": str}
        server.tool(tool)
        found: dict[str, Any] = json.loads(bytes(server.registry.tools["tool"].definition))["inputSchema"]
        return found

    for kind in (str, int, list[str], Login, Model):
        plain, marked = schema(kind), schema(MARKED[kind])
        assert marked["properties"]["x"].pop("writeOnly") is True
        assert marked == plain


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "userPassword",
        "API_KEY",
        "apiKey",
        "accessToken",
        "id_token",
        "clientSecret",
        "pin",
        "cvv",
        "card_number",
        "creditCard",
        "Authorization",
        "Cookie",
        "session_id",
        "Mcp-Session-Id",
        "requestState",
        "cursor",
        "privateKey",
        "x-api-key",
        "passphrase",
        "otp",
        "db_connection_string",
        "OPENAIAPIKEY",
        "bearer",
        "JWT",
        "authKey",
    ],
)
def test_names_of_secrets(name: str) -> None:
    # EL-10
    assert looks_secret(name, "x")


@pytest.mark.parametrize(
    "name", ["name", "key", "keyboard", "spinning", "authors", "passenger", "shipping", "compass", "secretary_"[:-1][:4]]
)
def test_names_of_nothing_secret(name: str) -> None:
    assert not looks_secret(name, "x")


def test_a_number_of_tokens_is_no_secret() -> None:
    assert not looks_secret("max_tokens", 100)
    assert looks_secret("tokens", ["a"])
    assert looks_secret("pin", 1234)


@pytest.mark.parametrize(
    "text",
    [
        f"curl -H 'Authorization: Bearer {VALUE}' x",
        f"https://ada:{VALUE}@example.com/x",
        f"https://example.com/?a=1&access_token={VALUE}&b=2",
        f'{{"password": "{VALUE}"}}',
        f"password={VALUE}",
        f"PASSWORD: {VALUE}",
        f"eyJhbGciOiJub25lIn0.eyJzdWIiOiJ{VALUE}.{VALUE}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{VALUE}\n",
    ],
)
def test_credentials_in_a_text_are_hidden(text: str) -> None:
    assert VALUE not in show_text(text)
    assert HIDDEN in show_text(text)


def test_a_text_without_credentials_is_as_it_was() -> None:
    text = "The keys of the piano: 88. Tokens are cheap, https://example.com/?page=2"
    assert show_text(text) == text


def test_what_the_schema_does_not_know_is_hidden() -> None:
    strict = Redactor({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False})
    assert strict.show(msgspec.json.encode({"a": "b", VALUE: VALUE})) == {"a": "b", HIDDEN: HIDDEN}
    plain = Redactor({"type": "object", "properties": {"a": {"type": "string"}}})
    assert plain.show(msgspec.json.encode({"c": VALUE})) == {HIDDEN: HIDDEN}


@pytest.mark.parametrize("raw", [b"[1]", b'"x"', b"{", b"", b'{"a": \xff}', b"[" * 50_000])
def test_what_are_no_arguments_is_hidden(raw: bytes) -> None:
    assert Redactor({}).show(raw) == HIDDEN


def test_what_is_shown_is_bounded() -> None:
    free = Redactor({})
    long: dict[str, Any] = {"x": "a" * 5_000, "y": list(range(1_000)), "z": {str(n): n for n in range(1_000)}}
    shown = free.show(msgspec.json.encode(long))
    assert len(json.dumps(shown)) < 2_000
    assert shown["x"].endswith("(5000 characters)")
    assert shown["y"][-1] == "(980 more)"
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    assert "entries)" in json.dumps(free.show(msgspec.json.encode(deep)))
    wide = {str(n): {str(m): {str(k): k for k in range(20)} for m in range(20)} for n in range(20)}
    assert len(json.dumps(free.show(msgspec.json.encode(wide)))) < 20_000
    assert free.show(msgspec.json.encode({"x": "a" * redaction.MAX_BYTES})) == f"({redaction.MAX_BYTES + 8} bytes)"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/b"}}}, "b": {"writeOnly": True}}},
        {"properties": {"x": {"$ref": "#/$defs/missing"}}},
        {"properties": {"x": {"$ref": "https://example.com/schema"}}},
        {"properties": {"x": {"allOf": [{"anyOf": [{"type": "string"}, {"oneOf": [{"writeOnly": True}]}]}]}}},
        {"patternProperties": {"^x": {"writeOnly": True}}},
        {"then": {"properties": {"x": {"writeOnly": True}}}},
        {"dependentSchemas": {"y": {"properties": {"x": {"format": "password"}}}}},
        {"$ref": "#", "properties": {"x": {"writeOnly": True}}},
        {"properties": {"x": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"writeOnly": True}}},
        {"properties": {"x": False}, "additionalProperties": {"writeOnly": True}},
    ],
)
def test_every_way_to_say_it_counts(schema: dict[str, Any]) -> None:
    assert VALUE not in json.dumps(Redactor(schema).show(msgspec.json.encode({"x": VALUE})))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5) | st.just(VALUE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["note", "hidden", "rows", "user", "word", "z"]), inner),
    max_leaves=12,
)


@given(JSON)
def test_no_shape_of_arguments_shows_what_is_marked(value: Any) -> None:
    """Arguments that don't fit are logged too: a secret in its place is hidden whatever stands around it."""
    schema = {
        "properties": {"rows": {"$ref": "#/$defs/Row"}, "hidden": {"writeOnly": True}},
        "$defs": {
            "Row": {
                "anyOf": [
                    {"type": "array", "items": {"$ref": "#/$defs/Row"}},
                    {
                        "properties": {"rows": {"$ref": "#/$defs/Row"}, "hidden": {"writeOnly": True}, "z": {}},
                        "additionalProperties": False,
                    },
                ]
            }
        },
    }

    def hide(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: "kept" if key == "hidden" else hide(inner) for key, inner in node.items() if key in {"hidden", "rows"}}
        return [hide(inner) for inner in node] if isinstance(node, list) else None

    wanted = hide({"rows": value, "hidden": value})
    secret = json.loads(json.dumps(wanted).replace('"kept"', f'"{VALUE}"'))
    assert VALUE not in json.dumps(Redactor(schema).show(msgspec.json.encode(secret)))
