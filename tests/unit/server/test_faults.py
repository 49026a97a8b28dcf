"""Faults in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callboard.server.faults import MAX_FAULTS, ArgumentFaults, describe, read_message, show_path
from callboard.server.judge import Judge

DESCRIPTIONS: list[tuple[Any, str]] = [
    ({}, "a value"),
    (True, "what the schema says"),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9}, "an integer greater than 0 less than 9"),
    ({"type": "number", "multipleOf": 0.5}, "a number that is a multiple of 0.5"),
    ({"type": "string", "minLength": 1}, "a string of at least 1 character"),
    ({"type": "string", "maxLength": 9}, "a string of at most 9 characters"),
    ({"type": "string", "minLength": 2, "maxLength": 9}, "a string of 2 to 9 characters"),
    ({"type": "string", "minLength": 2, "maxLength": 2, "pattern": "^a"}, "a string of exactly 2 characters matching ^a"),
    ({"type": "string", "format": "email"}, "an email address"),
    ({"type": "string", "format": "color"}, "a string in the format 'color'"),
    ({"type": "array", "minItems": 1, "uniqueItems": True}, "an array of at least 1 item without repeats"),
    ({"type": "string", "pattern": "a" * 1000}, f"a string matching {'a' * 200}..."),
    ({"const": "b" * 1000}, f'"{"b" * 199}...'),
    ({"type": ["integer", "null"]}, "an integer or null"),
    ({"const": 5}, "5"),
    ({"enum": list(range(30))}, f"one of {', '.join(map(str, range(20)))}, ..."),
    ({"oneOf": [{"type": "string"}, {"type": "string"}, {"type": "boolean"}]}, "a string or true or false"),
    ({"$ref": "#/$defs/Day"}, "an object with city"),
    ({"$ref": "#/$defs/loop"}, "what the schema says"),
    ({"$ref": "#/$defs/none"}, "a value"),
]


@pytest.mark.parametrize(("schema", "text"), DESCRIPTIONS, ids=[text for _, text in DESCRIPTIONS])
def test_expectations_in_words(schema: Any, text: str) -> None:
    root = {"$defs": {"Day": {"type": "object", "required": ["city"]}, "loop": {"$ref": "#/$defs/loop"}}}
    assert describe(schema, root) == text


def test_long_lists_of_faults_are_cut_and_odd_keys_are_quoted() -> None:
    with pytest.raises(ArgumentFaults) as caught:
        raise ArgumentFaults(Judge({"additionalProperties": False}).findings({f"k {at}": at for at in range(1000)})[0])
    lines = str(caught.value).splitlines()
    assert len(lines) == MAX_FAULTS + 2
    assert lines[1].startswith('- ["k 0"]: unknown argument')
    assert lines[-1].startswith("- and ")
    with pytest.raises(ArgumentFaults, match=r"^Arguments are wrong:\n- a: required, missing\n- and there may be more$"):
        raise ArgumentFaults([(("a",), "required, missing")], complete=False)
    assert show_path(["a", 0, "b", "c d", "e" * 100, "\n"]) == f'a[0].b["c d"]["{"e" * 64}"]["\\n"]'


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ("Expected `int`, got `str`", ((), "expected `int`, got `str`", True)),
        ("Expected `int`, got `str` - at `$.a[2].b`", (("a", 2, "b"), "expected `int`, got `str`", True)),
        ("Invalid enum value 'secret' - at `$.a`", (("a",), "expected one of the values that the schema lists", True)),
        ("Expected `int`, got `str` - at `key` in `$[0]`", ((0,), "object key: expected `int`, got `str`", True)),
        ("start must not be after end - at `$.a`", (("a",), "start must not be after end", False)),
        ("two\nlines", ((), "two\nlines", False)),
    ],
)
def test_messages_of_msgspec(message: str, read: Any) -> None:
    assert read_message(msgspec.ValidationError(message)) == read
