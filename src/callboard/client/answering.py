"""Answers what a server of 2025 asks of its client: by the same callbacks that answer `inputRequests` of the current protocol."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from callboard.client.errors import InputRequired, InvalidAnswer, InvalidRequest, Origin
from callboard.client.inputs import Inputs
from callboard.errors import REASONS, Reason
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RawRequest, encode_error, encode_result
from callboard.wire.versions import FEATURES, SERVER_REQUESTS

__all__ = ["answer_request"]

logger = logging.getLogger("callboard.client")

_METHOD_NOT_FOUND = REASONS[Reason.METHOD_NOT_FOUND].code
_INVALID_PARAMS = REASONS[Reason.INVALID_PARAMS].code
_INTERNAL = REASONS[Reason.INTERNAL].code
REFUSED = -1
"""EC-16: the code by which a client says that somebody did not want it."""


async def answer_request(request: RawRequest, inputs: Inputs, version: str, origin: Origin) -> bytes:
    """Answer one request of the server's.

    Args:
        request: The request.
        inputs: The client's callbacks.
        version: Protocol version of the session.
        origin: Names the server.

    Returns:
        The response, encoded. What a callback raises is logged; the server hears only that there is no answer.
    """
    method = request.method
    if method == "ping":  # LC-08
        return encode_result(request.id, {})
    if version not in SERVER_REQUESTS.get(method, ()) and not (method in _SINCE_2024 and version not in FEATURES):
        return encode_error(request.id, _METHOD_NOT_FOUND, f"This client does not know {method}.")
    try:
        asked = {"method": method, "params": msgspec.json.decode(request.params) if request.params is not None else {}}
        result = (await inputs.answer({"ask": asked}, origin))["ask"]
        return encode_result(request.id, _lower(method, result, version))
    except InputRequired:
        # EC-17, EC-18
        code = _INVALID_PARAMS if method == "elicitation/create" else _METHOD_NOT_FOUND
        return encode_error(request.id, code, f"This client did not declare that it answers {method}.")
    except InvalidAnswer as error:
        return encode_error(request.id, _INVALID_PARAMS, error.text)
    except (InvalidRequest, Exception) as error:
        logger.warning("%s: %s was not answered", origin.target, method, exc_info=error)
        refused = method == "sampling/createMessage" and not isinstance(error, InvalidRequest)
        return encode_error(request.id, REFUSED if refused else _INTERNAL, "The client did not answer.")


_SINCE_2024 = frozenset({"roots/list", "sampling/createMessage"})


def _lower(method: str, result: Any, version: str) -> Any:
    """Put an answer as the version has it."""
    features = FEATURES.get(version)
    if method == "sampling/createMessage" and (features is None or not features.sampling_tools):
        return _lower_message(result)
    if method == "elicitation/create" and features is not None and not features.elicitation_lists and result.content:
        lists = [name for name, value in result.content.items() if isinstance(value, list)]
        if lists:  # EL-07
            raise InvalidRequest(f"{lists[0]} is a list, which protocol {version} has no place for", Origin(""))
    return result


def _lower_message(result: v.CreateMessageResult) -> v.CreateMessageResult:
    """Before 2025-11-25 a message has one block."""
    content = result.content
    if isinstance(content, list):
        if len(content) != 1:
            raise InvalidRequest("the model wrote several blocks, which the server's protocol has no place for", Origin(""))
        return msgspec.structs.replace(result, content=content[0])
    return result
