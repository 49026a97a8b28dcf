"""What a server asks, in the words of a 2025 protocol, and what its client answers, in those of the current one: pure functions.

| | 2025-11-25 | 2025-06-18 | 2025-03-26 |
|---|---|---|---|
| forms | kept | no `mode`; titled choices as `enum` and `enumNames`; no choice of several | - |
| addresses (`mode: "url"`) | with an `elicitationId` | - | - |
| sampling | kept; `structuredContent` of a tool result is an object | no tools; one block a message | the same, without `_meta` |
| roots | kept | kept | kept |

`-` is a `Fail` that says what to do instead. Parameters that are an older protocol's already stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from callboard.errors import Fail, Reason
from callboard.legacy.lowering import Lowering
from callboard.wire.versions import LEGACY, Features

__all__ = ["lift_answer", "lower_ask"]

_Wire: TypeAlias = dict[str, Any]
_TOOL_BLOCKS = frozenset({"tool_use", "tool_result"})
_lowering = functools.cache(Lowering)


def lower_ask(features: Features, method: str, params: Mapping[str, Any], *, version: str, elicitation_id: str) -> _Wire | Fail:
    """Say a request in the words of a 2025 protocol.

    Args:
        features: What the protocol can carry.
        method: `elicitation/create`, `sampling/createMessage` or `roots/list`; the parameters of another one stay as they are.
        params: Its parameters, in the words of the current protocol. They are not changed.
        version: The protocol's name.
        elicitation_id: Identifies the ask, where the protocol wants that (EL-09).

    Returns:
        The parameters; `MISSING_CAPABILITY` where the protocol has no words for them.
    """
    lower = _LOWER.get(method)
    lowered = dict(params)
    if lower is not None:
        _lowering(features).lower("", lowered)  # `_meta`
        try:
            lowered = lower(version, features, lowered)
        except Fail as fail:
            return fail
    if method == "elicitation/create" and lowered.get("mode") == "url":
        lowered.setdefault("elicitationId", elicitation_id)
    return lowered


def lift_answer(method: str, result: Mapping[str, Any]) -> _Wire:
    """Say a client's result in the words of the current protocol. Whether it is a good answer is for others to see.

    2025 clients write null for what is absent; no result has a null that means anything.

    Args:
        method: The method that it answers.
        result: The result. It is not changed.
    """
    lifted = _without_nulls(result)
    if method == "elicitation/create":
        return _each(lifted, "content", _without_nulls)
    if method == "sampling/createMessage":
        return _each(lifted, "content", _without_nulls)
    if method == "roots/list":
        return _each(lifted, "roots", _without_nulls)
    return dict(result)


def _without_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else value


def _each(holder: _Wire, key: str, change: Callable[[Any], Any]) -> _Wire:
    """Change what a key holds: one thing, or each of a list."""
    value = holder.get(key)
    return holder if value is None else {**holder, key: [change(item) for item in value] if isinstance(value, list) else change(value)}


def _fail(version: str, what: str, way_out: str, required: _Wire | None = None) -> Fail:
    data = None if required is None else {"requiredCapabilities": required}
    return Fail(Reason.MISSING_CAPABILITY, f"Protocol {version}, which this client speaks, {what}: {way_out}.", data)


def _lower_elicitation(version: str, features: Features, params: _Wire) -> _Wire:
    mode = params.get("mode", "form")
    if not features.elicitation:
        raise _fail(version, "can't ask the user", "take what is needed as arguments", {"elicitation": {}})  # EL-01
    if mode not in features.elicitation:  # EL-02
        raise _fail(version, "can't ask the user to open an address", "give the address in a result", {"elicitation": {mode: {}}})
    if features.elicitation_lists:
        return params
    params.pop("mode", None)
    schema = params.get("requestedSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(schema, dict) and isinstance(properties, dict):
        params["requestedSchema"] = {
            **{key: value for key, value in schema.items() if key != "$schema"},
            "properties": {name: _lower_field(version, name, node) for name, node in properties.items()},
        }
    return params


def _lower_field(version: str, name: str, node: Any) -> Any:
    """EL-05."""
    if not isinstance(node, dict):
        return node
    if node.get("type") == "array":
        raise _fail(version, f"can't let the user choose several ({name!r})", "ask for one choice, or for a yes or no to each")
    if "oneOf" not in node:
        return node
    options = node["oneOf"]
    choices = {"enum": [option["const"] for option in options], "enumNames": [option["title"] for option in options]}
    return {key: value for key, value in node.items() if key != "oneOf"} | choices


def _lower_sampling(version: str, features: Features, params: _Wire) -> _Wire:
    if not features.sampling_tools and (params.keys() & {"tools", "toolChoice"}):  # SM-02
        raise _no_tools(version)
    if "tools" in params:
        params["tools"] = _lower_list(features, "tools/list", "tools", params["tools"])
    params["messages"] = [lowered for message in params.get("messages", ()) for lowered in _lower_message(version, features, message)]
    return params


def _lower_message(version: str, features: Features, message: _Wire) -> list[_Wire]:
    """A message; several where each may have one block only."""
    content = message.get("content")
    if not isinstance(content, dict | list):  # none of ours
        return [message]
    blocks = _lower_list(features, "tools/call", "content", [content] if isinstance(content, dict) else content)
    if features.sampling_tools:  # SM-06
        blocks = [_lower_result(features, block) for block in blocks]
        lowered = {**message, "content": blocks[0] if isinstance(content, dict) else blocks}
        _lowering(features).lower("", lowered)
        return [lowered]
    if any(block.get("type") in _TOOL_BLOCKS for block in blocks):
        raise _no_tools(version)
    if version < LEGACY[-1] and any(block.get("type") == "audio" for block in blocks):  # 2024-11-05
        raise _fail(version, "has no audio in sampling", "send text or images")
    return [{"role": message["role"], "content": block} for block in blocks]


def _lower_result(features: Features, block: _Wire) -> _Wire:
    """A tool's result, as the tool itself would have given it to this client (TL-07, TL-18)."""
    if block.get("type") != "tool_result":
        return block
    block = dict(block)
    block["content"] = _lower_list(features, "tools/call", "content", block.get("content", []))
    if not isinstance(block.get("structuredContent", {}), dict):
        block["structuredContent"] = {"result": block["structuredContent"]}
    return block


def _lower_list(features: Features, method: str, key: str, items: list[Any]) -> list[Any]:
    """Lower a list as in a result that has it."""
    holder: _Wire = {key: items}
    _lowering(features).lower(method, holder)
    lowered: list[Any] = holder[key]
    return lowered


def _no_tools(version: str) -> Fail:
    return _fail(version, "has no tools in sampling", "ask without tools, and tell of them in the text", {"sampling": {"tools": {}}})


_LOWER: dict[str, Callable[[str, Features, _Wire], _Wire]] = {
    "elicitation/create": _lower_elicitation,
    "sampling/createMessage": _lower_sampling,
    "roots/list": lambda _, __, params: params,
}
