"""What `ctx.sample` sends, and the address that `ctx.elicit_url` sends."""

from typing import Any

import msgspec
import pytest
from oracles import mcp_types_validate

from callboard.server.sampling import Sampled, build_sampling
from callboard.types import (
    ImageContent,
    ModelHint,
    ModelPreferences,
    SamplingMessage,
    TextContent,
    Tool,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
    assistant,
    link,
    user,
)


def use(name: str) -> ToolUseContent:
    return ToolUseContent(id=name, name="count", input={})


def result(name: str) -> ToolResultContent:
    return ToolResultContent(tool_use_id=name, content=[TextContent(text="1")])


def message(role: Any, *blocks: Any) -> SamplingMessage:
    return SamplingMessage(role=role, content=list(blocks))


def test_a_text_is_a_message_of_the_users() -> None:
    # SM-03
    assert build_sampling("Hi", 10, {}) == {"maxTokens": 10, "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}]}
    assert build_sampling(["Hi", "there"], 10, {})["messages"][1]["content"]["text"] == "there"


def test_messages_as_of_a_prompt_are_taken() -> None:
    params = build_sampling([user("Hi"), assistant("Hello"), "And?"], 10, {})
    assert [(each["role"], each["content"]["text"]) for each in params["messages"]] == [
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "And?"),
    ]
    assert build_sampling(user("Hi"), 10, {})["messages"] == params["messages"][:1]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (TextContent(text="Hi"), r"messages\[0\] is a text, .*, not TextContent"),
        (["Hi", {"role": "user", "content": "Hi"}], r"messages\[1\] is a text, .*, not dict"),
        (5, r"messages\[0\] is a text, .*, not int"),
        (user(link("https://board.example", name="a")), r"ctx.sample: .*resource_link"),
    ],
)
def test_what_is_no_message_is_named(messages: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        build_sampling(messages, 10, {})


def test_every_option_goes_along() -> None:
    # SM-02, SM-03
    params = build_sampling(
        "Hi",
        10,
        {
            "system_prompt": "Be brief.",
            "temperature": 0.5,
            "stop_sequences": ["."],
            "model_preferences": ModelPreferences(hints=[ModelHint(name="small")], cost_priority=1),
            "tools": [Tool(name="count", input_schema={"type": "object"})],
            "tool_choice": ToolChoice(mode="auto"),
            "include_context": "none",
            "metadata": {"a": 1},
        },
    )
    mcp_types_validate("CreateMessageRequestParams", params)
    assert set(params) == {
        "maxTokens",
        "messages",
        "systemPrompt",
        "temperature",
        "stopSequences",
        "modelPreferences",
        "tools",
        "toolChoice",
        "includeContext",
        "metadata",
    }


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_token": 1}, "max_token"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [1]}, "tools"),
        ({"tools": [print]}, "ctx.sample"),
    ],
)
def test_a_wrong_option_is_named(options: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        build_sampling("Hi", 10, options)


@pytest.mark.parametrize(
    ("conversation", "named"),
    [
        ([message("user", result("a"), TextContent(text="x"))], r"messages\[0\].*nothing else"),
        ([message("assistant", use("a")), "And?"], r"messages\[1\]"),
        ([message("assistant", use("a"), use("b")), message("user", result("a"))], r"messages\[1\]"),
        ([message("user", result("a"))], r"messages\[0\]"),
        ([message("assistant", use("a"))], "last message"),
    ],
)
def test_tool_uses_and_their_results_belong_together(conversation: Any, named: str) -> None:
    # SM-05
    with pytest.raises(ValueError, match=named):
        build_sampling(conversation, 10, {})


def test_a_conversation_with_tools_is_sent() -> None:
    # SM-05
    params = build_sampling(["Count", message("assistant", use("a"), use("b")), message("user", result("a"), result("b"))], 10, {})
    mcp_types_validate("CreateMessageRequestParams", params)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (TextContent(text="a"), "a"),
        ([TextContent(text="a"), use("x"), TextContent(text="b")], "ab"),
        (ImageContent(data="AA==", mime_type="image/png"), ""),
    ],
)
def test_the_text_of_what_was_said_is_at_hand(content: Any, text: str) -> None:
    # SM-06
    plain = msgspec.to_builtins({"role": "assistant", "model": "m", "content": content})
    assert msgspec.convert(plain, Sampled).text == text
