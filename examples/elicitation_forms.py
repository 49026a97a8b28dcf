"""Forms: every kind of field from a plain class, choices with titles, defaults, a user who says no, and an address for what no form may ask."""

import asyncio
import datetime as dt
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from msgspec import Meta

from callboard import Client, Context, Server, types

server = Server("tickets", version="1.0.0")


class Seat(Enum):
    WINDOW_SIDE = "w"  # the names are shown: "Window side"
    AISLE = "a"


@dataclass
class Trip:
    """A trip.

    Attributes:
        to: Where you are going.
    """

    to: Annotated[str, Meta(min_length=2)]
    day: dt.date
    seat: Seat = Seat.AISLE
    people: Annotated[int, Meta(ge=1, le=9)] = 1
    speed: Annotated[Literal["ic", "re"], {"ic": "Fast", "re": "Cheap"}] = "ic"
    extras: list[Literal["bike", "dog"]] = field(default_factory=list)
    note: str | None = None


@server.tool
async def book(ctx: Context) -> str:
    """Book a trip."""
    answer = await ctx.elicit("Where to?", Trip)
    if not answer.accepted:  # `.value` would end the tool with what the user did
        return f"no trip: {answer.action}"
    trip = answer.value
    paid = await ctx.elicit_url("Please pay.", "https://pay.example/t/17")  # never by form: cards, passwords, keys
    return f"{trip.people} to {trip.to} on {trip.day:%A}, {trip.seat.name}, {trip.speed}, {trip.extras}, {paid.action}"


async def main() -> None:
    answers: list[Any] = []

    def ask_somebody(asked: types.ElicitRequestFormParams | types.ElicitRequestURLParams) -> Any:
        if isinstance(asked, types.ElicitRequestURLParams):
            assert asked.url == "https://pay.example/t/17"
            return types.ElicitResult(action="accept")  # somebody has seen the whole address, and agreed
        fields = asked.requested_schema["properties"]
        assert asked.requested_schema["required"] == ["to", "day"]
        assert fields["to"] == {"type": "string", "description": "Where you are going.", "minLength": 2}
        titled = [{"const": "w", "title": "Window side"}, {"const": "a", "title": "Aisle"}]
        assert fields["seat"] == {"type": "string", "oneOf": titled, "default": "a"}
        assert fields["extras"] == {"type": "array", "items": {"type": "string", "enum": ["bike", "dog"]}, "default": []}
        return answers.pop(0)

    async with Client(server, on_elicit=ask_somebody) as client:
        answers = [{"to": "Ulm", "day": "2026-12-24", "extras": ["dog"]}, None, types.ElicitResult(action="cancel")]
        for expected in ("1 to Ulm on Thursday, AISLE, ic, ['dog'], accept", "no trip: decline", "no trip: cancel"):
            assert (await client.call_tool("book")).content == [types.TextContent(text=expected)]
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
