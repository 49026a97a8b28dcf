"""The server of the transcripts in `vectors/modern.json`: a yard with bays, cranes and crates."""

import asyncio
from typing import Annotated, Any

from msgspec import Meta

from callboard import Context, Fail, NotFound, Reason, Server, ToolError

BAYS = {"3": [3, 4], "Süd": [9, 9]}
Bay = Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Bay"})]


def make_yard() -> Server:
    """A fresh yard."""
    server = Server("yard", version="0.4", instructions="Ask for one bay at a time.", page_size=2)

    @server.tool
    async def stow(bay: Bay) -> list[int]:
        """Where a bay has room."""
        if bay not in BAYS:
            raise ToolError("There is no such bay.")
        return BAYS[bay]

    @server.tool
    async def lift(crates: int, ctx: Context) -> str:
        """Lift crates, one after the other."""
        for number in range(1, crates + 1):
            ctx.progress(number, crates)
            await asyncio.sleep(0)
        ctx.log("info", {"lifted": crates}, "crane")
        return "lifted"

    @server.tool
    async def ship(crate: int, ctx: Context) -> str:
        """Ship a crate, once the client's user has agreed."""
        if "elicitation" not in ctx.client_capabilities:
            raise Fail(Reason.MISSING_CAPABILITY, data={"requiredCapabilities": {"elicitation": {}}})
        return f"shipped {crate}"

    @server.resource("yard://rules", mime_type="text/markdown")
    def rules() -> str:
        """Rules of the yard."""
        return "# Rules"

    @server.resource("yard://bay/{bay}")
    def bay_contents(bay: str) -> dict[str, Any]:
        """What is in a bay."""
        if bay not in BAYS:
            raise NotFound
        return {"room": BAYS[bay]}

    @server.prompt
    def inspect(bay: str) -> str:
        """Inspect a bay."""
        return f"Inspect bay {bay}."

    @server.complete("inspect", "bay")
    def bays(value: str) -> list[str]:
        return [bay for bay in BAYS if bay.startswith(value)]

    return server
