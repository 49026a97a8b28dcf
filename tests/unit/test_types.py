"""The public vocabulary and the functions that make content."""

from base64 import b64decode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import mcp_types_validate

from callboard import types
from callboard.types import Annotations, assistant, audio, embed, image, link, text, user
from callboard.wire import v2026_07_28 as wire


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def test_all_is_complete_and_exact() -> None:
    shared = {name for name, value in vars(types).items() if value is getattr(wire, name, types) and not name.startswith("__")}
    imported = shared - {"Annotated", "Any", "Meta", "ContentBlock", "Literal", "TypeAlias"}
    assert imported | {"Answer", "Content", "Secret", "assistant", "audio", "embed", "image", "link", "text", "user"} == set(types.__all__)


def test_only_what_is_given_is_sent() -> None:
    assert plain(text("hi")) == {"type": "text", "text": "hi"}
    assert plain(text("hi", annotations=Annotations(priority=1), meta={})) == {
        "type": "text",
        "text": "hi",
        "annotations": {"priority": 1},
        "_meta": {},
    }
    assert plain(link("docs://a", name="a")) == {"type": "resource_link", "uri": "docs://a", "name": "a"}
    assert plain(embed("docs://a", "x")) == {"type": "resource", "resource": {"uri": "docs://a", "text": "x"}}


def test_every_option_of_a_link_is_sent() -> None:
    made = link(
        "docs://a", name="a", title="A", description="d", mime_type="text/plain", size=0, icons=[types.Icon(src="data:,")], meta={"k": 1}
    )
    assert plain(made) == {
        "type": "resource_link",
        "uri": "docs://a",
        "name": "a",
        "title": "A",
        "description": "d",
        "mimeType": "text/plain",
        "size": 0,
        "icons": [{"src": "data:,"}],
        "_meta": {"k": 1},
    }


@given(st.binary())
def test_bytes_travel_as_base64(data: bytes) -> None:
    assert b64decode(plain(image(data, "image/png"))["data"], validate=True) == data
    assert b64decode(plain(audio(data, "audio/wav"))["data"], validate=True) == data
    assert b64decode(plain(embed("docs://a", data, mime_type="x/y"))["resource"]["blob"], validate=True) == data


@pytest.mark.parametrize(
    "block",
    [
        text("hi", annotations=Annotations(audience=["user"])),
        image(b"\x89PNG", "image/png"),
        image(memoryview(b"<svg/>").tobytes(), "image/svg+xml; charset=utf-8"),
        audio(b"RIFF", "audio/x-wav", meta={"com.example/take": 2}),
        link("https://example.com/a", name="a", size=9),
        embed("docs://a", "# A", mime_type="text/markdown"),
        embed("docs://a", b"\x00"),
    ],
)
def test_a_peer_reads_every_block(block: types.Content) -> None:
    """TL-18."""
    assert mcp_types_validate("ContentBlock", plain(block)).type == plain(block)["type"]


def test_messages_have_a_role() -> None:
    assert plain(user("hi")) == {"role": "user", "content": {"type": "text", "text": "hi"}}
    assert plain(assistant(image(b"", "image/png"))) == {
        "role": "assistant",
        "content": {"type": "image", "data": "", "mimeType": "image/png"},
    }


@pytest.mark.parametrize("mime_type", ["png", "image", "image/", "audio/wav", "image /png", "text/image/png", "", "image/png\n"])
def test_an_image_needs_an_images_media_type(mime_type: str) -> None:
    with pytest.raises(ValueError, match=r"image\(\) needs a media type like 'image/png', got ") as caught:
        image(b"", mime_type)
    assert repr(mime_type) in str(caught.value)


def test_audio_needs_an_audio_media_type() -> None:
    with pytest.raises(ValueError, match=r"audio\(\) needs a media type like 'audio/wav', got 'image/png'"):
        audio(b"", "image/png")


@pytest.mark.parametrize(("make", "kind"), [(image, "image"), (audio, "audio")])
def test_base64_text_is_not_taken_for_bytes(make: Callable[[Any, str], object], kind: str) -> None:
    """PM-05: encoding twice would send garbage that is valid base64."""
    with pytest.raises(TypeError, match=rf"{kind}\(\) takes raw bytes, not str \(for base64 that you already have"):
        make("AAEC", f"{kind}/x")


def test_embed_takes_text_or_bytes() -> None:
    values: list[Any] = [1, None, {"a": 1}]
    for value in values:
        with pytest.raises(TypeError, match=rf"embed\(\) takes text or raw bytes, not {type(value).__name__}"):
            embed("docs://a", value)


@pytest.mark.parametrize("uri", ["", "guide.md", "/etc/passwd", "1x://a", "docs:", "docs://a b", "docs://a\n"])
def test_a_uri_is_absolute(uri: str) -> None:
    """RS-07, RS-08."""
    with pytest.raises(ValueError, match=r"a resource's URI is absolute") as caught:
        link(uri, name="a")
    assert repr(uri) in str(caught.value)
    with pytest.raises(ValueError, match=r"a resource's URI is absolute"):
        embed(uri, "x")
