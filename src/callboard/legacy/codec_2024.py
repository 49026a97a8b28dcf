"""Protocol version 2024-11-05, for the clients of HTTP+SSE: those that know no other transport speak no other version.

It is 2025-03-26 without batches, and with audio as an embedded resource. What else 2025-03-26 brought (annotations of tools, messages of
progress, the capability `completions`) are optional fields, which older clients pass over.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callboard.core.era import Request
from callboard.core.outcome import Outcome, Reply
from callboard.legacy.codec import Codec
from callboard.wire.jsonrpc import RequestId, encode
from callboard.wire.versions import LEGACY

__all__ = ["VERSION", "Codec2024"]

VERSION = "2024-11-05"


class Codec2024(Codec):
    """The era of 2024-11-05.

    Args:
        supported: Versions that the endpoint serves, for error texts.
    """

    __slots__ = ()

    def __init__(self, *, supported: tuple[str, ...]) -> None:
        Codec.__init__(self, LEGACY[-1], supported=supported)
        self.version = VERSION
        self.features = msgspec.structs.replace(self.features, batching=False)

    def render(self, request_id: RequestId | None, outcome: Outcome, request: Request | None) -> tuple[int, bytes]:
        """Encode an outcome; see `Codec`."""
        status, answer = Codec.render(self, request_id, outcome, request)
        if isinstance(outcome, Reply) and b'"audio"' in answer:
            message = msgspec.json.decode(answer)
            result = message["result"]
            for holder in (result, *result.get("messages", ())):
                if "content" in holder:
                    holder["content"] = _embed_audio(holder["content"])
            answer = encode(message)
        return status, answer


def _embed_audio(content: Any) -> Any:
    if isinstance(content, list):
        return [_embed_audio(block) for block in content]
    if content.get("type") != "audio":
        return content
    rest = {key: value for key, value in content.items() if key not in {"data", "mimeType"}}
    return {**rest, "type": "resource", "resource": {"uri": "urn:mcp:audio", "mimeType": content["mimeType"], "blob": content["data"]}}
