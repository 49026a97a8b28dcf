"""What `ctx.sample` sends: a conversation, held to the rules of the protocol before anything leaves (SM-03, SM-05)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from callboard.wire import v2026_07_28 as v

__all__ = ["Messages", "SampleFields", "Sampled", "build_sampling"]

Messages: TypeAlias = "str | v.SamplingMessage | v.PromptMessage | Sequence[str | v.SamplingMessage | v.PromptMessage]"
"""A conversation; a text is a message of the user's, and `types.user` and `types.assistant` make messages as for a prompt."""


class SampleFields(TypedDict, total=False):
    """The options of `ctx.sample`, as the protocol has them (SM-03)."""

    system_prompt: str
    temperature: float
    stop_sequences: Sequence[str]
    model_preferences: v.ModelPreferences
    tools: Sequence[v.Tool]
    tool_choice: v.ToolChoice
    include_context: Literal["none", "thisServer", "allServers"]
    metadata: Mapping[str, Any]


class Sampled(v.CreateMessageResult, kw_only=True, rename=v.NAMES):
    """What the client's model said: a `types.CreateMessageResult`, with its text at hand."""

    @property
    def text(self) -> str:
        """All the text in it, without what else there is."""
        blocks = self.content if isinstance(self.content, list) else [self.content]
        return "".join(block.text for block in blocks if isinstance(block, v.TextContent))


def build_sampling(messages: Messages, max_tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make the parameters of `sampling/createMessage`.

    Args:
        messages: The conversation.
        max_tokens: Most tokens of the answer.
        fields: Further options.

    Raises:
        TypeError: An option is unknown or of the wrong type.
        ValueError: The conversation breaks a rule: the text says which message.
    """
    if unknown := sorted(fields.keys() - SampleFields.__annotations__.keys()):
        raise TypeError(f"ctx.sample takes no {unknown[0]!r}; it takes {', '.join(SampleFields.__annotations__)}.")
    given = [messages] if isinstance(messages, str) or not isinstance(messages, Sequence) else messages
    conversation = [_read_message(f"messages[{number}]", message) for number, message in enumerate(given)]
    _check_tool_use(conversation)
    params = v.CreateMessageRequestParams(max_tokens=max_tokens, messages=conversation, **fields)
    try:
        plain: dict[str, Any] = msgspec.to_builtins(params)
        msgspec.convert(plain, v.CreateMessageRequestParams)
    except (msgspec.ValidationError, TypeError) as error:
        raise TypeError(f"ctx.sample: {error}") from None
    if not isfinite(plain.get("temperature", 0)):
        raise ValueError("ctx.sample: temperature is a number that JSON can say.")
    return plain


def _read_message(where: str, message: Any) -> v.SamplingMessage:
    if isinstance(message, str):
        return v.SamplingMessage(role="user", content=v.TextContent(text=message))
    if isinstance(message, v.PromptMessage):  # what it may hold that no model takes is refused with the rest
        return v.SamplingMessage(role=message.role, content=message.content)  # type: ignore[arg-type]
    if not isinstance(message, v.SamplingMessage):
        text = 'a text, types.user("text"), types.assistant("text") or a types.SamplingMessage'
        raise TypeError(f"ctx.sample: {where} is {text}, not {type(message).__name__}.")
    return message


def _check_tool_use(conversation: Sequence[v.SamplingMessage]) -> None:
    """SM-05: results stand alone in a message, right after the uses that they belong to."""
    open_uses: set[str] = set()
    for number, message in enumerate(conversation):
        blocks: list[Any] = message.content if isinstance(message.content, list) else [message.content]
        results = {block.tool_use_id for block in blocks if isinstance(block, v.ToolResultContent)}
        if results and not all(isinstance(block, v.ToolResultContent) for block in blocks):
            raise ValueError(f"ctx.sample: messages[{number}] holds a tool result, so it may hold nothing else.")
        if results != open_uses:
            raise ValueError(f"ctx.sample: messages[{number}] must bring a result for each tool use before it, and for nothing else.")
        open_uses = {block.id for block in blocks if isinstance(block, v.ToolUseContent)} if message.role == "assistant" else set()
    if open_uses:
        raise ValueError("ctx.sample: the last message uses tools; add a user message with their results.")
