"""A class per component: a tool, a repository of resources and a prompt, with their options as attributes."""

import asyncio
from collections.abc import Awaitable, Sequence

from callboard import Client, NotFound, Server, types
from callboard.client.errors import ServerError

server = Server("garden", version="1.0.0")


class WaterPlant:
    """Water a plant."""

    annotations = types.ToolAnnotations(destructive_hint=False)
    rate = (2, 3600)

    def __init__(self, beds: dict[str, int]) -> None:
        self.beds = beds

    async def execute(self, plant: str, litres: int = 1) -> int:
        self.beds[plant] = self.beds.get(plant, 0) + litres
        return self.beds[plant]


class Plants:
    """What grows here."""

    prefix = "plant://"
    templates = ("plant://{name}",)

    def __init__(self, beds: dict[str, int]) -> None:
        self.beds = beds

    def list(self, cursor: str | None) -> tuple[Sequence[str], str | None]:
        names = sorted(self.beds)
        at = int(cursor or 0)
        return [f"plant://{name}" for name in names[at : at + 1]], str(at + 1) if at + 1 < len(names) else None

    def read(self, uri: str) -> dict[str, int]:
        name = uri.removeprefix(self.prefix)
        if name not in self.beds:
            raise NotFound
        return {"litres": self.beds[name]}


class Advice:
    """Ask for advice."""

    def render(self, plant: str) -> str:
        return f"How often do I water {plant}?"


beds = {"fern": 1, "rose": 2}
for component in (WaterPlant(beds), Plants(beds), Advice):
    server.add(component)


async def code_of(calling: Awaitable[object]) -> int | None:
    try:
        await calling
    except ServerError as error:
        return error.code
    return None


async def main() -> None:
    async with Client(server) as client:
        (tool,) = await client.list_tools()
        assert (tool.name, tool.description) == ("water_plant", "Water a plant.")
        assert [(await client.call_tool("water_plant", {"plant": "fern"})).structured_content for _ in range(2)] == [2, 3]
        assert await code_of(client.call_tool("water_plant", {"plant": "fern"})) == 429, "two an hour"
        assert [resource.uri for resource in await client.list_resources()] == ["plant://fern", "plant://rose"]
        assert (await client.read_resource("plant://fern")).contents[0].text == '{"litres":3}'
        assert (await client.get_prompt("advice", {"plant": "rose"})).messages[0].role == "user"
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
