"""What no form asks for: secrets, and schemas that are not flat; and forms by a schema of the author's own."""

import json
from typing import Any

import msgspec
import pytest
from forms import DEFAULTS, ENUM_ANSWER, ENUMS, refusals, refused
from pydantic import BaseModel, SecretStr

from callboard.server.form import compile_form

SECRETS = ["password", "newPassword", "password2", "password_confirmation", "api_key", "apiKey", "API-KEY", "access_token", "token",
           "client_secret", "card_number", "creditCard", "cvv", "pin", "private_key"]  # fmt: skip
HARMLESS = ["token_count", "max_tokens", "key", "password_policy", "secretary", "keyboard", "spinner", "card", "author"]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_not_asked_for(name: str) -> None:
    """EL-10: refused, in words that name the way: a form's answer passes through the client's hands."""
    raw = {"type": "object", "properties": {name: {"type": "string"}}}
    assert "elicit_url" in refused(raw)
    assert f"field {name!r}" in refused(raw)
    made = msgspec.defstruct("Login", [("x", str)], rename=lambda _: name)
    assert "elicit_url" in refused(made)


def test_what_only_sounds_like_a_secret_is_asked_for() -> None:
    for name in HARMLESS:
        assert name in compile_form({"type": "object", "properties": {name: {"type": "string"}}}).schema["properties"]
    properties: dict[str, Any] = {"token": {"type": "boolean"}, "secret": {"type": "string", "enum": ["keep", "tell"]}}
    assert compile_form({"type": "object", "properties": properties}).schema["properties"] == properties


def test_secret_types_of_pydantic_are_not_asked_for() -> None:
    """EL-10."""

    class Login(BaseModel):
        word: SecretStr

    assert "elicit_url" in refused(Login)


def test_a_schema_is_sent_as_it_is() -> None:
    """EL-05: also the deprecated `enumNames`, and keywords of the author's own."""
    given_schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {**DEFAULTS, **ENUMS, "odd": {"type": "number", "x-unit": "kg", "exclusiveMinimum": 0}},
        "required": ["untitledSingle"],
    }
    form = compile_form(given_schema)
    assert json.dumps(form.schema) == json.dumps(given_schema)
    assert form.read(ENUM_ANSWER) == {name: node["default"] for name, node in DEFAULTS.items()} | ENUM_ANSWER
    wrong = {"untitledSingle": "x", "legacyEnum": 1, "titledMulti": ["value1", "x"], "odd": 0, "name": 5}
    assert refusals(form, wrong) == {
        "name": "must be a string",
        "untitledSingle": 'must be one of "option1", "option2", "option3"',
        "legacyEnum": 'must be one of "opt1", "opt2"',
        "titledMulti[1]": 'must be "value1" or "value2" or "value3"',
        "odd": "must be a number greater than 0",
    }


def test_formats_of_a_schema_are_checked() -> None:
    properties = {name: {"type": "string", "format": name} for name in ("email", "uri", "date", "date-time")}
    form = compile_form({"type": "object", "properties": properties})
    good = {"email": "a@example.com", "uri": "https://example.com/a", "date": "2026-01-31", "date-time": "2026-01-31T09:30:00"}
    assert form.read(good) == good
    assert set(refusals(form, dict.fromkeys(properties, "x"))) == {"email", "uri", "date", '["date-time"]'}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array"}, '"type": "object"'),
        ({"type": "object"}, '"properties"'),
        ({"type": "object", "properties": {}, "allOf": []}, "allOf"),
        ({"type": "object", "properties": {"a": True}}, "'a'"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, "'a'"),
        ({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, "'a'"),
        ({"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}, "'a'"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}, "'a'"),
        ({"type": "object", "properties": {"a": {"type": "string", "format": "uuid"}}}, "'a'"),
        ({"type": "object", "properties": {"a": {"type": "integer", "enum": [1]}}}, "'a'"),
        ({"type": "object", "properties": {"a": {"type": "string", "enum": ["x"], "enumNames": []}}}, "enumNames"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}}, "regex"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "'required'"),
        ({"type": "object", "properties": {}, "required": "a"}, "'required'"),
        ({"type": "object", "properties": {"a": object()}}, "JSON"),
    ],
)
def test_a_schema_that_is_no_form_is_refused(schema: dict[str, Any], reason: str) -> None:
    """EL-04."""
    assert reason in refused(schema)
