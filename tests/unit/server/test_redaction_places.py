"""Secrets where nobody expects them: as keys, in other values' text, in the wrong place, behind references of other kinds (EL-10)."""

import time
from typing import Any

import msgspec
import pytest

from callboard.server.redaction import HIDDEN, Redactor, show_text

SECRET = "s3cr3tVALUE"
OPEN: dict[str, Any] = {"type": "object", "properties": {"it": {}}}


def show(schema: dict[str, Any], arguments: Any) -> str:
    """What the log would have of some arguments."""
    return msgspec.json.encode(Redactor(schema).show(msgspec.json.encode(arguments))).decode()


@pytest.mark.parametrize(
    "text",
    [
        f"https://example.com/path?token={SECRET}",
        f"see https://example.com/?a=b&access_token={SECRET}&c=d",
        f"postgres://user:{SECRET}@db/name",
        f"postgres://user:p@{SECRET}@db/name",
        f"--password {SECRET} --verbose",
        f"--api-key={SECRET}",
        f"url: x password: {SECRET}",
        f"Cookie: a=b; session={SECRET}",
        f"ghp_{SECRET}",
        f"the key is sk-{SECRET}",
    ],
)
def test_credentials_in_a_text_are_hidden_whatever_stands_before_them(text: str) -> None:
    assert SECRET not in show_text(text)
    assert SECRET not in show(OPEN, {"it": text})
    assert SECRET not in show(OPEN, {"it": {text: 1}}), "as a key"


@pytest.mark.parametrize("text", ["https://example.com/path?page=2", "a: b=c", "time 12:30:15", "--output file.txt", "task-1 sk-1"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert show_text(text) == text


@pytest.mark.parametrize("text", ["a=" * 500, "a" * 1000, "https:" * 200, "-- " * 400, "--a " * 300, "://" * 400, "cookie:" * 150])
def test_looking_for_them_takes_no_time(text: str) -> None:
    began = time.process_time()
    for _ in range(10):
        show_text(text)
    assert time.process_time() - began < 2


LIST = {"type": "object", "properties": {"it": {"type": "array", "items": {"type": "string", "writeOnly": True}}}}
PAIR = {"type": "object", "properties": {"it": {"type": "array", "prefixItems": [{"type": "integer"}, {"writeOnly": True}]}}}
EITHER = {
    "type": "object",
    "properties": {"it": {"anyOf": [{"$ref": "#/$defs/key"}, {"type": "null"}]}},
    "$defs": {"key": {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}}},
}


@pytest.mark.parametrize(
    ("schema", "it"),
    [(LIST, SECRET), (LIST, {"0": SECRET}), (PAIR, [SECRET, SECRET]), (PAIR, SECRET), (EITHER, SECRET), (EITHER, [SECRET])],
)
def test_a_secret_in_the_wrong_place_is_hidden(schema: dict[str, Any], it: Any) -> None:
    assert SECRET not in show(schema, {"it": it})


def test_where_nothing_is_secret_what_is_wrong_is_shown() -> None:
    schema = {"type": "object", "properties": {"it": {"type": "integer"}}}
    assert show(schema, {"it": "five"}) == '{"it":"five"}'
    assert show(LIST, {"it": ["x"]}) == f'{{"it":["{HIDDEN}"]}}'


@pytest.mark.parametrize(
    ("reference", "definition"),
    [
        ({"$ref": "#key"}, {"$anchor": "key"}),
        ({"$dynamicRef": "#key"}, {"$dynamicAnchor": "key"}),
        ({"$ref": "other"}, {"$id": "other"}),
        ({"$ref": "#/$defs/key"}, {}),
    ],
)
def test_a_mark_counts_behind_every_kind_of_reference(reference: dict[str, Any], definition: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"it": reference}, "$defs": {"key": {**definition, "type": "string", "writeOnly": True}}}
    assert SECRET not in show(schema, {"it": SECRET})
