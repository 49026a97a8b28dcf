"""The generated vocabulary against the protocol's own examples, its JSON Schema, the published models, and vectors of ours."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    definitions,
    faults,
    mcp_types_notification,
    mcp_types_request,
    mcp_types_result,
    mcp_types_validate,
    schema_dir,
    shared_schema,
    validate,
)

from callboard.wire import v2026_07_28 as wire
from tools.generate_wire import INLINE, UNTAGGED

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "wire.json").read_text("utf-8"))
STRUCTS = {
    name: kind
    for name, kind in vars(wire).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
}
# Where the JSON Schema looks inside and our Structs don't: an open map keeps what it does not know, and raw bytes wait for their decoder.
OPEN = {"_meta", "inputResponses", "requestedSchema", "inputSchema", "outputSchema"}
RAW = {
    ("CallToolRequest", "arguments"),
    ("CallToolRequestParams", "arguments"),
    ("CallToolResultResponse", "result"),
    ("GetPromptResultResponse", "result"),
    ("JSONRPCResultResponse", "result"),
    ("ReadResourceResultResponse", "result"),
}
OPAQUE_DEFINITIONS = UNTAGGED | {
    "EnumSchema",
    "InputResponse",
    "InputResponses",
    "MultiSelectEnumSchema",
    "PrimitiveSchemaDefinition",
    "SingleSelectEnumSchema",
}
# What requests of the current protocol must say of themselves, and requests of 2025 need not: the current era demands it (MT-04).
OPTIONAL = {"$ref": "#/$defs/RequestMetaObject"}
# Constants and values with a default: may be absent on the way in, are there on the way out.
ALWAYS_SENT = {"cacheScope", "jsonrpc", "method", "mode", "resultType", "ttlMs", "type"}


def examples() -> list[Any]:
    """Every example file of the protocol, as (type, value)."""
    folder = schema_dir()
    if folder is None:
        return [pytest.param("", None, marks=shared_schema, id="examples")]
    files = sorted((folder / "examples-2026-07-28").rglob("*.json"))
    return [pytest.param(path.parent.name, json.loads(path.read_text("utf-8")), id=f"{path.parent.name}-{path.stem}") for path in files]


def decode(name: str, value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=getattr(wire, name))


def plain(value: Any) -> Any:
    """What goes over the wire for `value`, as plain JSON values."""
    return json.loads(msgspec.json.encode(value))


def with_mode(value: Any) -> Any:
    """`value` with the mode that an elicitation has when it names none (EL-03)."""
    if isinstance(value, list):
        return [with_mode(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: with_mode(item) for key, item in value.items()}
    return {"mode": "form", **found} if "requestedSchema" in value else found


def vectors(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "vector", [pytest.param(vector, id=f"{vector['type']}-{index}") for index, vector in enumerate(VECTORS[kind])]
    )


# --- examples and vectors ---


@pytest.mark.parametrize(("name", "value"), examples())
def test_the_protocols_examples_survive_a_round_trip(name: str, value: Any) -> None:
    known = {key: item for key, item in value.items() if (name, key) != ("ListRootsRequest", "id")}  # only the example has one
    assert with_mode(plain(decode(name, value))) == with_mode(known)


@vectors("same")
def test_our_vectors_survive_a_round_trip(vector: dict[str, Any]) -> None:
    assert plain(decode(vector["type"], vector["value"])) == vector["value"]


@shared_schema
@vectors("same")
def test_our_vectors_are_valid_by_the_schema(vector: dict[str, Any]) -> None:
    found = faults(vector["type"], vector["value"])
    # EL-07: the schema's source allows a fraction here, the published schema does not.
    assert found == (
        ["$['content']['size']: 1.5 is not valid under any of the schemas listed in the 'anyOf' keyword"]
        if vector["type"] == "ElicitResult"
        else []
    )


@vectors("becomes")
def test_what_is_absent_gets_its_default_and_what_is_unknown_goes(vector: dict[str, Any]) -> None:
    assert plain(decode(vector["type"], vector["value"])) == vector["becomes"]


@vectors("refused")
def test_what_is_wrong_is_refused_by_name(vector: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        decode(vector["type"], vector["value"])
    assert vector["naming"] in str(caught.value)


@shared_schema
@vectors("refused")
def test_what_we_refuse_the_schema_refuses(vector: dict[str, Any]) -> None:
    name = vector["type"]
    value = {"completion": vector["value"], "resultType": "complete"} if name == "Completion" else vector["value"]
    assert faults("CompleteResult" if name == "Completion" else name, value)


def test_absence_and_null_differ() -> None:
    """TL-09: `structuredContent: null` is a result, its absence is none."""
    assert decode("CallToolResult", {"content": []}).structured_content is msgspec.UNSET
    assert decode("CallToolResult", {"content": [], "structuredContent": None}).structured_content is None


def test_arguments_and_envelope_wait_for_their_own_decoder() -> None:
    params = msgspec.json.decode(b'{"_meta":{"a" : 1},"name":"x","arguments":{"n": 1.0, "n": 2}}', type=wire.CallToolRequestParams)
    assert (bytes(params.meta or b""), bytes(params.arguments or b"")) == (b'{"a" : 1}', b'{"n": 1.0, "n": 2}')


def test_numbers_keep_their_kind() -> None:
    value = decode("ProgressNotificationParams", {"progressToken": 1, "progress": 1, "total": 2.0})
    assert msgspec.json.encode(value) == b'{"progress":1,"progressToken":1,"total":2.0}'


# --- against the JSON Schema, definition by definition ---


def resolve(path: str) -> Any:
    """The schema at a path such as `Name.property.items[]`, with the parts of an `allOf` merged."""
    name, *steps = path.replace("[]", ".[]").split(".")
    found = merged(definitions()[name])
    for step in steps:
        found = merged(found["items"] if step == "[]" else found["properties"][step])
    return found


def merged(schema: Any) -> Any:
    """An `allOf` as one object; a reference as what it refers to."""
    if "$ref" in schema:
        return merged(definitions()[schema["$ref"].rpartition("/")[2]])
    if "allOf" not in schema:
        return schema
    parts = [merged(part) for part in schema["allOf"]]
    return {
        "type": "object",
        "properties": {key: value for part in parts for key, value in part["properties"].items()},
        "required": sorted({key for part in parts for key in part.get("required", [])}),
    }


@shared_schema
def test_every_definition_has_a_name_and_every_struct_a_definition() -> None:
    assert not set(definitions()) - set(vars(wire))
    assert set(STRUCTS) - set(definitions()) == set(INLINE.values())


@shared_schema
@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_structs_have_the_schemas_properties(name: str) -> None:
    path = next((path for path, given in INLINE.items() if given == name), name)
    schema = resolve(path)
    config = STRUCTS[name].__struct_config__
    fields = msgspec.structs.fields(STRUCTS[name])
    ours = {field.encode_name for field in fields} | ({config.tag_field} if config.tag_field else set())
    sent = {field.encode_name for field in fields if field.required or field.default is not msgspec.UNSET} | (
        {config.tag_field} if config.tag_field else set()
    )
    if name == "ElicitRequestParams":  # a union without a tag as one Struct, its mode always sent (EL-03)
        assert (ours, sent) == ({"message", "mode", "requestedSchema", "url"}, {"message", "mode"})
    else:
        union = {"text", "blob"} if name == "ResourceContents" else set()  # as above
        assert ours == set(schema["properties"]) | union
        assert sent == {key for key in schema.get("required", []) if schema["properties"][key] != OPTIONAL}


def sample(schema: Any, *, full: bool) -> Any:
    """A value that is valid by `schema`: with every property, or with the required ones only."""
    schema = merged(schema)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], full=full)
    kind = schema.get("type", "boolean")
    if kind == "object":
        return sample_object(schema, full=full)
    if kind == "array":
        return [sample(item, full=False) for item in variants(schema["items"])] if full else []
    return {"string": "s", "integer": 1, "number": 0.5, "boolean": False}[kind if isinstance(kind, str) else kind[-1]]


def sample_object(schema: Any, *, full: bool) -> Any:
    keys = schema.get("properties", {}) if full else schema.get("required", [])
    found = {key: sample(schema["properties"][key], full=full) for key in keys}
    values = schema.get("additionalProperties")
    if full and values and not found:
        return {f"k{index}": sample(item, full=False) for index, item in enumerate(variants(values))}
    return found


def variants(schema: Any) -> list[Any]:
    """The members of a union; what is no union by itself."""
    schema = merged(schema)
    return [schema] if "anyOf" not in schema or "JSONObject" in str(schema["anyOf"][0]) else schema["anyOf"]


def breakages(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every way to drop one property, to make it null, or to make it another type: (path, broken value)."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from ((inner, [*value[:index], broken, *value[index + 1 :]]) for inner, broken in breakages(item, path))
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        here = (*path, key)
        rest = {other: kept for other, kept in value.items() if other != key}
        yield (*here, "absent"), rest
        yield (*here, "null"), {**rest, key: None}
        yield (*here, "wrong"), {**rest, key: [[]] if isinstance(item, dict) else {"?": {}}}
        yield from ((inner, {**value, key: broken}) for inner, broken in breakages(item, here))


def decodable() -> pytest.MarkDecorator:
    names = sorted(set(definitions()) - OPAQUE_DEFINITIONS) if schema_dir() else []
    return pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in names] or [pytest.param("", marks=shared_schema)])


def accepted(name: str, path: tuple[str, ...]) -> bool:
    """Whether we take on purpose what the schema refuses at `path`, whose last step says what was done there."""
    *keys, done = path
    parents, key = keys[:-1], keys[-1]
    return (
        bool(OPEN & set(keys))
        or any((name, step) in RAW for step in keys)
        or (done == "absent" and key in ALWAYS_SENT)
        or (done == "absent" and key in {"text", "blob"} and parents[-1:] in (["resource"], ["contents"]))  # one Struct for the union
        or (done == "null" and key == "k0")  # the published schema leaves null out of JSONValue
        or (name == "ElicitRequest" and key in {"requestedSchema", "url"})
    )


@decodable()
@pytest.mark.parametrize("full", [True, False], ids=["full", "minimal"])
def test_structs_accept_what_the_schema_accepts_and_keep_it(name: str, *, full: bool) -> None:
    value = sample(definitions()[name], full=full)
    validate(name, value)
    assert with_mode(plain(decode(name, value))) == with_mode(value)


@decodable()
def test_structs_refuse_what_the_schema_refuses(name: str) -> None:
    disputed = []
    for path, broken in breakages(sample(definitions()[name], full=True)):
        refused = bool(faults(name, broken))
        try:
            decode(name, broken)
        except msgspec.ValidationError:
            if not refused:
                disputed.append(("we alone refuse", path))
        else:
            if refused and not accepted(name, path):
                disputed.append(("the schema alone refuses", path))
    assert not disputed


# --- what we make, as others read it ---

TOOL = wire.Tool(name="stow", input_schema={"type": "object"}, annotations=wire.ToolAnnotations(read_only_hint=True))
MESSAGE = wire.PromptMessage(role="user", content=wire.TextContent(text="hi"))
RESULTS = {
    "completion/complete": ("CompleteResult", wire.CompleteResult(completion=wire.Completion(values=["a"], total=1, has_more=False))),
    "prompts/get": ("GetPromptResult", wire.GetPromptResult(messages=[MESSAGE])),
    "prompts/list": ("ListPromptsResult", wire.ListPromptsResult(prompts=[wire.Prompt(name="p", arguments=[wire.PromptArgument(name="a", required=True)])])),
    "resources/list": ("ListResourcesResult", wire.ListResourcesResult(resources=[wire.Resource(name="r", uri="yard://r", size=3)], next_cursor="")),
    "resources/read": ("ReadResourceResult", wire.ReadResourceResult(contents=[wire.ResourceContents(uri="yard://r", text="t"), wire.ResourceContents(uri="yard://r", blob="AA==")])),
    "resources/templates/list": ("ListResourceTemplatesResult", wire.ListResourceTemplatesResult(resource_templates=[wire.ResourceTemplate(name="t", uri_template="yard://{r}")])),
    "server/discover": ("DiscoverResult", wire.DiscoverResult(supported_versions=["2026-07-28"], capabilities=wire.ServerCapabilities(tools=wire.ToolsCapability(list_changed=True)))),
    "subscriptions/listen": ("SubscriptionsListenResult", wire.SubscriptionsListenResult(meta={"io.modelcontextprotocol/subscriptionId": 20})),
    "tools/call": ("CallToolResult", wire.CallToolResult(content=[wire.EmbeddedResource(resource=wire.ResourceContents(uri="yard://r", text="t"))], structured_content=[3])),
    "tools/list": ("ListToolsResult", wire.ListToolsResult(tools=[TOOL], ttl_ms=1000, cache_scope="public")),
}  # fmt: skip
ASKS = wire.InputRequiredResult(
    input_requests={
        "ok": wire.ElicitRequest(params=wire.ElicitRequestParams(message="?", requested_schema={"type": "object", "properties": {}})),
        "go": wire.ElicitRequest(params=wire.ElicitRequestParams(message="?", mode="url", url="https://example.com/go")),
        "say": wire.CreateMessageRequest(
            params=wire.CreateMessageRequestParams(
                max_tokens=9, messages=[wire.SamplingMessage(role="user", content=[wire.TextContent(text="hi")])]
            )
        ),
        "dirs": wire.ListRootsRequest(),
    },
    request_state="sealed",
)


@pytest.mark.parametrize("method", RESULTS)
def test_a_peer_reads_the_results_we_make(method: str) -> None:
    name, result = RESULTS[method]
    read = mcp_types_result(method, plain(result))
    assert (type(read).__name__, read.result_type) == (name, "complete")


@shared_schema
@pytest.mark.parametrize("method", RESULTS)
def test_the_results_we_make_are_valid(method: str) -> None:
    name, result = RESULTS[method]
    validate(name, plain(result))


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
def test_a_peer_reads_what_we_ask(method: str) -> None:
    read = mcp_types_result(method, plain(ASKS))
    assert {key: (type(ask).__name__, type(ask.params).__name__) for key, ask in read.input_requests.items()} == {
        "ok": ("ElicitRequest", "ElicitRequestFormParams"),
        "go": ("ElicitRequest", "ElicitRequestURLParams"),
        "say": ("CreateMessageRequest", "CreateMessageRequestParams"),
        "dirs": ("ListRootsRequest", "NoneType"),
    }


@shared_schema
def test_what_we_ask_is_valid() -> None:
    validate("InputRequiredResult", plain(ASKS))


def test_a_peer_reads_the_requests_and_notifications_we_make() -> None:
    meta = wire.RequestMetaObject(protocol_version="2026-07-28", client_capabilities=wire.ClientCapabilities(), log_level="debug")
    params = wire.CallToolRequestParams(name="stow", arguments=msgspec.Raw(b'{"bay":1}'), meta=msgspec.Raw(msgspec.json.encode(meta)))
    read = mcp_types_request("tools/call", plain(params))
    assert (read.params.name, read.params.arguments) == ("stow", {"bay": 1})
    ack = wire.SubscriptionsAcknowledgedNotificationParams(
        notifications=wire.SubscriptionFilter(tools_list_changed=True), meta={"io.modelcontextprotocol/subscriptionId": "s"}
    )
    heard = mcp_types_notification("notifications/subscriptions/acknowledged", plain(ack))
    assert heard.params.notifications.tools_list_changed is True


# Type of a vector -> what mcp 2.3.0 calls it.
PEERS_NAMES = {
    "ClientRequest": "JSONRPCRequest",
    "CreateMessageResult": "CreateMessageResultWithTools",
    "JSONRPCErrorResponse": "JSONRPCError",
    "RequestMetaObject": "RequestParams",
    "ServerNotification": "JSONRPCNotification",
}


@vectors("same")
def test_a_peer_reads_our_vectors(vector: dict[str, Any]) -> None:
    value = vector["value"]
    if vector["type"] == "RequestMetaObject":
        value = {"_meta": value}
    if vector["type"] == "JSONRPCErrorResponse":
        value = {"id": None, **value}  # mcp 2.3.0 wants the key that the protocol leaves out (JR-09)
    name = PEERS_NAMES.get(vector["type"], vector["type"])
    assert mcp_types_validate(name, value) is not None


# --- properties ---

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
unset = st.just(msgspec.UNSET)
maps = st.dictionaries(st.text(), json_values, max_size=3)
annotations = st.builds(
    wire.Annotations,
    audience=unset | st.lists(st.sampled_from(["user", "assistant"]), max_size=2),
    priority=unset | st.floats(0, 1) | st.integers(0, 1),
)
texts = st.builds(wire.TextContent, text=st.text(), annotations=unset | annotations, meta=unset | maps)
contents = st.builds(wire.ResourceContents, uri=st.just("a:b"), text=st.text(), mime_type=unset | st.text()) | st.builds(
    wire.ResourceContents, uri=st.just("a:b"), blob=st.just("AAEC"), meta=unset | maps
)
blocks = (
    texts
    | st.builds(wire.ImageContent, data=st.just("AAEC"), mime_type=st.just("image/png"))
    | st.builds(wire.ResourceLink, name=st.text(), uri=st.just("a:b"), size=unset | st.integers(0, 2**60))
    | st.builds(wire.EmbeddedResource, resource=contents, annotations=unset | annotations)
)
call_results = st.builds(
    wire.CallToolResult,
    content=st.lists(blocks, max_size=4),
    structured_content=unset | json_values,
    is_error=unset | st.booleans(),
    meta=unset | maps,
)
tools = st.builds(
    wire.Tool,
    name=st.text(),
    input_schema=maps.map(lambda properties: {"type": "object", "properties": properties}),
    title=unset | st.text(),
    annotations=unset | st.builds(wire.ToolAnnotations, idempotent_hint=unset | st.booleans(), title=unset | st.text()),
    icons=unset | st.lists(st.builds(wire.Icon, src=st.just("data:,"), theme=unset | st.sampled_from(["dark", "light"])), max_size=2),
)
envelopes = st.builds(
    wire.RequestMetaObject,
    protocol_version=st.text(),
    client_capabilities=st.builds(
        wire.ClientCapabilities,
        roots=unset | st.just({}),
        elicitation=unset | st.builds(wire.ElicitationCapability, url=unset | st.just({})),
    ),
    client_info=unset | st.builds(wire.Implementation, name=st.text(), version=st.text(), website_url=unset | st.just("a:b")),
    progress_token=unset | st.text() | st.integers(-(2**63), 2**64 - 1),
)
answers = st.builds(
    wire.ElicitResult,
    action=st.sampled_from(["accept", "decline", "cancel"]),
    content=unset | st.dictionaries(st.text(), st.text() | st.integers(-9, 9) | st.booleans() | st.lists(st.text()), max_size=3),
)


@given(st.one_of(call_results, tools, envelopes, answers))
@settings(max_examples=300, deadline=None)
def test_what_is_sent_is_read_back_equal(value: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


@shared_schema
@given(st.one_of(call_results, tools, envelopes, answers))
@settings(max_examples=150, deadline=None)
def test_what_is_sent_is_valid(value: msgspec.Struct) -> None:
    validate(type(value).__name__, plain(value))


@given(call_results)
@settings(max_examples=100, deadline=None)
def test_a_peer_reads_every_call_result(value: wire.CallToolResult) -> None:
    read = mcp_types_result("tools/call", plain(value))
    assert len(read.content) == len(value.content)
