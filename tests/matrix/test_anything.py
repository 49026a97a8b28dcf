"""Invariant: whatever a client sends, it gets one valid HTTP response, and never anything that only the log may have."""

import asyncio
import json
from typing import Any

from asgi_driver import LATEST, META_PREFIX, Answer, Client, make_headers, make_meta
from desk import Desk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import asgi
from callboard.wire.methods import METHODS

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NAMES = st.sampled_from(["echo", "count", "stow", "refuse", "crash", "greet", "desk://rules", "desk://note/x", "file:///a", "nobody", ""])
KEYS = st.sampled_from(
    ["name", "uri", "arguments", "text", "to", "bay", "region", "who", "ref", "argument", "type", "value", "cursor", "notifications"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXT, inner, max_size=4),
    max_leaves=8,
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | VALUES,
        "uri": NAMES | VALUES,
        "arguments": st.dictionaries(KEYS, VALUES, max_size=3) | VALUES,
        "cursor": TEXT | VALUES,
        "ref": st.fixed_dictionaries({"type": st.sampled_from(["ref/prompt", "ref/resource"]), "name": NAMES, "uri": NAMES}) | VALUES,
        "argument": st.fixed_dictionaries({"name": KEYS, "value": TEXT}) | VALUES,
        "context": VALUES,
        "inputResponses": VALUES,
        "requestState": VALUES,
        "task": VALUES,
    },
)
METAS = st.just(make_meta()) | st.fixed_dictionaries(
    {},
    optional={
        f"{META_PREFIX}protocolVersion": st.just(LATEST) | VALUES,
        f"{META_PREFIX}clientCapabilities": st.just({}) | VALUES,
        f"{META_PREFIX}clientInfo": st.just({"name": "a", "version": "1"}) | VALUES,
        f"{META_PREFIX}logLevel": st.sampled_from(["debug", "emergency"]) | VALUES,
        "progressToken": TEXT | VALUES,
    },
)
# Listening streams do not end by themselves; they have tests of their own.
METHOD_NAMES = st.sampled_from(sorted(METHODS.keys() - {"subscriptions/listen"}))
CLIENT = Client(asgi(Desk().server))
QUIET = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check(answer: Answer, request_id: Any) -> None:
    """What every answer is; that its messages are valid has been checked on the way."""
    assert answer.status in {200, 400, 404}
    assert b"hunter2" not in answer.body
    assert b"Traceback" not in answer.body
    (last,) = [message for message in answer.messages if "method" not in message]
    assert last is answer.message
    assert last["id"] == request_id
    assert type(last["id"]) is type(request_id)
    if "error" in last:
        assert last["error"]["code"] in {-32602, -32601, -32603, -32020, -32022}


@QUIET
@given(METHOD_NAMES, PARAMS, METAS, st.integers() | TEXT)
def test_any_params_have_an_answer(method: str, params: dict[str, Any], meta: Any, request_id: Any) -> None:
    # JR-02, JR-08, EC-04, TL-13
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}
    headers = make_headers(message)
    check(asyncio.run(CLIENT.send(json.dumps(message).encode(), headers, method=method)), request_id)


@QUIET
@given(
    st.dictionaries(
        st.sampled_from(["mcp-method", "mcp-name", "mcp-protocol-version", "mcp-param-region", "accept", "x-other"]),
        st.binary(max_size=12) | st.sampled_from([b"tools/call", b"stow", LATEST.encode(), b"eu", b"=?base64?ZXU=?="]),
    )
)
def test_any_headers_have_an_answer(changed: dict[str, bytes]) -> None:
    # HH-06, HH-18, HH-19, SA13
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "stow", "arguments": {"bay": 1, "region": "eu"}, "_meta": make_meta()},
    }
    headers = {**{name: value.encode() for name, value in make_headers(message, mcp_param_region="eu").items()}, **changed}
    raw = [(name.encode(), value) for name, value in headers.items()]
    answer = asyncio.run(CLIENT.send(json.dumps(message).encode(), raw, method="tools/call"))
    assert answer.status in {200, 400, 406}
    if answer.status == 400:
        assert answer.error["code"] == -32020


@QUIET
@given(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_body_has_an_answer(body: bytes) -> None:
    # SA01, SA02, SA03, SA04, JR-09
    answer = asyncio.run(CLIENT.send(body, make_headers({"method": "x"})))
    assert answer.status in {202, 400}
    if answer.status == 400 and answer.error["code"] == -32700:
        assert "id" not in answer.message
