"""The current era: reading a request's envelope in the specified order of checks, and rendering what comes of it."""

import json
from typing import Any

import msgspec
import pytest
from asgi_driver import META_PREFIX, make_headers, make_meta, make_request

from callboard.core.era import Envelope, Request
from callboard.core.modern import Modern
from callboard.core.outcome import Accepted, CacheHint, Deferred, NeedInput, Outcome, Reply
from callboard.errors import REASONS, Fail, NotFound, Reason
from callboard.types import Implementation
from callboard.wire.jsonrpc import RawNotification, RawRequest, decode
from callboard.wire.methods import METHODS
from callboard.wire.versions import CLIENT_REQUESTS, LATEST

VERSION = f"{META_PREFIX}protocolVersion"
CAPABILITIES = f"{META_PREFIX}clientCapabilities"
MODERN = Modern(Implementation(name="yard", version="1"))


def parse(message: dict[str, Any]) -> RawRequest:
    parsed = decode(json.dumps(message).encode())
    assert isinstance(parsed, RawRequest)
    return parsed


def encode_headers(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode("latin-1") for name, value in headers.items()}


def lift(message: dict[str, Any], **changed: str | None) -> Request | Fail:
    """Lift a request as HTTP brings it, headers changed as said."""
    return MODERN.lift(parse(message), encode_headers(make_headers(message, **changed)))


def lift_without_headers(message: dict[str, Any]) -> Request | Fail:
    return MODERN.lift(parse(message), None)


def reason_of(outcome: object) -> Reason:
    assert isinstance(outcome, Fail), outcome
    return outcome.reason


def without(key: str) -> dict[str, Any]:
    meta = make_meta()
    del meta[key]
    return meta


# Lifting


def test_a_request_says_who_asks_and_what_for() -> None:
    # MT-04, MT-10, MT-11, PR-01
    meta = make_meta(
        {"elicitation": {"form": {}}, "x.example/y": {}},
        clientInfo={"name": "acme", "version": "3.1", "title": "Acme", "unknown": 1},
        logLevel="warning",
        progressToken="p9",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        **{"com.example/own": [1]},
    )
    request = lift(make_request("tools/call", {"name": "stow", "arguments": {"a": 1}}, request_id="i", meta=meta))
    assert isinstance(request, Request)
    assert (request.id, request.method, request.params.name) == ("i", "tools/call", "stow")
    assert request.row is METHODS["tools/call"]
    envelope = request.envelope
    assert (envelope.version, envelope.log_level, envelope.progress_token) == (LATEST, "warning", "p9")
    assert envelope.capabilities == {"elicitation": {"form": {}}, "x.example/y": {}}
    assert (envelope.client_info.name, envelope.client_info.version) == ("acme", "3.1")
    assert envelope.meta is not None
    assert msgspec.json.decode(envelope.meta) == meta


def test_client_info_is_optional() -> None:
    # MT-04, SA19
    request = lift(make_request("tools/list"))
    assert isinstance(request, Request)
    assert request.envelope.client_info is None


def test_without_http_there_are_no_headers_to_check() -> None:
    # HM-23
    request = lift_without_headers(make_request("tools/call", {"name": "stow"}))
    assert isinstance(request, Request)
    assert request.headers is None


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_table_exists_in_this_version(method: str) -> None:
    assert LATEST in CLIENT_REQUESTS[method]


@pytest.mark.parametrize("method", [*sorted(method for method in CLIENT_REQUESTS if method not in METHODS), "foo/bar", "", "TOOLS/LIST"])
def test_other_methods_do_not(method: str) -> None:
    # LC-10, VN-09, DP-05, SA20, A59, EC-10
    assert reason_of(lift(make_request(method))) is Reason.METHOD_NOT_FOUND
    assert reason_of(lift_without_headers(make_request(method))) is Reason.METHOD_NOT_FOUND


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(None, id="no params"),
        pytest.param({}, id="no _meta"),
        pytest.param({"_meta": None}, id="_meta null"),
        pytest.param({"_meta": []}, id="_meta array"),
        pytest.param({"_meta": "x"}, id="_meta string"),
        pytest.param({"_meta": {}}, id="_meta empty"),
        pytest.param({"_meta": without(VERSION)}, id="no version"),
        pytest.param({"_meta": without(CAPABILITIES)}, id="no capabilities"),
        pytest.param({"_meta": {**make_meta(), VERSION: 20260728}}, id="version as number"),
        pytest.param({"_meta": {**make_meta(), VERSION: None}}, id="version null"),
        pytest.param({"_meta": {**make_meta(), CAPABILITIES: []}}, id="capabilities array"),
        pytest.param({"_meta": {**make_meta(), CAPABILITIES: None}}, id="capabilities null"),
        pytest.param({"_meta": make_meta(clientInfo={"name": "x"})}, id="client info without version"),
        pytest.param({"_meta": make_meta(clientInfo="x")}, id="client info as string"),
        pytest.param({"_meta": make_meta(logLevel="loud")}, id="LG-04 unknown level"),
        pytest.param({"_meta": make_meta(logLevel=3)}, id="level as number"),
        pytest.param({"_meta": make_meta(progressToken=1.5)}, id="PR-01 progress token 1.5"),
        pytest.param({"_meta": make_meta(progressToken=True)}, id="PR-01 progress token true"),
        pytest.param({"_meta": make_meta(progressToken={})}, id="PR-01 progress token object"),
    ],
)
def test_a_faulty_envelope_is_invalid_params(params: dict[str, Any] | None) -> None:
    # MT-04, EC-11, HM-18, JR-17, SA19, LG-04, PR-01
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    if params is not None:
        message["params"] = params
    assert reason_of(lift(message)) is Reason.INVALID_PARAMS
    assert reason_of(lift_without_headers(message)) is Reason.INVALID_PARAMS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("meta", [{}, {"_meta": None}, {"_meta": 5}, {"_meta": []}, {"_meta": {}}], ids=str)
def test_no_method_is_served_without_an_envelope(method: str, meta: dict[str, Any]) -> None:
    # MT-04, SA19: params of 2025 have none, so the Structs don't ask for it
    enough = {
        "name": "a",
        "uri": "a:b",
        "notifications": {},
        "ref": {"type": "ref/prompt", "name": "a"},
        "argument": {"name": "a", "value": ""},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**enough, **meta}}
    assert reason_of(lift(message)) is Reason.INVALID_PARAMS
    assert reason_of(lift_without_headers(message)) is Reason.INVALID_PARAMS
    assert isinstance(lift({**message, "params": {**enough, "_meta": make_meta()}}), Request)


def test_a_missing_key_is_named() -> None:
    # MT-04
    for key in (VERSION, CAPABILITIES):
        fail = lift(make_request("tools/list", meta=without(key)))
        assert isinstance(fail, Fail)
        assert key in fail.text
    bare = lift({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert isinstance(bare, Fail)
    assert VERSION in bare.text
    assert CAPABILITIES in bare.text


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": 5}),
        ("tools/list", {"cursor": 5}),
        ("resources/read", {"uri": None}),
        ("prompts/get", {"name": "x", "arguments": {"a": 1}}),
        ("prompts/get", {"name": "x", "arguments": ["a"]}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}}),
        ("completion/complete", {"ref": {"type": "ref/other", "name": "x"}, "argument": {"name": "a", "value": ""}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": 5}}),
        ("subscriptions/listen", {}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": "yes"}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": "a://b"}}),
    ],
)
def test_params_that_do_not_fit_their_method_are_invalid(method: str, params: dict[str, Any]) -> None:
    # TL-13, PM-03, EC-11, SB-01
    fail = lift(make_request(method, params))
    assert reason_of(fail) is Reason.INVALID_PARAMS


def test_a_refusal_does_not_echo_what_was_sent() -> None:
    secret = "hunter2" * 100
    for meta in (make_meta(logLevel=secret), make_meta(progressToken={secret: 1})):
        fail = lift(make_request("tools/list", meta=meta))
        assert isinstance(fail, Fail)
        assert "hunter2" not in fail.text


# The order of checks


@pytest.mark.parametrize(
    ("message", "changed", "reason"),
    [
        pytest.param(make_request("tools/list", meta={**make_meta(), VERSION: "v999"}), {}, Reason.HEADER_MISMATCH, id="HH-02"),
        pytest.param(make_request("tools/list"), {"mcp_protocol_version": "v999"}, Reason.HEADER_MISMATCH, id="HH-02 header"),
        pytest.param(make_request("tools/list"), {"mcp_protocol_version": None}, Reason.HEADER_MISMATCH, id="SA11 absent"),
        pytest.param(make_request("tools/list"), {"mcp_protocol_version": ""}, Reason.HEADER_MISMATCH, id="empty"),
        pytest.param(make_request("tools/list"), {"mcp_protocol_version": "2025-11-25"}, Reason.HEADER_MISMATCH, id="legacy header"),
        pytest.param(
            make_request("tools/list", meta={**make_meta(), VERSION: "v999"}),
            {"mcp_protocol_version": "v999"},
            Reason.VERSION,
            id="agreed but unsupported",
        ),
        pytest.param(
            make_request("nothing", meta={VERSION: "v999"}),
            {"mcp_protocol_version": "v999", "mcp_method": "x"},
            Reason.VERSION,
            id="unsupported wins over incomplete and over method",
        ),
        pytest.param(
            make_request("nothing", meta={VERSION: LATEST}),
            {"mcp_protocol_version": "v999"},
            Reason.HEADER_MISMATCH,
            id="mismatch wins over incomplete",
        ),
        pytest.param(
            make_request("nothing", meta={VERSION: LATEST}), {"mcp_method": "x"}, Reason.INVALID_PARAMS, id="incomplete wins over method"
        ),
        pytest.param(make_request("nothing"), {"mcp_method": "x"}, Reason.HEADER_MISMATCH, id="method header wins over unknown method"),
        pytest.param(make_request("ping"), {"mcp_method": None}, Reason.HEADER_MISMATCH, id="SA12 method absent"),
        pytest.param(make_request("tools/list"), {"mcp_method": "tools/call"}, Reason.HEADER_MISMATCH, id="SA12 method differs"),
        pytest.param(make_request("tools/call", {"name": "x"}), {"mcp_name": None}, Reason.HEADER_MISMATCH, id="SA12 name absent"),
        pytest.param(make_request("tools/call", {"name": "x"}), {"mcp_name": "y"}, Reason.HEADER_MISMATCH, id="SA12 name differs"),
        pytest.param(make_request("prompts/get", {"name": "x"}), {"mcp_name": "y"}, Reason.HEADER_MISMATCH, id="SA12 prompt"),
        pytest.param(make_request("resources/read", {"uri": "a://x"}), {"mcp_name": "a://y"}, Reason.HEADER_MISMATCH, id="SA12 uri"),
    ],
)
def test_checks_come_in_the_specified_order(message: dict[str, Any], changed: dict[str, str | None], reason: Reason) -> None:
    # HH-02, HH-06, EC-05, EC-07, SA11, SA12, VN-05
    assert reason_of(lift(message, **changed)) is reason


@pytest.mark.parametrize(
    ("changed", "fits"),
    [
        pytest.param({"mcp_method": "TOOLS/CALL"}, False, id="HH-07 method case"),
        pytest.param({"mcp_name": "STOW"}, False, id="HH-07 name case"),
        pytest.param({"mcp_method": " tools/call\t"}, True, id="HH-08 method"),
        pytest.param({"mcp_name": "\t stow "}, True, id="HH-08 name"),
        pytest.param({"mcp_protocol_version": f" {LATEST} "}, True, id="HH-08 version"),
        pytest.param({"mcp_name": "=?base64?c3Rvdw==?="}, True, id="HH-18 sentinel"),
        pytest.param({"mcp_name": "=?base64?c3Rvdw?="}, False, id="HH-18 padding"),
        pytest.param({"mcp_name": "=?base64?c3R*dw==?="}, False, id="HH-18 alphabet"),
        pytest.param({"mcp_name": "=?BASE64?c3Rvdw==?="}, False, id="HH-18 marker case"),
        pytest.param({"mcp_name": ""}, False, id="empty"),
        pytest.param({"mcp_name": "stow\x00"}, False, id="SA13 NUL"),
        pytest.param({"mcp_name": "stow\r\nx: y"}, False, id="SA13 CR LF"),
        pytest.param({"mcp_method": "tools/call\x00"}, False, id="SA13 NUL in the method"),
        pytest.param({"mcp_name": "st\xf6w"}, False, id="SA13 latin-1"),
    ],
)
def test_header_values_compare_exactly_but_for_white_space_around(changed: dict[str, str | None], fits: bool) -> None:
    # HH-06, HH-07, HH-08, HH-18, SA13
    outcome = lift(make_request("tools/call", {"name": "stow"}), **changed)
    if fits:
        assert isinstance(outcome, Request)
    else:
        assert reason_of(outcome) is Reason.HEADER_MISMATCH


@pytest.mark.parametrize(
    ("name", "header", "fits"),
    [
        pytest.param("Süd", b"=?base64?U8O8ZA==?=", True, id="wrapped"),
        pytest.param("Süd", "Süd".encode(), False, id="SA13 raw UTF-8"),
        pytest.param("Süd", "Süd".encode("latin-1"), False, id="SA13 raw latin-1"),
        pytest.param("=?base64?YQ==?=", b"=?base64?YQ==?=", False, id="HH-18 a sentinel is decoded, also when it equals the name"),
        pytest.param("=?base64?YQ==?=", b"=?base64?PT9iYXNlNjQ/WVE9PT89?=", True, id="HH-17 wrapped twice"),
        pytest.param("a\x7fb", b"a\x7fb", False, id="SA13 DEL"),
        pytest.param("a\tb", b"a\tb", True, id="tab inside"),
        pytest.param("a b", b"a b", True, id="space inside"),
        pytest.param(" a", b" a", False, id="space at the end is not part of a value"),
        pytest.param("", b"", True, id="empty"),
    ],
)
def test_names_that_need_wrapping_must_be_wrapped(name: str, header: bytes, fits: bool) -> None:
    # HH-16, HH-17, HH-18, SA13
    message = make_request("prompts/get", {"name": name})
    headers = {**encode_headers(make_headers(message)), b"mcp-name": header}
    outcome = MODERN.lift(parse(message), headers)
    assert isinstance(outcome, Request) == fits


@pytest.mark.parametrize("version", ["2031-01-01", "1900-01-01", "2025-11-25", "2024-11-05", "", "é", "x" * 5000])
def test_an_unsupported_version_learns_what_is_supported(version: str) -> None:
    # EC-07, VN-05, SA18, VN-01
    message = make_request("tools/list", meta={**make_meta(), VERSION: version})
    fail = lift_without_headers(message)
    assert isinstance(fail, Fail)
    assert fail.reason is Reason.VERSION
    assert fail.data == {"supported": [LATEST], "requested": version}
    assert LATEST in fail.text


# Requests without an envelope: clients of 2025


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"mcp_protocol_version": None, "mcp_method": None}, Reason.HEADER_MISMATCH, id="VN-18 no header"),
        pytest.param({"mcp_protocol_version": "2025-11-25", "mcp_method": None}, Reason.VERSION, id="legacy header"),
        pytest.param({"mcp_protocol_version": "2031-01-01"}, Reason.VERSION, id="newer header"),
        pytest.param({}, Reason.INVALID_PARAMS, id="current header"),
    ],
)
def test_a_request_without_envelope_learns_what_is_supported(changed: dict[str, str | None], reason: Reason) -> None:
    # VN-11, VN-18, EC-07
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    fail = lift(message, **changed)
    assert reason_of(fail) is reason
    assert isinstance(fail, Fail)
    assert LATEST in fail.text


@pytest.mark.parametrize(
    ("params", "requested"),
    [
        ({"protocolVersion": "2025-06-18", "capabilities": {}}, "2025-06-18"),
        ({"protocolVersion": "x"}, "x"),
        ({"protocolVersion": 5}, "2025-03-26"),
        ({}, "2025-03-26"),
        (None, "2025-03-26"),
    ],
)
def test_initialize_over_a_pipe_learns_what_is_supported(params: dict[str, Any] | None, requested: str) -> None:
    # VN-11, EC-07
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    if params is not None:
        message["params"] = params
    fail = lift_without_headers(message)
    assert isinstance(fail, Fail)
    assert fail.reason is Reason.VERSION
    assert fail.data == {"supported": [LATEST], "requested": requested}


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"])
def test_a_removed_method_with_an_envelope_is_not_found(method: str) -> None:
    # VN-09, DP-05
    assert reason_of(lift(make_request(method, {"protocolVersion": "2025-11-25"}))) is Reason.METHOD_NOT_FOUND


# Claiming and notifications


@pytest.mark.parametrize(
    ("message", "headers", "claimed"),
    [
        pytest.param(make_request("tools/list"), None, True, id="envelope"),
        pytest.param(make_request("initialize"), {"mcp-protocol-version": "2025-11-25"}, True, id="the body counts first"),
        pytest.param(make_request("x", meta={VERSION: 5}), None, True, id="ill-typed version"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, None, False, id="no envelope"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "method": "x"}, {"mcp-protocol-version": LATEST}, True, id="header"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "method": "x"}, {"mcp-protocol-version": "2031-01-01"}, True, id="newer header"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "method": "x"}, {"mcp-protocol-version": "2025-06-18"}, False, id="legacy header"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"_meta": 5}}, {}, False, id="_meta no object"),
        pytest.param({"jsonrpc": "2.0", "method": "x", "params": {"_meta": make_meta()}}, {}, True, id="notification"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "result": {}}, {}, False, id="response"),
    ],
)
def test_a_message_is_claimed_by_its_body_first(message: dict[str, Any], headers: dict[str, str] | None, claimed: bool) -> None:
    # VN-08: its envelope, else the version header
    assert MODERN.claims(decode(json.dumps(message).encode()), None if headers is None else encode_headers(headers)) is claimed


@pytest.mark.parametrize(
    ("params", "headers", "reason"),
    [
        pytest.param({}, None, None, id="no headers"),
        pytest.param({}, {}, None, id="HM-22 none required"),
        pytest.param({"_meta": make_meta()}, {"mcp-protocol-version": LATEST}, None, id="all right"),
        pytest.param({}, {"mcp-method": "notifications/x"}, None, id="method"),
        pytest.param({}, {"mcp-method": "notifications/y"}, Reason.HEADER_MISMATCH, id="method differs"),
        pytest.param({"_meta": make_meta()}, {"mcp-protocol-version": "2025-11-25"}, Reason.HEADER_MISMATCH, id="version differs"),
        pytest.param({"_meta": {VERSION: "v9"}}, {"mcp-protocol-version": "v9"}, Reason.VERSION, id="unsupported"),
    ],
)
def test_a_notifications_headers_are_checked_where_there_are_any(
    params: dict[str, Any], headers: dict[str, str] | None, reason: Reason | None
) -> None:
    # HM-07, HM-22, HH-06
    message = decode(json.dumps({"jsonrpc": "2.0", "method": "notifications/x", "params": params}).encode())
    assert isinstance(message, RawNotification)
    fail = MODERN.notice(message, None if headers is None else encode_headers(headers))
    assert (None if fail is None else fail.reason) is reason


# Rendering


def render(outcome: Outcome, method: str = "tools/call", request_id: Any = 1, era: Modern = MODERN) -> tuple[int, dict[str, Any]]:
    row = METHODS.get(method)
    request = None if row is None else Request(request_id, method, None, row, Envelope(LATEST, {}))
    status, body = era.render(request_id, outcome, request)
    message: dict[str, Any] = json.loads(body)
    assert message["jsonrpc"] == "2.0"
    assert message["id"] == request_id
    return status, message


@pytest.mark.parametrize("method", METHODS)
def test_a_result_says_its_type_its_server_and_how_long_it_keeps(method: str) -> None:
    # JR-13, MT-05, CA-01, CP-06
    status, message = render(Reply({"a": 1}), method)
    result = message["result"]
    cacheable = {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
    assert status == 200
    assert result["resultType"] == "complete"
    assert result["_meta"] == {f"{META_PREFIX}serverInfo": {"name": "yard", "version": "1"}}
    assert ("ttlMs" in result, "cacheScope" in result) == (method in cacheable, method in cacheable)


def test_caching_hints_are_the_replys() -> None:
    # CA-01
    _, message = render(Reply({}, CacheHint(60_000, "public")), "tools/list")
    assert (message["result"]["ttlMs"], message["result"]["cacheScope"]) == (60_000, "public")
    _, message = render(Reply({}), "tools/list")
    assert (message["result"]["ttlMs"], message["result"]["cacheScope"]) == (0, "private")


def test_an_authors_own_meta_stays_beside_the_servers() -> None:
    # MT-05
    _, message = render(Reply({"_meta": {"com.example/x": 1}}))
    assert message["result"]["_meta"].keys() == {"com.example/x", f"{META_PREFIX}serverInfo"}


def test_server_info_can_be_left_out() -> None:
    # MT-05: "unless configured not to"
    _, message = render(Reply({}), era=Modern(None))
    assert "_meta" not in message["result"]


@pytest.mark.parametrize("state", [None, "sealed"])
def test_asking_for_input_is_a_result_of_its_own_type(state: str | None) -> None:
    # JR-13, MR-01, MR-03, MT-05, MR-16
    asked = {"ok": {"method": "elicitation/create", "params": {"mode": "form", "message": "?", "requestedSchema": {"type": "object"}}}}
    status, message = render(NeedInput(asked, state), "resources/read")
    result = message["result"]
    assert (status, result["resultType"], result["inputRequests"]) == (200, "input_required", asked)
    assert result.get("requestState") == state
    assert "ttlMs" not in result
    assert f"{META_PREFIX}serverInfo" in result["_meta"]


def test_work_that_goes_on_elsewhere_is_a_task() -> None:
    # JR-13, JR-16
    _, message = render(Deferred({"taskId": "t", "status": "working"}))
    assert (message["result"]["resultType"], message["result"]["taskId"]) == ("task", "t")


def test_what_was_accepted_has_no_answer() -> None:
    # JR-12, HM-07
    assert MODERN.render(None, Accepted(), None) == (202, b"")


@pytest.mark.parametrize("reason", REASONS)
def test_a_failure_has_its_reasons_code_and_status(reason: Reason) -> None:
    # JR-08, EC-01
    rule = REASONS[reason]
    status, message = render(Fail(reason, data={"a": 1}))
    assert status == rule.status
    assert message["error"] == {"code": rule.code, "message": rule.text, "data": {"a": 1}}


def test_a_missing_resource_names_its_uri() -> None:
    # RS-05, EC-08, EC-11
    _, message = render(NotFound("a://b"))
    assert message["error"]["code"] == -32602
    assert message["error"]["data"] == {"uri": "a://b"}


def test_an_authors_own_code_travels_as_it_is() -> None:
    # EC-12
    status, message = render(Fail.custom(4711, "Out of crates.", [1]))
    assert status == 200
    assert message["error"] == {"code": 4711, "message": "Out of crates.", "data": [1]}


def test_a_failure_without_id_leaves_it_out() -> None:
    # JR-09
    _, body = MODERN.render(None, Fail(Reason.PARSE), None)
    assert "id" not in json.loads(body)


@pytest.mark.parametrize("value", [{"a": {1, 2}.__iter__()}, {"a": "\ud800"}, {"a": object()}])
def test_what_can_not_be_encoded_raises_for_the_crash_guard(value: dict[str, Any]) -> None:
    # SA07
    with pytest.raises((TypeError, UnicodeEncodeError)):
        MODERN.render(1, Reply(value), None)
