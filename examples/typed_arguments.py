"""Annotations are the schema: what clients see, what is checked, what the function gets."""

import asyncio
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Literal

from msgspec import Meta

from callboard import Client, Server, text

server = Server("shop", version="1.0.0")


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Address:
    street: str
    city: str


@server.tool
async def order(
    item: Annotated[str, Meta(min_length=1, max_length=40)],
    amount: Annotated[int, Meta(ge=1, le=100)],
    to: Address,
    size: Size = Size.SMALL,
    speed: Literal["slow", "fast"] = "slow",
    arrival: date | None = None,
    tags: frozenset[str] = frozenset(),
) -> str:
    """Order an item.

    Args:
        item: What to send.
        amount: How many of it.
        to: Where to send it.
        tags: Labels for the parcel.
    """
    when = "some day" if arrival is None else f"{arrival:%d.%m.%Y}"
    return f"{amount} {item} ({size.name}, {speed}) to {to.city} by {when}, tags: {', '.join(sorted(tags)) or 'none'}"


async def main() -> None:
    async with Client(server) as client:
        (tool,) = await client.list_tools()
        assert tool.input_schema["required"] == ["item", "amount", "to"]
        amount = tool.input_schema["properties"]["amount"]
        assert amount == {"type": "integer", "minimum": 1, "maximum": 100, "description": "How many of it."}

        least = {"item": "lamp", "amount": 2, "to": {"street": "Storgata 1", "city": "Oslo"}}
        done = await client.call_tool("order", least)
        assert done.content == [text("2 lamp (SMALL, slow) to Oslo by some day, tags: none")]

        # Values arrive as the annotation says. What can be converted without loss is: 2.0 is an integer, "2" is not.
        more = {"amount": 2.0, "size": "l", "speed": "fast", "arrival": "2026-07-28", "tags": ["gift", "fragile", "gift"]}
        done = await client.call_tool("order", {**least, **more})
        assert done.content == [text("2 lamp (LARGE, fast) to Oslo by 28.07.2026, tags: fragile, gift")]

        # Every wrong argument is named at once, so that a model can mend its call in one go. The function does not run.
        wrong = await client.call_tool("order", {"item": "", "amount": "2", "size": "xxl", "colour": "red"})
        assert wrong.is_error
        (answer,) = wrong.content
        assert all(name in str(answer) for name in ("item", "amount", "to", "size", "colour"))
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
