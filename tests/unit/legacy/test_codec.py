"""The 2025 protocols as eras: reading requests and openings by vectors, answering with their codes, whole from function to client."""

import dataclasses
import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Raw
from oracles import mcp_types_request, mcp_types_result, mcp_types_validate, shared_schema, validate

from callboard.core.era import Envelope, Era, Request
from callboard.core.modern import Modern
from callboard.core.outcome import Accepted, CacheHint, Deferred, NeedInput, Outcome, Reply
from callboard.errors import REASONS, RESERVED_CODES, Fail, NotFound, Reason
from callboard.legacy.codec import (
    DEFAULT_LOG_LEVEL,
    Codec,
    LevelParams,
    Opening,
    UriParams,
    lower_capabilities,
    negotiate,
    read_initialize,
    read_level,
    read_uri,
)
from callboard.server.shape import compile_result
from callboard.types import Icon, Implementation, TextContent
from callboard.wire.jsonrpc import Batch, RawNotification, RawRequest, decode, encode
from callboard.wire.methods import METHODS
from callboard.wire.versions import CLIENT_REQUESTS, FEATURES, LATEST, LEGACY, LOG_LEVELS

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "legacy.json").read_text("utf-8"))
SHORT = {"11": "2025-11-25", "06": "2025-06-18", "03": "2025-03-26"}
CODECS = {version: Codec(version) for version in LEGACY}
INFO = Implementation(name="yard", version="1", title="Yard", description="A yard.", website_url="https://yard.example")
# Of the session itself, which its actor serves.
OF_THE_SESSION = {"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}

every_version = pytest.mark.parametrize("version", LEGACY)


def raw(value: Any) -> Raw | None:
    return None if value is None else Raw(json.dumps(value).encode())


def ask(method: str, params: Any = None) -> RawRequest:
    return RawRequest(1, method, raw(params))


def lifted(version: str, method: str, params: Any = None, envelope: Envelope | None = None) -> Request:
    request = CODECS[version].lift(ask(method, params), None, envelope)
    assert isinstance(request, Request), request
    return request


def render(version: str, outcome: Outcome, request: Request | None = None, *, request_id: int | str | None = 7) -> tuple[int, Any]:
    status, body = CODECS[version].render(request_id, outcome, request)
    return status, json.loads(body)


# Requests


def vectors_of(kind: str, outcome: str) -> list[Any]:
    return [
        pytest.param(SHORT[name], vector, id=f"{vector['name']}-{name}")
        for vector in VECTORS[kind]
        for name in vector["version"].split()
        if outcome in vector
    ]


@pytest.mark.parametrize(("version", "vector"), vectors_of("requests", "becomes"))
def test_a_request_is_understood(version: str, vector: dict[str, Any]) -> None:
    # MT-10, PR-01, CP-02, TK-01, MR-01, PG-01, RS-09
    request = lifted(version, vector["method"], vector.get("params"))
    assert (request.id, request.method, request.row) == (1, vector["method"], METHODS[vector["method"]])
    assert json.loads(encode(request.params)) == vector["becomes"]
    token = request.envelope.progress_token
    assert (type(token), token) == (type(vector.get("token")), vector.get("token"))
    assert request.envelope.version == version


@pytest.mark.parametrize(("version", "vector"), vectors_of("requests", "fails"))
def test_a_request_that_can_not_be_understood_is_told_why(version: str, vector: dict[str, Any]) -> None:
    fail = CODECS[version].lift(ask(vector["method"], vector.get("params")), None)
    assert isinstance(fail, Fail)
    assert (fail.reason, fail.text) == (Reason.INVALID_PARAMS, vector["fails"])


@pytest.mark.parametrize(("version", "vector"), vectors_of("requests", "becomes"))
def test_what_is_understood_is_what_a_peer_may_send(version: str, vector: dict[str, Any]) -> None:
    if vector["name"] != "call with unreadable keys of a retry":
        mcp_types_request(vector["method"], vector.get("params", {}), version)


@pytest.mark.parametrize(("version", "method"), list(product(LEGACY, sorted({*CLIENT_REQUESTS, "no/such"}))))
def test_a_version_has_its_methods_and_no_others(version: str, method: str) -> None:
    # VN-09, EC-10
    codec = Codec(version, supported=(LATEST, *LEGACY))
    outcome = codec.lift(ask(method), None)
    served = method in METHODS and version in CLIENT_REQUESTS[method]
    assert served == (
        method not in OF_THE_SESSION | {"server/discover", "subscriptions/listen", "no/such"} and not method.startswith("tasks/")
    )
    if served:
        assert not isinstance(outcome, Fail) or outcome.reason is Reason.INVALID_PARAMS
    else:
        assert isinstance(outcome, Fail)
        assert outcome.reason is Reason.METHOD_NOT_FOUND
        assert version in outcome.text
        assert LATEST in outcome.text, "who asks for what only the current protocol has learns that it is served"


@pytest.mark.parametrize(
    "params", [{"name": "stow", "_meta": {"progressToken": ["secret"]}}, {"name": ["secret"]}, {"name": "stow", "_meta": "secret"}]
)
def test_a_refusal_repeats_nothing_of_the_request(params: Any) -> None:
    fail = CODECS["2025-11-25"].lift(ask("tools/call", params), None)
    assert isinstance(fail, Fail)
    assert "secret" not in fail.text


def test_nobody_knows_a_client_without_a_session() -> None:
    # LG-05, VN-23
    for version, codec in CODECS.items():
        assert codec.base == Envelope(version, {}, client_info=None, log_level=DEFAULT_LOG_LEVEL)
        assert lifted(version, "tools/list").envelope is codec.base


def test_requests_of_a_session_share_what_is_known_of_their_client() -> None:
    known = Envelope("2025-06-18", {"roots": {}}, INFO, "error")
    assert lifted("2025-06-18", "tools/call", {"name": "stow"}, known).envelope is known
    own = lifted("2025-06-18", "tools/call", {"name": "stow", "_meta": {"progressToken": "p", "a": 1}}, known).envelope
    assert own == Envelope("2025-06-18", {"roots": {}}, INFO, "error", "p", Raw(b'{"progressToken": "p", "a": 1}'))
    assert known == Envelope("2025-06-18", {"roots": {}}, INFO, "error")


def test_metadata_of_the_current_protocol_means_nothing() -> None:
    meta = {"io.modelcontextprotocol/logLevel": "debug", "io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}
    envelope = lifted("2025-11-25", "tools/list", {"_meta": meta}).envelope
    assert (envelope.log_level, envelope.capabilities) == (DEFAULT_LOG_LEVEL, {})


def test_headers_go_along() -> None:
    headers = {b"mcp-session-id": b"s"}
    request = CODECS["2025-11-25"].lift(ask("tools/list"), headers)
    assert isinstance(request, Request)
    assert request.headers is headers


@every_version
def test_a_codec_takes_what_the_current_era_leaves(version: str) -> None:
    # VN-08
    codec: Era = CODECS[version]
    headers = {b"mcp-protocol-version": version.encode()}
    for message in (ask("tools/list"), RawNotification("notifications/initialized"), Batch(b"[1]")):
        assert not Modern(None).claims(message, headers)
        assert codec.claims(message, headers)
    assert codec.notice(RawNotification("notifications/initialized"), headers) is None


@pytest.mark.parametrize("version", [LATEST, "2024-11-05", ""])
def test_only_a_2025_version_has_a_codec(version: str) -> None:
    with pytest.raises(ValueError, match="2025-11-25"):
        Codec(version)


@every_version
def test_what_a_version_can_carry_is_at_hand(version: str) -> None:
    # JR-18, JR-20
    assert CODECS[version].features is FEATURES[version]
    assert CODECS[version].features.batching == (version == "2025-03-26")


# Answers


@every_version
def test_a_result_is_in_the_words_of_its_version(version: str) -> None:
    # JR-13, CA-01, TL-07
    value = {"content": [TextContent(text="[1]", meta={"a": 1})], "structuredContent": Raw(b"[1]"), "resultType": "complete"}
    status, answer = render(version, Reply(value, CacheHint(5), wrap=True), lifted(version, "tools/call", {"name": "stow"}))
    expected: dict[str, Any] = {"content": [{"type": "text", "text": "[1]", "_meta": {"a": 1}}], "structuredContent": {"result": [1]}}
    if version == "2025-03-26":
        expected = {"content": [{"type": "text", "text": "[1]"}]}
    assert (status, answer) == (200, {"jsonrpc": "2.0", "id": 7, "result": expected})


@every_version
def test_a_result_of_the_session_itself_goes_out_as_it_is(version: str) -> None:
    # LC-08
    assert render(version, Reply({})) == (200, {"jsonrpc": "2.0", "id": 7, "result": {}})


@every_version
def test_an_id_comes_back_with_its_type(version: str) -> None:
    # JR-02
    assert render(version, Reply({}), request_id="7")[1]["id"] == "7"
    assert render(version, Reply({}), request_id=7)[1]["id"] == 7


@pytest.mark.parametrize(("version", "reason"), list(product(LEGACY, REASONS)), ids=str)
def test_a_failure_has_its_reasons_code_and_status_for_2025_clients(version: str, reason: Reason) -> None:
    # EC-01, EC-02, EC-04, EC-15
    rule = REASONS[reason]
    status, answer = render(version, Fail(reason, data={"a": 1}))
    error = {"code": rule.legacy_code, "message": rule.text, "data": {"a": 1}}
    assert (status, answer) == (rule.legacy_status, {"jsonrpc": "2.0", "id": 7, "error": error})
    known = {-32700, -32600, -32601, -32602, -32603, -32002}
    assert rule.legacy_code in known or rule.legacy_code not in RESERVED_CODES, "no code that only the current protocol defines"


@every_version
def test_a_resource_that_is_not_there_has_a_code_of_its_own(version: str) -> None:
    # RS-09, EC-15
    status, answer = render(version, NotFound("yard://bay/9"))
    error = {"code": -32002, "message": "Resource not found.", "data": {"uri": "yard://bay/9"}}
    assert (status, answer["error"]) == (200, error)


@every_version
def test_an_error_of_the_authors_own_keeps_its_code(version: str) -> None:
    # EC-12
    assert render(version, Fail.custom(7, "No.", [1])) == (
        200,
        {"jsonrpc": "2.0", "id": 7, "error": {"code": 7, "message": "No.", "data": [1]}},
    )


@pytest.mark.parametrize("data", [None, {"a": 1}])
@every_version
def test_an_error_whose_request_was_unreadable_has_no_id_where_it_may(version: str, data: Any) -> None:
    # JR-09, JR-10
    status, answer = render(version, Fail(Reason.PARSE, data=data), request_id=None)
    error = {"code": -32700, "message": REASONS[Reason.PARSE].text, **({} if data is None else {"data": data})}
    without_id = {"jsonrpc": "2.0", "error": error}
    assert (status, answer) == (400, without_id if version == "2025-11-25" else {**without_id, "id": None})


@shared_schema
@every_version
def test_an_error_is_valid_by_the_schema(version: str) -> None:
    # JR-08, JR-10
    name = "JSONRPCErrorResponse" if version == "2025-11-25" else "JSONRPCError"
    for reason in REASONS:
        validate(name, render(version, Fail(reason))[1], version)
    mcp_types_validate("JSONRPCMessage", render(version, Fail(Reason.INTERNAL))[1])


@pytest.mark.parametrize(
    "outcome", [NeedInput({"ok": {"method": "elicitation/create"}}, "s"), Deferred({"taskId": "t"})], ids=["input", "task"]
)
@every_version
def test_what_a_version_has_no_words_for_is_an_error_that_names_it(version: str, outcome: Outcome) -> None:
    # MR-01, TX-05
    status, answer = render(version, outcome)
    assert (status, answer["error"]["code"]) == (200, -32603)
    assert version in answer["error"]["message"]
    assert LATEST in answer["error"]["message"]
    assert answer["error"].keys() == {"code", "message"}


@every_version
def test_what_was_accepted_has_no_answer(version: str) -> None:
    # JR-12
    assert CODECS[version].render(None, Accepted(), None) == (202, b"")


def test_what_is_no_outcome_is_named() -> None:
    with pytest.raises(TypeError, match="middleware gave 'done'"):
        CODECS["2025-11-25"].render(1, "done", None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_what_can_not_be_encoded_is_raised_for_the_guard() -> None:
    with pytest.raises(TypeError):
        CODECS["2025-03-26"].render(
            1, Reply({"content": [{"type": "text", "text": object()}]}), lifted("2025-03-26", "tools/call", {"name": "a"})
        )


# Whole: from an annotation to what a client holds


@dataclasses.dataclass
class Crate:
    weight: int
    inside: "list[Crate]"


RETURNS: list[tuple[Any, list[Any]]] = [
    (Crate, [Crate(1, [Crate(2, [])])]),
    (list[Crate], [[], [Crate(1, [Crate(2, [])])]]),
    (Crate | None, [None, Crate(1, [])]),
    (int | list[Crate], [3, [Crate(1, [])]]),
    (dict[str, Crate], [{}, {"a": Crate(1, [])}]),
    (bool, [True]),
]


@pytest.mark.parametrize(("annotation", "values"), RETURNS, ids=str)
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
def test_a_structured_result_fits_the_schema_that_was_listed(version: str, annotation: Any, values: list[Any]) -> None:
    # TL-07, TL-08
    shape = compile_result(annotation)
    assert shape.output_schema is not None
    tools = Raw(encode([{"name": "a", "inputSchema": {"type": "object"}, "outputSchema": shape.output_schema}]))
    listed = render(version, Reply({"tools": tools}), lifted(version, "tools/list"))[1]["result"]
    mcp_types_result("tools/list", listed, version)
    schema = jsonschema_rs.validator_for(listed["tools"][0]["outputSchema"])
    for value in values:
        content, structured, _ = shape.shape(value)
        reply = Reply({"content": content, "structuredContent": structured}, wrap=shape.output_schema.get("type") != "object")
        result = render(version, reply, lifted(version, "tools/call", {"name": "a"}))[1]["result"]
        schema.validate(result["structuredContent"])
        mcp_types_result("tools/call", result, version)


# Opening


@pytest.mark.parametrize("vector", [each for each in VECTORS["openings"] if "version" in each], ids=lambda vector: vector["name"])
def test_an_opening_is_read_as_far_as_it_can_be(vector: dict[str, Any]) -> None:
    # LC-01, VN-10, VN-20, MT-06
    params = raw(vector.get("params"))
    opening = read_initialize(params, tuple(vector.get("served", LEGACY)))
    assert isinstance(opening, Opening), opening
    assert opening.version == vector["version"]
    assert opening.capabilities == vector.get("capabilities", {})
    assert (None if opening.client_info is None else json.loads(encode(opening.client_info))) == vector.get("client")
    assert bytes(opening.params) == (b"{}" if params is None else bytes(params))


@pytest.mark.parametrize("vector", [each for each in VECTORS["openings"] if "fails" in each], ids=lambda vector: vector["name"])
def test_an_opening_of_the_wrong_types_is_refused(vector: dict[str, Any]) -> None:
    fail = read_initialize(raw(vector["params"]), LEGACY)
    assert isinstance(fail, Fail)
    assert (fail.reason, fail.text) == (Reason.INVALID_PARAMS, vector["fails"])


@pytest.mark.parametrize("value", ["1e3008", "[[-1e400]]", '{"a":{"b":1e999}}'])
@pytest.mark.parametrize("place", ['"more":%s', '"capabilities":{"more":%s}', '"clientInfo":{"name":"t","version":"1","more":%s}'])
def test_an_opening_with_a_number_that_nobody_can_read_is_refused(place: str, value: str) -> None:
    # SA06: the server's functions get all that a client said
    fail = read_initialize(Raw(b"{%s}" % (place % value).encode()), LEGACY)
    assert isinstance(fail, Fail)
    assert fail.reason is Reason.INVALID_PARAMS
    assert "out of range" in fail.text


@pytest.mark.parametrize("requested", ["2025-11-25", "2026-07-28", "2024-11-05", "", None, 5, ["2025-06-18"], {}])
def test_the_counter_offer_is_the_newest_that_is_served(requested: object) -> None:
    # VN-20, VN-10
    assert negotiate(requested, ("2025-06-18", "2025-03-26")) == "2025-06-18"
    assert negotiate(requested, (LATEST, "2025-03-26")) == "2025-03-26"


@pytest.mark.parametrize(("requested", "served"), list(product(LEGACY, [LEGACY, (LATEST, *LEGACY)])))
def test_a_version_that_is_served_is_what_the_client_gets(requested: str, served: tuple[str, ...]) -> None:
    # VN-20
    assert negotiate(requested, served) == requested


OFFERED: dict[str, Any] = {
    "tools": {"listChanged": True},
    "prompts": {},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
    "experimental": {"com.example/x": {"a": 1}},
}
OF_TODAY: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "tasks": {}, "future": {}}


@every_version
def test_a_version_is_offered_what_it_has(version: str) -> None:
    # MT-18, MT-19
    assert lower_capabilities({**OFFERED, **OF_TODAY}) == OFFERED
    assert lower_capabilities({}) == {}


@pytest.mark.parametrize("instructions", [None, "Ask for one bay at a time."])
@every_version
def test_initialize_is_answered_in_the_words_of_the_version(version: str, instructions: str | None) -> None:
    # LC-02, IC-01, MT-20
    info = msgspec.structs.replace(INFO, icons=[Icon(src="https://yard.example/i.png")])
    result = CODECS[version].introduce(info, {**OFFERED, **OF_TODAY}, instructions)
    said: Mapping[str, Any] = {
        "2025-03-26": {"name": "yard", "version": "1"},
        "2025-06-18": {"name": "yard", "version": "1", "title": "Yard"},
        "2025-11-25": json.loads(encode(info)),
    }
    expected = {"protocolVersion": version, "capabilities": OFFERED, "serverInfo": said[version]}
    assert result == (expected if instructions is None else {**expected, "instructions": instructions})
    mcp_types_result("initialize", result, version)


@shared_schema
@every_version
def test_the_answer_to_initialize_is_valid_by_the_schema(version: str) -> None:
    # LC-02
    validate("InitializeResult", CODECS[version].introduce(INFO, OFFERED, "Ask."), version)


# Methods of the session itself


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_a_level_is_one_of_eight(level: str) -> None:
    # LG-03, LG-05
    read = read_level(raw({"level": level, "_meta": {"a": 1}}))
    assert isinstance(read, LevelParams)
    assert (read.level, read.meta) == (level, Raw(b'{"a": 1}'))


@pytest.mark.parametrize("params", [None, {}, {"level": "loud"}, {"level": None}, {"level": 3}, {"level": "INFO"}])
def test_another_level_is_refused_and_the_eight_are_named(params: Any) -> None:
    # LG-05
    fail = read_level(raw(params))
    assert isinstance(fail, Fail)
    assert fail.reason is Reason.INVALID_PARAMS
    assert all(level in fail.text for level in LOG_LEVELS)
    assert "loud" not in fail.text


def test_a_subscription_names_its_resource() -> None:
    # RS-09
    read = read_uri(raw({"uri": "yard://bay/3"}))
    assert isinstance(read, UriParams)
    assert (read.uri, read.meta) == ("yard://bay/3", msgspec.UNSET)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (None, "params: Object missing required field `uri`."),
        ({}, "params: Object missing required field `uri`."),
        ({"uri": 3}, "params: Expected `str`, got `int` - at `$.uri`."),
    ],
)
def test_a_subscription_without_a_resource_is_refused(params: Any, text: str) -> None:
    fail = read_uri(raw(params))
    assert isinstance(fail, Fail)
    assert (fail.reason, fail.text) == (Reason.INVALID_PARAMS, text)


def test_a_body_goes_all_the_way() -> None:
    message = decode(b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"stow","arguments":{"bay":3}}}')
    assert isinstance(message, RawRequest)
    request = CODECS["2025-11-25"].lift(message, None)
    assert isinstance(request, Request)
    assert bytes(request.params.arguments) == b'{"bay":3}'
