"""Results that are more than text: images, sounds, links to resources, resources themselves, and for whom they are."""

import asyncio
import base64

from callboard import Client, Server, audio, embed, image, link, text
from callboard.types import Annotations, AudioContent, Content, EmbeddedResource, ImageContent, ResourceLink

server = Server("studio", version="1.0.0")
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
SILENCE = (
    b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x00\x00\x00\x00"
)


@server.tool
async def render(title: str) -> list[Content]:
    """Render a scene."""
    return [
        text(f"Rendered {title}.", annotations=Annotations(audience=["user"], priority=1)),
        image(PIXEL, "image/png"),
        audio(SILENCE, "audio/wav"),
        link("studio://scenes/7", name="scene-7", title="The scene", mime_type="model/gltf+json"),
        embed("studio://scenes/7/notes", "# Notes\n\nToo dark.", mime_type="text/markdown"),
        embed("studio://scenes/7/raw", b"\x00\x01", mime_type="application/octet-stream"),
    ]


@server.tool
async def thumbnail() -> ImageContent:
    """One block needs no list."""
    return image(PIXEL, "image/png", meta={"example.com/width": 1})


async def main() -> None:
    async with Client(server) as client:
        said, picture, sound, pointer, notes, raw = (await client.call_tool("render", {"title": "the hall"})).content
        assert said == text("Rendered the hall.", annotations=Annotations(audience=["user"], priority=1))
        assert isinstance(picture, ImageContent)
        assert base64.b64decode(picture.data) == PIXEL
        assert isinstance(sound, AudioContent)
        assert sound.mime_type == "audio/wav"
        assert isinstance(pointer, ResourceLink)
        assert pointer.uri == "studio://scenes/7"
        assert isinstance(notes, EmbeddedResource)
        assert notes.resource.text == "# Notes\n\nToo dark."
        assert isinstance(raw, EmbeddedResource)
        assert raw.resource.blob == "AAE="

        assert (await client.call_tool("thumbnail")).content == [image(PIXEL, "image/png", meta={"example.com/width": 1})]
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
