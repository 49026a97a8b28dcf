"""What a server asks, in the words of each 2025 protocol, held against the published schemas and models; and the answers back."""

import copy
import dataclasses
import json
from enum import Enum
from typing import Any, Final, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import methods
from oracles import faults, shared_schema, validate

from callboard.errors import Fail, Reason
from callboard.legacy.asks import lift_answer, lower_ask
from callboard.legacy.codec_2024 import VERSION as V24
from callboard.server.form import compile_form
from callboard.wire.versions import FEATURES, LEGACY

V11, V06, V03 = LEGACY
ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
REQUESTS: Final = {ELICIT: "ElicitRequest", SAMPLE: "CreateMessageRequest", ROOTS: "ListRootsRequest"}

EXPECTED: Final = {"type": "string", "title": "Size", "description": "How big", "default": "s"}
TITLED: Final = {**EXPECTED, "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]}
PLAIN: Final[dict[str, Any]] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a", "default": "ab"},
    "mail": {"type": "string", "format": "email"},
    "age": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5},
    "share": {"type": "number", "default": 0.5},
    "go": {"type": "boolean", "default": True},
    "status": {"type": "string", "enum": ["on", "off"]},
    "old": {"type": "string", "enum": ["on", "off"], "enumNames": ["On", "Off"]},
}
SEVERAL: Final = {"type": "array", "items": {"type": "string", "enum": ["s", "l"]}, "minItems": 1}
URL: Final = {"mode": "url", "message": "Pay", "url": "https://example.com/pay"}
TEXT: Final = {"type": "text", "text": "hi"}
IMAGE: Final = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
AUDIO: Final = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
USE: Final = {"type": "tool_use", "id": "u1", "name": "add", "input": {"a": None}}
LINK: Final = {"type": "resource_link", "uri": "file:///a", "name": "a", "icons": [{"src": "https://example.com/i.png"}]}
TOOL: Final = {"name": "add", "inputSchema": {"type": "object", "properties": {"a": True}}, "outputSchema": {"type": "integer"}}
ALL_OPTIONS: Final[dict[str, Any]] = {
    "maxTokens": 100,
    "systemPrompt": "Be brief.",
    "temperature": 0.5,
    "stopSequences": ["."],
    "includeContext": "none",
    "metadata": {"x": None},
    "modelPreferences": {"hints": [{"name": "small"}], "costPriority": 1},
}


def form(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": properties, **more}}


def sampling(*messages: Any, **more: Any) -> dict[str, Any]:
    return {**ALL_OPTIONS, "messages": list(messages), **more}


def said(content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def lower(version: str, method: str, params: dict[str, Any]) -> dict[str, Any] | Fail:
    """The lowered params, valid by every oracle of that version; and nothing given is changed."""
    before = copy.deepcopy(params)
    features = FEATURES[V03 if version == V24 else version]
    lowered = lower_ask(features, method, params, version=version, elicitation_id="e-1")
    assert params == before
    if isinstance(lowered, Fail):
        return lowered
    again = lower_ask(features, method, lowered, version=version, elicitation_id="e-2")
    assert again == lowered, "what is lowered stays as it is"
    if version != V24:
        methods.parse_server_request(method, version, lowered)
    return lowered


def lowered(version: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    result = lower(version, method, params)
    assert not isinstance(result, Fail), result
    return result


def refusal(version: str, method: str, params: dict[str, Any]) -> Fail:
    result = lower(version, method, params)
    assert isinstance(result, Fail)
    assert result.reason is Reason.MISSING_CAPABILITY
    assert version in result.text
    return result


ASKS: Final = {
    "form": (ELICIT, form(PLAIN, required=["name"])),
    "form without mode": (ELICIT, {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}),
    "form with $schema": (ELICIT, form({}, **{"$schema": "https://json-schema.org/draft/2020-12/schema"})),
    "titled": (ELICIT, form({"size": TITLED})),
    "several": (ELICIT, form({"sizes": SEVERAL})),
    "titled several": (ELICIT, form({"sizes": {"type": "array", "items": {"anyOf": TITLED["oneOf"]}}})),
    "url": (ELICIT, URL),
    "text": (SAMPLE, sampling(said(TEXT))),
    "many blocks": (SAMPLE, sampling(said([TEXT, IMAGE, AUDIO], _meta={"a": 1}), said({**TEXT, "_meta": {"a": 1}}, "assistant"))),
    "no blocks": (SAMPLE, sampling(said([]), said(TEXT))),
    "annotated": (SAMPLE, sampling(said({**TEXT, "annotations": {"priority": 1, "lastModified": "2026-01-01T00:00:00Z"}}))),
    "tools": (SAMPLE, sampling(said(TEXT), tools=[TOOL], toolChoice={"mode": "auto"})),
    "tool blocks": (
        SAMPLE,
        sampling(
            said(TEXT),
            said([TEXT, USE], "assistant"),
            said([{"type": "tool_result", "toolUseId": "u1", "content": [TEXT, LINK], "structuredContent": 5}]),
        ),
    ),
    "roots": (ROOTS, {}),
    "reserved": (ROOTS, {"_meta": {"io.modelcontextprotocol/x": 1, "mine": 2}}),
}


@shared_schema
@pytest.mark.parametrize("version", LEGACY)
@pytest.mark.parametrize("name", ASKS)
def test_what_is_asked_is_valid_in_the_version(name: str, version: str) -> None:
    """MR-17, EL-04, EL-05, SM-03, RT-02."""
    method, params = ASKS[name]
    result = lower(version, method, params)
    if not isinstance(result, Fail):
        validate(REQUESTS[method], {"jsonrpc": "2.0", "id": 1, "method": method, "params": result}, version)


@shared_schema
@pytest.mark.parametrize("name", ["titled", "several"])
def test_the_lowering_is_needed(name: str) -> None:
    """This keeps the oracle above honest: it does refuse choices in the words of another version."""
    method, params = ASKS[name]
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    properties = params["requestedSchema"]["properties"]
    if name == "several":
        assert faults("ElicitRequest", message, V06)
    else:
        assert "oneOf" in properties["size"], "a StringSchema to the schema of 2025-06-18, without its choices"


@pytest.mark.parametrize(
    ("name", "fitting"),
    [
        ("form", {V11, V06}),
        ("form without mode", {V11, V06}),
        ("titled", {V11, V06}),
        ("several", {V11}),
        ("titled several", {V11}),
        ("url", {V11}),
        ("text", {V11, V06, V03, V24}),
        ("many blocks", {V11, V06, V03}),
        ("tools", {V11}),
        ("tool blocks", {V11}),
        ("roots", {V11, V06, V03, V24}),
    ],
)
def test_which_version_can_ask_what(name: str, fitting: set[str]) -> None:
    """EL-01, EL-02, SM-02: the others say so, and what to do."""
    for version in (*LEGACY, V24):
        result = lower(version, *ASKS[name])
        assert isinstance(result, Fail) == (version not in fitting), version


def test_refusals_name_version_and_way_out() -> None:
    """EL-01, EL-02, EL-05, SM-02."""
    assert "arguments" in refusal(V03, *ASKS["form"]).text
    assert refusal(V03, *ASKS["form"]).data == {"requiredCapabilities": {"elicitation": {}}}
    assert "'sizes'" in refusal(V06, *ASKS["several"]).text
    assert refusal(V06, *ASKS["several"]).data is None, "no capability would help"
    assert refusal(V06, *ASKS["url"]).data == {"requiredCapabilities": {"elicitation": {"url": {}}}}
    for name in ("tools", "tool blocks"):
        assert refusal(V06, *ASKS[name]).data == {"requiredCapabilities": {"sampling": {"tools": {}}}}
    assert "audio" in refusal(V24, *ASKS["many blocks"]).text


def test_forms() -> None:
    """EL-05: 2025-06-18 has no `mode`, and titles in `enumNames`; 2025-11-25 has it all."""
    method, params = ASKS["form"]
    assert lowered(V11, method, params) == params
    assert lowered(V06, method, params) == {key: value for key, value in params.items() if key != "mode"}
    assert lowered(V11, *ASKS["titled"]) == ASKS["titled"][1]
    (size,) = lowered(V06, *ASKS["titled"])["requestedSchema"]["properties"].values()
    assert size == {**EXPECTED, "enum": ["s", "l"], "enumNames": ["Small", "Large"]}
    assert "$schema" not in lowered(V06, *ASKS["form with $schema"])["requestedSchema"]


def test_addresses_have_an_id() -> None:
    """EL-09: 2025-11-25 wants one; an author's own is kept."""
    assert lowered(V11, ELICIT, URL) == {**URL, "elicitationId": "e-1"}
    assert lowered(V11, ELICIT, {**URL, "elicitationId": "mine"})["elicitationId"] == "mine"


def test_messages_of_one_block() -> None:
    """SM-06: before 2025-11-25 a message has one block, so several blocks are several messages; `_meta` came in 2025-06-18."""
    method, params = ASKS["many blocks"]
    assert lowered(V11, method, params) == params
    expected = [said(TEXT), said(IMAGE), said(AUDIO), said({**TEXT, "_meta": {"a": 1}}, "assistant")]
    assert lowered(V06, method, params)["messages"] == expected
    assert lowered(V03, method, params)["messages"] == [*expected[:3], said(TEXT, "assistant")]
    assert lowered(V06, *ASKS["no blocks"])["messages"] == [said(TEXT)]
    (message,) = lowered(V03, *ASKS["annotated"])["messages"]
    assert message["content"]["annotations"] == {"priority": 1}
    for version in LEGACY:
        result = lowered(version, *ASKS["text"])
        assert {key: result[key] for key in ALL_OPTIONS} == ALL_OPTIONS


def test_tools_in_sampling_are_those_of_the_version() -> None:
    """SM-02, TL-07."""
    (tool,) = lowered(V11, *ASKS["tools"])["tools"]
    assert tool["outputSchema"] == {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
    assert tool["inputSchema"]["properties"] == {"a": {}}
    messages = lowered(V11, *ASKS["tool blocks"])["messages"]
    (result,) = messages[2]["content"]
    assert result["structuredContent"] == {"result": 5}
    assert result["content"] == [TEXT, LINK]
    assert messages[1]["content"][1]["input"] == {"a": None}


def test_keys_that_are_reserved_stay_at_home() -> None:
    """MT-05."""
    for version in LEGACY:
        assert lowered(version, *ASKS["reserved"]) == {"_meta": {"mine": 2}}
        assert lowered(version, ROOTS, {"_meta": {"io.modelcontextprotocol/x": 1}}) == {}


@pytest.mark.parametrize("version", [*LEGACY, V24])
def test_other_requests_are_nobodys_business(version: str) -> None:
    features = FEATURES[V03 if version == V24 else version]
    params = {"a": 1, "_meta": {"io.modelcontextprotocol/x": 1}}
    assert lower_ask(features, "ping", params, version=version, elicitation_id="e") == params
    assert lift_answer("ping", {"a": None}) == {"a": None}


def test_nulls_of_a_client_are_absent() -> None:
    """EL-07: no answer has a null that means anything, but clients of 2025 write it for what isn't there."""
    assert lift_answer(ELICIT, {"action": "decline", "content": None, "_meta": None}) == {"action": "decline"}
    assert lift_answer(ELICIT, {"action": "accept", "content": {"a": None, "b": 0}}) == {"action": "accept", "content": {"b": 0}}
    roots = lift_answer(ROOTS, {"roots": [{"uri": "file:///a", "name": None}, {"uri": "file:///b", "_meta": None}], "_meta": None})
    assert roots == {"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}


@pytest.mark.parametrize("content", [TEXT, [TEXT], [TEXT, USE], AUDIO])
def test_what_a_model_said_is_read(content: Any) -> None:
    """SM-06: one block or several, as the version has it."""
    result = {"role": "assistant", "content": content, "model": "m", "stopReason": "toolUse"}
    assert lift_answer(SAMPLE, result) == result
    with_nulls = copy.deepcopy({**result, "_meta": None})
    for block in with_nulls["content"] if isinstance(content, list) else [with_nulls["content"]]:
        block["annotations"] = None
    before = copy.deepcopy(with_nulls)
    assert lift_answer(SAMPLE, with_nulls) == result
    assert with_nulls == before, "nothing given is changed"


@shared_schema
def test_what_is_lifted_is_valid_today() -> None:
    validate(
        "CreateMessageResult", lift_answer(SAMPLE, {"role": "user", "content": {**TEXT, "_meta": None}, "model": "m", "stopReason": None})
    )
    validate("ListRootsResult", lift_answer(ROOTS, {"roots": [{"uri": "file:///a", "name": None}]}))
    validate("ElicitResult", lift_answer(ELICIT, {"action": "cancel", "content": None}))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.sampled_from([ELICIT, SAMPLE, ROOTS]), st.dictionaries(st.sampled_from(["action", "content", "roots", "_meta"]), JSON_VALUES))
def test_any_answer_is_lifted(method: str, result: dict[str, Any]) -> None:
    """Whether it is a good one is for others to see."""
    before = json.dumps(result)
    assert isinstance(lift_answer(method, result), dict)
    assert json.dumps(result) == before


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclasses.dataclass
class Order:
    size: Size
    status: Literal["on", "off"] = "on"
    note: str | None = None


@pytest.mark.parametrize("version", [V11, V06])
def test_a_form_is_asked_and_read_in_every_version(version: str) -> None:
    """EL-05, EL-07: the titled choice goes there and back as the Enum's member."""
    compiled = compile_form(Order)
    params = lowered(version, ELICIT, {"mode": "form", "message": "?", "requestedSchema": compiled.schema})
    assert set(params["requestedSchema"]["properties"]) == {"size", "status", "note"}
    answer = lift_answer(ELICIT, {"action": "accept", "content": {"size": "l", "note": None}})
    assert compiled.read(answer["content"]) == Order(Size.LARGE)
