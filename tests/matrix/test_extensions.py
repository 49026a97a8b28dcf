"""Extensions of the protocol: none unless asked for."""

from asgi_driver import Client, make_meta
from yard import make_yard

from callboard import asgi


async def test_extensions_are_off_by_default() -> None:
    # EX-03
    client = Client(asgi(make_yard()))
    assert "extensions" not in (await client.request("server/discover")).result["capabilities"]


async def test_a_client_may_know_extensions_that_the_server_does_not() -> None:
    # EX-03
    client = Client(asgi(make_yard()))
    known = {"extensions": {"io.modelcontextprotocol/tasks": {}, "com.example/own": {"depth": 3}}}
    answer = await client.call("lift", {"crates": 1}, meta=make_meta(known))
    assert answer.text == "lifted"
    assert answer.result["resultType"] == "complete"
