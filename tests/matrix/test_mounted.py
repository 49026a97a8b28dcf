"""A server with a lifespan inside applications that know nothing of it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_driver import Application, Client, make_headers, make_request
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from callboard import Context, Server, asgi


class House:
    """A server whose lifespan makes what its tool needs.

    Attributes:
        events: When the lifespan began and ended.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.server = Server("house", lifespan=self.lifespan)
        self.server.tool(self.lamp)

    @asynccontextmanager
    async def lifespan(self, _server: Server) -> AsyncIterator[dict[str, Any]]:
        self.events.append("in")
        yield {"lamp": "lit"}
        self.events.append("out")

    async def lamp(self, ctx: Context) -> str:
        return str(ctx.locals["lamp"])


def routed(app: Application) -> tuple[Any, str]:
    host = Starlette()
    host.add_route("/mcp", app)  # type: ignore[arg-type]
    return host, "/mcp"


def routed_in_fastapi(app: Application) -> tuple[Any, str]:
    host = FastAPI()
    host.add_route("/mcp", app)  # type: ignore[arg-type]
    return host, "/mcp"


def mounted(app: Application) -> tuple[Any, str]:
    host = FastAPI()
    host.mount("/api", app)
    return host, "/api/mcp"


def mounted_twice_over(app: Application) -> tuple[Any, str]:
    return Starlette(routes=[Mount("/a", Starlette(routes=[Mount("/b", app)]))]), "/a/b/mcp"


def in_a_host_with_a_lifespan_of_its_own(app: Application) -> tuple[Any, str]:
    @asynccontextmanager
    async def lifespan(_host: Starlette) -> AsyncIterator[dict[str, Any]]:
        yield {"theirs": 1}

    return Starlette(routes=[Route("/mcp", app)], lifespan=lifespan), "/mcp"


HOSTS = [routed, routed_in_fastapi, mounted, mounted_twice_over, in_a_host_with_a_lifespan_of_its_own]


@pytest.mark.parametrize("host", HOSTS)
async def test_a_lifespan_that_the_host_knows_nothing_of_is_entered_once(host: Callable[[Application], tuple[Any, str]]) -> None:
    # A32, A33
    house = House()
    app = asgi(house.server)
    outer, path = host(app)
    client = Client(outer, path=path)
    answers = await asyncio.gather(*(client.call("lamp", request_id=number) for number in range(5)))
    answers += [await client.call("lamp", request_id=number) for number in range(5)]
    assert [answer.text for answer in answers] == ["lit"] * 10
    assert house.events == ["in"]
    await app.endpoint.close()
    assert house.events == ["in", "out"]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("entered", [True, False])
def test_so_it_is_under_a_test_client(host: Callable[[Application], tuple[Any, str]], entered: bool) -> None:
    # A32: entered or not, which is how users' tests do it
    house = House()
    outer, path = host(asgi(house.server))
    client = TestClient(outer, base_url="http://127.0.0.1:8000")
    if entered:
        with client:
            assert lamps(client, path) == ["lit"] * 3
        assert house.events[:1] == ["in"]
        assert house.events.count("in") == 1
    else:
        assert lamps(client, path) == ["lit"] * 3


def lamps(client: TestClient, path: str) -> list[str]:
    """What three calls of the tool say."""
    message = make_request("tools/call", {"name": "lamp"})
    answers = [client.post(path, json=message, headers=make_headers(message, host=None)) for _ in range(3)]
    return [answer.json()["result"]["content"][0]["text"] for answer in answers]


@pytest.mark.parametrize("host", HOSTS)
async def test_a_lifespan_that_fails_under_a_host_is_one_clear_line(
    host: Callable[[Application], tuple[Any, str]], caplog: pytest.LogCaptureFixture
) -> None:
    # A32, SA35
    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[None]:
        raise RuntimeError("no database at db:5432")
        yield

    server = Server("house", lifespan=lifespan)
    server.tool(name="lamp")(lambda: "")
    outer, path = host(asgi(server))
    answer = await Client(outer, path=path).call("lamp")
    assert (answer.status, answer.error["code"], answer.message["id"]) == (500, -32603, 1)
    assert b"database" not in answer.body
    (record,) = [record for record in caplog.records if record.name.startswith("callboard")]
    assert record.levelno == logging.ERROR
    assert "\n" not in record.getMessage()
    assert "lifespan" in record.getMessage()
    assert "no database at db:5432" in caplog.text
