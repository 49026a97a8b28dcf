"""Resources: what a client reads by its URI. Text, JSON, bytes, templates with typed variables, and what isn't there."""

import asyncio
import base64
from datetime import date

from callboard import Client, NotFound, Server
from callboard.client.errors import ServerError

server = Server("diary", version="1.0.0")
PAGES = {date(2026, 7, 28): "A new protocol today."}
COVER = b"\x89PNG\r\n\x1a\n"


@server.resource("diary://days", mime_type="application/json")
def days() -> list[date]:
    """The days that have a page."""
    return sorted(PAGES)


@server.resource("diary://cover", mime_type="image/png", size=len(COVER))
def cover() -> bytes:
    """Bytes travel as base64."""
    return COVER


@server.resource("diary://days/{day}", mime_type="text/markdown")
def page(day: date) -> str:
    """The page of a day: variables of the URI convert to the annotations."""
    if day not in PAGES:
        raise NotFound
    return PAGES[day]


@server.resource("diary://files/{+path}")
def file(path: str) -> str:
    """`{+path}` takes slashes; what would climb out of the folder never gets here."""
    return f"content of {path}"


async def refused(client: Client, uri: str) -> int:
    try:
        await client.read_resource(uri)
    except ServerError as error:
        return error.code
    raise AssertionError(f"{uri} could be read")


async def main() -> None:
    async with Client(server) as client:
        assert [resource.uri for resource in await client.list_resources()] == ["diary://days", "diary://cover"]
        templates = [template.uri_template for template in await client.list_resource_templates()]
        assert templates == ["diary://days/{day}", "diary://files/{+path}"]

        (contents,) = (await client.read_resource("diary://days")).contents
        assert contents.text == '["2026-07-28"]'
        (contents,) = (await client.read_resource("diary://cover")).contents
        assert base64.b64decode(str(contents.blob)) == COVER
        (contents,) = (await client.read_resource("diary://days/2026-07-28")).contents
        assert (contents.text, contents.mime_type) == ("A new protocol today.", "text/markdown")
        (contents,) = (await client.read_resource("diary://files/a/b%20c.txt")).contents
        assert contents.text == "content of a/b c.txt"

        for uri in ("diary://days/2001-01-01", "diary://days/yesterday", "diary://files/../etc/passwd", "diary://nothing/like/it"):
            assert await refused(client, uri) == -32602
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
