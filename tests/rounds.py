"""A client of the current protocol that answers what calls ask, round after round."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from asgi_driver import JSON, Answer, Application, Client, make_meta, make_request

EVERYTHING: Final[JSON] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
BOUND: Final = 100  # rounds, past which no test goes

Respond = Callable[[str, JSON], JSON | None]
"""Takes the key and the request; gives the result, or None for no answer this time."""


def accept(**content: Any) -> JSON:
    """A form that was filled in."""
    return {"action": "accept", "content": content}


def sampled(text: str) -> JSON:
    """What a model said."""
    return {"role": "assistant", "content": {"type": "text", "text": text}, "model": "m"}


class Rounds:
    """Calls that go on until they have an end.

    Args:
        app: The application.
        respond: Answers what is asked.
        capabilities: What the client declares.
        principal: Who it is, as the application's `principal` reads it from the ASGI state.

    Attributes:
        asked: What was asked in each round of the last call, by key.
        states: The `requestState` of each.
    """

    def __init__(
        self, app: Application, respond: Respond, *, capabilities: Mapping[str, Any] = EVERYTHING, principal: str | None = None
    ) -> None:
        self.client = Client(app, state={"principal": principal})
        self.respond = respond
        self.capabilities = capabilities
        self.asked: list[JSON] = []
        self.states: list[str] = []

    async def once(self, method: str, params: Mapping[str, Any], **meta: Any) -> Answer:
        """One round."""
        message = make_request(method, params, request_id=len(self.asked) + 1, meta=make_meta(self.capabilities, **meta))
        return await self.client.post(message)

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Answer:
        """Call a tool, through all rounds."""
        return await self.run("tools/call", {"name": tool, "arguments": dict(arguments or {})})

    async def run(self, method: str, params: Mapping[str, Any]) -> Answer:
        """Send a request, through all rounds."""
        self.asked, self.states = [], []
        more: JSON = {}
        while True:
            assert len(self.asked) < BOUND
            answer = await self.once(method, {**params, **more})
            if "result" not in answer.message or answer.result.get("resultType") != "input_required":
                return answer
            requests = answer.result.get("inputRequests", {})
            self.asked.append(requests)
            self.states.append(answer.result["requestState"])
            responses = {key: self.respond(key, request) for key, request in requests.items()}
            more = {
                "inputResponses": {key: result for key, result in responses.items() if result is not None},
                "requestState": answer.result["requestState"],
            }
