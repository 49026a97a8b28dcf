"""Requests of the current protocol over HTTP: ids, versions, methods, envelopes, mirrored headers."""

import asyncio
import json
from typing import Any

import pytest
from asgi_driver import LATEST, META_PREFIX, Answer, Client, make_headers, make_meta, make_request
from desk import Desk
from legacy_driver import V03, V06, V11, Legacy

from callboard import asgi

VERSION = f"{META_PREFIX}protocolVersion"


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def client(desk: Desk) -> Client:
    return Client(asgi(desk.server))


# Ids


@pytest.mark.parametrize("request_id", ["1", 1, "01", "é", "", 0, -1, 2**53 + 1, "x" * 5000])
async def test_an_id_comes_back_as_it_was(client: Client, request_id: Any) -> None:
    # A25, JR-02, JR-08
    answers = [
        await client.call("echo", {"text": "a"}, request_id=request_id),
        await client.call("nobody", request_id=request_id),
        await client.request("ping", request_id=request_id),
        await client.call("crash", request_id=request_id),
        await client.call("count", {"to": 1}, request_id=request_id, meta=make_meta(progressToken=1)),
        await client.request("tools/list", request_id=request_id, mcp_protocol_version="1999-01-01"),
    ]
    for answer in answers:
        assert answer.message["id"] == request_id
        assert type(answer.message["id"]) is type(request_id)


async def test_requests_with_one_id_do_not_disturb_each_other(client: Client) -> None:
    # JR-21, A10: an id is unique for its sender, not for the server
    answers = await asyncio.gather(*(client.call("echo", {"text": f"n{n}"}, request_id=7) for n in range(20)))
    assert [answer.text for answer in answers] == [f"n{n}" for n in range(20)]


# Versions


async def test_the_version_may_be_written_with_white_space_around(client: Client) -> None:
    # HH-08
    assert (await client.request("tools/list", mcp_protocol_version=f" {LATEST}\t")).status == 200


@pytest.mark.parametrize("version", ["1900-01-01", "2031-01-01", "2025-11-25", "2024-11-05"])
@pytest.mark.parametrize(("versions", "supported"), [(None, [LATEST, V11, V06, V03]), ([V11, LATEST], [LATEST, V11]), ([LATEST], [LATEST])])
async def test_an_unsupported_version_is_told_what_is_supported(
    desk: Desk, version: str, versions: list[str] | None, supported: list[str]
) -> None:
    # SA18, EC-07, VN-05, VN-10, HM-18: in an envelope a version of 2025 is none, for those have no form of a single request
    meta = {**make_meta(), VERSION: version}
    client = Client(asgi(desk.server, versions=versions))
    answer = await client.request("tools/list", meta=meta, mcp_protocol_version=version)
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": supported, "requested": version}
    assert (await client.request("server/discover")).result["supportedVersions"] == supported


@pytest.mark.parametrize(
    "header", [pytest.param(None, id="absent"), pytest.param("2031-01-01", id="differs"), pytest.param("2025-11-25", id="legacy")]
)
async def test_a_version_header_that_contradicts_the_body_is_refused(client: Client, header: str | None) -> None:
    # SA11, HH-02, VN-18
    answer = await client.request("tools/list", mcp_protocol_version=header)
    assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32020, 1)


async def test_every_request_stands_for_itself(client: Client) -> None:
    # JR-21, MT-07, VN-04, VN-05
    declared = await client.call("need_sampling", meta=make_meta({"sampling": {}}))
    assert declared.text == "sampled"
    undeclared = await client.call("need_sampling")
    assert (undeclared.status, undeclared.error["code"]) == (400, -32021)
    assert undeclared.error["data"] == {"requiredCapabilities": {"sampling": {}}}


async def test_where_2025_is_not_served_its_clients_get_the_specified_refusal(desk: Desk) -> None:
    # VN-11, VN-18, JR-21
    client = Client(asgi(desk.server, versions=[LATEST]))
    initialize = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}},
    }
    answer = await client.post(initialize, mcp_protocol_version=None, mcp_method=None)
    assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32020, 0)
    assert LATEST in answer.error["message"]
    later = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = await client.post(later, mcp_protocol_version="2025-11-25", mcp_method=None, mcp_session_id="s")
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": [LATEST], "requested": "2025-11-25"}


@pytest.mark.parametrize("version", [None, V03, V06, V11])
async def test_where_2025_is_served_a_request_without_an_envelope_is_one_of_2025(client: Client, version: str | None) -> None:
    # VN-08, VN-18, VN-23, HL-22: it needs a session, and says nothing of headers that only the current protocol has
    answer = await client.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, mcp_protocol_version=version, mcp_method=None)
    assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32600, 1)


async def test_a_2025_client_is_served_beside_current_ones(desk: Desk) -> None:
    # VN-07, VN-08, VN-10
    app = asgi(desk.server)
    for version in (V03, V06, V11):
        session = await Legacy(app, version).connect()
        assert session.version == version
        assert (await session.call("echo", {"text": "old"})).text == "old"
        assert (await Client(app).call("echo", {"text": "new"})).text == "new"
        assert (await session.call("echo", {"text": "old"})).text == "old"
    assert (await Legacy(app, LATEST).connect()).version == V11


# Envelopes


@pytest.mark.parametrize("key", [VERSION, f"{META_PREFIX}clientCapabilities"])
async def test_a_required_key_is_required(client: Client, key: str) -> None:
    # SA19, MT-04, EC-11, HM-18, JR-17
    meta = make_meta()
    del meta[key]
    answer = await client.request("tools/list", meta=meta)
    assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32602, 1)


async def test_the_clients_name_is_not_required_and_changes_nothing(client: Client) -> None:
    # SA19, MT-04, MT-06
    anonymous = await client.request("tools/list")
    named = await client.request("tools/list", meta=make_meta(clientInfo={"name": "evil\u202e", "version": "1"}))
    assert anonymous.status == 200
    assert named.result == anonymous.result


async def test_keys_of_others_in_the_envelope_are_let_through(client: Client) -> None:
    # MT-11, MT-16, EX-08
    meta = {**make_meta(traceparent="garbage", baggage="a=b"), "com.example/x": {"deep": [1]}, "io.modelcontextprotocol/new": 1}
    assert (await client.request("tools/list", meta=meta)).status == 200


@pytest.mark.parametrize("level", ["loud", "WARNING", "", 3, None])
async def test_a_level_that_is_none_is_refused(client: Client, level: Any) -> None:
    # LG-04
    answer = await client.request("tools/list", meta=make_meta(logLevel=level))
    if level is None:
        assert answer.status == 200
    else:
        assert (answer.status, answer.error["code"]) == (400, -32602)


# Methods


@pytest.mark.parametrize(
    "method",
    ["foo/bar", "ping", "initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/get", "tasks/list", ""],
)
async def test_a_method_that_is_none_is_not_found(client: Client, method: str) -> None:
    # SA20, A59, EC-10, HM-17, LC-10, VN-09, DP-05
    headers = make_headers(make_request(method))
    body = json.dumps(make_request(method)).encode()
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    answer = await client.send(body, raw, method=method)
    assert (answer.status, answer.error["code"], answer.message["id"]) == (404, -32601, 1)


async def test_the_protocols_requests_of_servers_are_not_methods(client: Client) -> None:
    # EC-10, HM-17
    for method in ("roots/list", "sampling/createMessage", "elicitation/create"):
        assert (await client.request(method)).status == 404


# Mirrored headers


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        pytest.param({"mcp_method": None}, 400, id="SA12 method absent"),
        pytest.param({"mcp_method": "tools/list"}, 400, id="SA12 method differs"),
        pytest.param({"mcp_method": "Tools/Call"}, 400, id="HH-07"),
        pytest.param({"mcp_name": None}, 400, id="SA12 name absent"),
        pytest.param({"mcp_name": "stow"}, 400, id="SA12 name differs"),
        pytest.param({"mcp_name": "Echo"}, 400, id="HH-07 name"),
        pytest.param({"mcp_name": " echo "}, 200, id="HH-08"),
        pytest.param({"mcp_name": "=?base64?ZWNobw==?="}, 200, id="HH-18"),
        pytest.param({"mcp_name": "=?base64?ZWNobw?="}, 400, id="HH-18 padding"),
        pytest.param({"mcp_name": "echo\x00"}, 400, id="SA13 NUL"),
        pytest.param({"mcp_name": "echo\r\nx-evil: 1"}, 400, id="SA13 CR LF"),
        pytest.param({"mcp_name": "\xe9cho"}, 400, id="SA13 non-ASCII"),
        pytest.param({"mcp_method": "tools/call\r\n"}, 400, id="SA13 method"),
        pytest.param({"mcp_protocol_version": f"{LATEST}\x00"}, 400, id="SA13 version"),
    ],
)
async def test_standard_headers_say_what_the_body_says(desk: Desk, client: Client, changed: dict[str, Any], status: int) -> None:
    # HH-06, HH-07, HH-08, HH-18, SA12, SA13, EC-05, HM-18
    answer = await client.call("echo", {"text": "a"}, **changed)
    assert answer.status == status
    if status == 400:
        assert answer.error["code"] == -32020
        assert answer.message["id"] == 1
        assert desk.calls == []
        assert_clean(answer)


def assert_clean(answer: Answer) -> None:
    """Nothing of what was sent is in a header."""
    for value in answer.headers.values():
        assert value.isprintable()
        assert "evil" not in value


@pytest.mark.parametrize(
    ("region", "header", "status"),
    [
        ("eu", "eu", 200),
        ("eu", None, 400),
        ("eu", "us", 400),
        ("Süd", "=?base64?U8O8ZA==?=", 200),
        (" eu", "=?base64?IGV1?=", 200),
        ("eu", "=?base64?ZXU=?=", 200),
        ("eu", "=?base64?ZX*U?=", 400),
        (None, None, 200),
        (None, "eu", 400),
    ],
)
async def test_mirrored_arguments_say_what_the_body_says(
    desk: Desk, client: Client, region: str | None, header: str | None, status: int
) -> None:
    # HH-18, HH-19, HH-25
    arguments = {"bay": 1} if region is None else {"bay": 1, "region": region}
    answer = await client.call("stow", arguments, mcp_param_region=header)
    assert answer.status == status
    assert desk.calls == (["stow"] if status == 200 else [])


async def test_unknown_mirrored_headers_are_ignored(client: Client) -> None:
    # HH-23
    assert (await client.call("stow", {"bay": 1}, mcp_param_other="x", mcp_other="y")).status == 200


async def test_a_tools_annotation_is_advertised(client: Client) -> None:
    # HH-10
    tools = (await client.request("tools/list")).result["tools"]
    (stow,) = [tool for tool in tools if tool["name"] == "stow"]
    assert stow["inputSchema"]["properties"]["region"]["x-mcp-header"] == "Region"


async def test_an_uri_that_needs_wrapping_is_unwrapped(client: Client) -> None:
    # HH-16, HH-18
    for uri in ("desk://note/Süd", "desk://note/S%C3%BCd"):
        answer = await client.request("resources/read", {"uri": uri})
        assert answer.result["contents"] == [{"uri": uri, "mimeType": "text/plain", "text": "note Süd"}]
