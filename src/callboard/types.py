"""The protocol's vocabulary under one roof, and short ways to make content.

The types are `msgspec.Struct`s of the current protocol (`callboard.wire.v2026_07_28`). Attributes are snake_case; what is absent is
`UNSET`, which is not `None`: `None` is JSON's null. The functions make the usual pieces of a tool's or prompt's answer:

    return [text("Two charts."), image(png, "image/png"), embed("report://7", "# Report", mime_type="text/markdown")]
"""

import re
from binascii import b2a_base64
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, UnsetType

from callboard.errors import ToolError
from callboard.wire.v2026_07_28 import (
    Annotations,
    AudioContent,
    CallToolResult,
    ClientCapabilities,
    CompleteResult,
    Completion,
    CompletionContext,
    ContentBlock,
    CreateMessageRequestParams,
    CreateMessageResult,
    DiscoverResult,
    ElicitationCapability,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    EmbeddedResource,
    GetPromptResult,
    Icon,
    ImageContent,
    Implementation,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListRootsResult,
    ListToolsResult,
    LoggingLevel,
    LoggingMessageNotificationParams,
    ModelHint,
    ModelPreferences,
    ProgressNotificationParams,
    Prompt,
    PromptArgument,
    PromptListChangedNotification,
    PromptMessage,
    PromptReference,
    PromptsCapability,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceLink,
    ResourceListChangedNotification,
    ResourcesCapability,
    ResourceTemplate,
    ResourceTemplateReference,
    ResourceUpdatedNotification,
    ResourceUpdatedNotificationParams,
    Role,
    Root,
    SamplingCapability,
    SamplingMessage,
    SamplingMessageContentBlock,
    ServerCapabilities,
    SubscriptionFilter,
    TextContent,
    Tool,
    ToolAnnotations,
    ToolChoice,
    ToolListChangedNotification,
    ToolResultContent,
    ToolsCapability,
    ToolUseContent,
)

__all__ = [
    "UNSET",
    "Annotations",
    "Answer",
    "AudioContent",
    "CallToolResult",
    "ClientCapabilities",
    "CompleteResult",
    "Completion",
    "CompletionContext",
    "Content",
    "CreateMessageRequestParams",
    "CreateMessageResult",
    "DiscoverResult",
    "ElicitRequestFormParams",
    "ElicitRequestParams",
    "ElicitRequestURLParams",
    "ElicitResult",
    "ElicitationCapability",
    "EmbeddedResource",
    "GetPromptResult",
    "Icon",
    "ImageContent",
    "Implementation",
    "ListPromptsResult",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ListRootsResult",
    "ListToolsResult",
    "LoggingLevel",
    "LoggingMessageNotificationParams",
    "ModelHint",
    "ModelPreferences",
    "ProgressNotificationParams",
    "Prompt",
    "PromptArgument",
    "PromptListChangedNotification",
    "PromptMessage",
    "PromptReference",
    "PromptsCapability",
    "ReadResourceResult",
    "Resource",
    "ResourceContents",
    "ResourceLink",
    "ResourceListChangedNotification",
    "ResourceTemplate",
    "ResourceTemplateReference",
    "ResourceUpdatedNotification",
    "ResourceUpdatedNotificationParams",
    "ResourcesCapability",
    "Role",
    "Root",
    "SamplingCapability",
    "SamplingMessage",
    "SamplingMessageContentBlock",
    "Secret",
    "ServerCapabilities",
    "SubscriptionFilter",
    "TextContent",
    "Tool",
    "ToolAnnotations",
    "ToolChoice",
    "ToolListChangedNotification",
    "ToolResultContent",
    "ToolUseContent",
    "ToolsCapability",
    "UnsetType",
    "assistant",
    "audio",
    "embed",
    "image",
    "link",
    "text",
    "user",
]

Content: TypeAlias = ContentBlock
"""One block of a tool's result or of a prompt's message (TL-18)."""

_T = TypeVar("_T")


class _WriteOnly:
    """Says in pydantic's schemas what `Meta` says in msgspec's."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core), "writeOnly": True}


Secret: TypeAlias = Annotated[_T, Meta(extra_json_schema={"writeOnly": True}), _WriteOnly()]
"""An argument whose value stands in no log, not even at DEBUG: `token: Secret[str]`. Its schema says `writeOnly`."""

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:\S+")  # RFC 3986: a scheme, then something without blanks
_MEDIA_TYPE = re.compile(r"([A-Za-z]+)/[\w!#$&^.+\-]+(\s*;.*)?", re.ASCII)


class Answer(Generic[_T]):
    """What a user answered to `ctx.elicit` or `ctx.elicit_url`.

    Attributes:
        action: `accept`, `decline` (the user said no) or `cancel` (the user said nothing).
    """

    __slots__ = ("_value", "action")

    def __init__(self, action: Literal["accept", "decline", "cancel"], value: _T | None = None) -> None:
        self.action: Literal["accept", "decline", "cancel"] = action
        self._value = value

    @property
    def accepted(self) -> bool:
        """Whether the user accepted."""
        return self.action == "accept"

    @property
    def value(self) -> _T:
        """What the user filled in; None for an address that was opened.

        Raises:
            ToolError: The user did not accept; a tool that does not catch it fails in band (EL-15).
        """
        if self.action != "accept":
            raise ToolError("The user declined." if self.action == "decline" else "The user gave no answer.")
        return self._value  # type: ignore[return-value] # None only where _T is

    def __repr__(self) -> str:
        return f"Answer({self.action!r})"  # the value is the user's


def text(value: str, /, *, annotations: Annotations | None = None, meta: dict[str, Any] | None = None) -> TextContent:
    """Make a text block.

    Args:
        value: The text, as it is.
        annotations: For whom it is and how much it matters.
        meta: The block's `_meta`.
    """
    return TextContent(text=value, annotations=_given(annotations), meta=_given(meta))


def image(data: bytes, mime_type: str, *, annotations: Annotations | None = None, meta: dict[str, Any] | None = None) -> ImageContent:
    """Make an image block from raw bytes.

    Args:
        data: The file's bytes, not base64: that is done here.
        mime_type: For example `image/png`.
        annotations: For whom it is and how much it matters.
        meta: The block's `_meta`.

    Raises:
        TypeError: `data` is a string.
        ValueError: `mime_type` is not that of an image.
    """
    _require_media("image", mime_type)
    return ImageContent(
        data=_base64("image() takes raw bytes", data), mime_type=mime_type, annotations=_given(annotations), meta=_given(meta)
    )


def audio(data: bytes, mime_type: str, *, annotations: Annotations | None = None, meta: dict[str, Any] | None = None) -> AudioContent:
    """Make an audio block from raw bytes.

    Args:
        data: The file's bytes, not base64: that is done here.
        mime_type: For example `audio/wav`.
        annotations: For whom it is and how much it matters.
        meta: The block's `_meta`.

    Raises:
        TypeError: `data` is a string.
        ValueError: `mime_type` is not that of audio.
    """
    _require_media("audio", mime_type)
    return AudioContent(
        data=_base64("audio() takes raw bytes", data), mime_type=mime_type, annotations=_given(annotations), meta=_given(meta)
    )


def link(
    uri: str,
    *,
    name: str,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    size: int | None = None,
    icons: list[Icon] | None = None,
    annotations: Annotations | None = None,
    meta: dict[str, Any] | None = None,
) -> ResourceLink:
    """Make a block that points to a resource, which the client may read later. Clients of 2025-03-26 don't know it.

    Args:
        uri: Where the resource is; it need not be among the listed ones (TL-19).
        name: Its name for programs.
        title: Its name for people.
        description: What it holds.
        mime_type: What reading it gives.
        size: Of the raw content, in bytes.
        icons: To show beside it.
        annotations: For whom it is and how much it matters.
        meta: The block's `_meta`.

    Raises:
        ValueError: `uri` is not absolute.
    """
    return ResourceLink(
        uri=_require_absolute(uri),
        name=name,
        title=_given(title),
        description=_given(description),
        mime_type=_given(mime_type),
        size=_given(size),
        icons=_given(icons),
        annotations=_given(annotations),
        meta=_given(meta),
    )


def embed(
    uri: str,
    content: str | bytes,
    *,
    mime_type: str | None = None,
    annotations: Annotations | None = None,
    meta: dict[str, Any] | None = None,
) -> EmbeddedResource:
    """Make a block that holds a resource's content.

    Args:
        uri: The resource's address.
        content: Text as `str`, anything else as raw bytes: base64 is done here.
        mime_type: For example `text/markdown`.
        annotations: For whom it is and how much it matters.
        meta: The block's `_meta`.

    Raises:
        TypeError: `content` is neither text nor bytes.
        ValueError: `uri` is not absolute.
    """
    contents = ResourceContents(uri=_require_absolute(uri), mime_type=_given(mime_type))
    if isinstance(content, str):
        contents.text = content
    else:
        contents.blob = _base64("embed() takes text or raw bytes", content)
    return EmbeddedResource(resource=contents, annotations=_given(annotations), meta=_given(meta))


def user(content: Content | str, /) -> PromptMessage:
    """Make a prompt's message that the user speaks; a string becomes a text block."""
    return PromptMessage(role="user", content=TextContent(text=content) if isinstance(content, str) else content)


def assistant(content: Content | str, /) -> PromptMessage:
    """Make a prompt's message that the model speaks; a string becomes a text block."""
    return PromptMessage(role="assistant", content=TextContent(text=content) if isinstance(content, str) else content)


def _given(value: _T | None) -> _T | UnsetType:
    return UNSET if value is None else value


def _base64(demand: str, data: object) -> str:
    if not isinstance(data, bytes | bytearray | memoryview):
        way_out = " (for base64 that you already have, make the content's type itself)" if isinstance(data, str) else ""
        raise TypeError(f"{demand}, not {type(data).__name__}{way_out}")
    return b2a_base64(data, newline=False).decode("ascii")


def _require_media(kind: str, mime_type: str) -> None:
    match = _MEDIA_TYPE.fullmatch(mime_type)
    if match is None or match[1].lower() != kind:
        raise ValueError(f"{kind}() needs a media type like '{kind}/{'png' if kind == 'image' else 'wav'}', got {mime_type!r}")


def _require_absolute(uri: str) -> str:
    if _ABSOLUTE.fullmatch(uri) is None:
        raise ValueError(f"a resource's URI is absolute and has no blanks, as in 'docs://guide/start'; got {uri!r}")
    return uri
