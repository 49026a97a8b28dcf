"""The transcripts of `vectors/modern.json`, replayed."""

import json
from pathlib import Path
from typing import Any

import pytest
from asgi_driver import META_PREFIX, Client, make_headers, make_meta
from yard import make_yard

from callboard import asgi

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "modern.json").read_text("utf-8"))
SERVER_INFO = {"name": "yard", "version": "0.4"}


def fill(message: dict[str, Any]) -> dict[str, Any]:
    """The request with its envelope written out."""
    meta = message.get("params", {}).get("_meta")
    return message if meta is None else {**message, "params": {**message["params"], "_meta": {**make_meta(), **meta["M"]}}}


def fits(found: Any, expected: Any) -> bool:
    """Whether a message is the expected one, `...` standing for any text."""
    if expected == "...":
        return isinstance(found, str) and found != ""
    if isinstance(expected, dict):
        return isinstance(found, dict) and found.keys() == expected.keys() and all(fits(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(fits, found, expected))
    return type(found) is type(expected) and bool(found == expected)


@pytest.mark.parametrize("transcript", [pytest.param(entry, id=entry["name"]) for entry in VECTORS["transcripts"]])
async def test_the_server_answers_as_written(transcript: dict[str, Any]) -> None:
    # JR-01, JR-08, JR-13, MT-05; each transcript cites its own
    request = fill(transcript["request"])
    headers = {**make_headers(request), **transcript.get("headers", {})}
    client = Client(asgi(make_yard(), versions=transcript.get("versions")))
    sent = {name: value for name, value in headers.items() if value is not None}
    answer = await client.send(json.dumps(request).encode(), sent, method=request.get("method"))
    for message in answer.messages:
        if "result" in message:
            assert message["result"].pop("_meta") == {f"{META_PREFIX}serverInfo": SERVER_INFO}
    assert answer.status == transcript["status"]
    assert fits(answer.messages, transcript["answer"]), answer.messages


def test_the_comparison_compares() -> None:
    assert fits({"a": [1, "x"]}, {"a": [1, "..."]})
    assert not fits({"a": 1}, {"a": 1.0})
    assert not fits({"a": 1, "b": 2}, {"a": 1})
    assert not fits([1], [1, 2])
    assert not fits("", "...")
