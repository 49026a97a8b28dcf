"""The server that the official conformance suite tests: a tool, prompt or resource for each of its scenarios.

It is also a tour of what a Callboard server can hold. By hand: `PORT=3001 python tests/conformance/server.py`, endpoint /mcp.
What asks the client for input (`test_input_required_*`, `test_sampling`, `test_elicitation*`) and tasks are not here yet.
"""

import asyncio
import os
from base64 import b64decode
from typing import Annotated, Any

from msgspec import Meta

from callboard import Context, Fail, Server, ToolError, audio, embed, image, run, text, types
from callboard.errors import Reason

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")  # one red pixel
WAV = b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==")  # one silent sample
STEP = 0.05  # seconds between two notifications, so that they travel apart

server = Server(
    "callboard-conformance",
    version="1.0.0",
    title="Callboard conformance fixture",
    description="Everything that the official conformance suite asks for.",
    instructions="Call test_simple_text first.",
)


# Tools. The suite takes the first of the list as one that needs no arguments and no headers.


@server.tool
async def test_simple_text() -> str:
    """Answers a text."""
    return "This is a simple text response for testing."


@server.tool
async def test_image_content() -> types.ImageContent:
    """Answers an image."""
    return image(PNG, "image/png")


@server.tool
async def test_audio_content() -> types.AudioContent:
    """Answers a sound."""
    return audio(WAV, "audio/wav")


@server.tool
async def test_embedded_resource() -> types.EmbeddedResource:
    """Answers a resource's content."""
    return embed("test://embedded-resource", "This is an embedded resource content.", mime_type="text/plain")


@server.tool
async def test_multiple_content_types() -> list[types.Content]:
    """Answers a text, an image and a resource."""
    return [
        text("Multiple content types test:"),
        image(PNG, "image/png"),
        embed("test://mixed-content-resource", '{"test":"data","value":123}', mime_type="application/json"),
    ]


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Logs three times at level info, for clients that asked for logs."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        ctx.log("info", line)
        await asyncio.sleep(STEP)
    return "Tool with logging executed successfully"


@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress three times, for clients that sent a progress token."""
    for done in (0, 50, 100):
        ctx.progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(STEP)
    return "Tool with progress executed successfully"


@server.tool
async def test_reconnection(ctx: Context) -> str:
    """Closes its stream before it answers; clients of 2025-11-25 come back for the answer."""
    ctx.disconnect(retry=STEP)
    await asyncio.sleep(2 * STEP)
    return "You came back."


@server.tool
async def test_error_handling() -> str:
    """Fails in band."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool
async def test_logging_tool(ctx: Context) -> str:
    """Logs at once; a client that asked for no logs gets none."""
    ctx.log("info", {"message": "Tool logging", "tool": "test_logging_tool"}, logger="conformance")
    return "Logged."


@server.tool
async def test_missing_capability(ctx: Context) -> str:
    """Needs a client that declared sampling."""
    if "sampling" not in ctx.client_capabilities:
        raise Fail(Reason.MISSING_CAPABILITY, data={"requiredCapabilities": {"sampling": {}}})
    return "The client can sample."


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Says whether the client could be asked; asks nothing."""
    return f"Elicitation declared: {'elicitation' in ctx.client_capabilities}"


Region = Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})]


@server.tool
async def test_x_mcp_header(region: Region = "") -> str:  # noqa: PT028 - a tool, not a test
    """Takes an argument that HTTP clients repeat in the header Mcp-Param-Region."""
    return f"Region: {region}"


@server.tool
async def greet(name: str) -> str:
    """Greets."""
    return f"Hello, {name}!"


CONTACT: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        },
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@server.tool(input_schema=CONTACT)
async def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Takes a contact; its schema is given as it is and must reach clients unaltered."""
    return f"Contact: {arguments.get('name', 'nobody')}"


# Lists that change while clients listen.


async def dynamic_tool() -> str:
    """Is there after every other call of test_trigger_tool_change."""
    return "I am new here."


async def dynamic_prompt() -> str:
    """Is there after every other call of test_trigger_prompt_change."""
    return "I am new here."


present = {"tool": False, "prompt": False}


@server.tool
async def test_trigger_tool_change() -> str:
    """Changes the list of tools."""
    present["tool"] = not present["tool"]
    if present["tool"]:
        server.tool(dynamic_tool)
    else:
        server.remove("tools", "dynamic_tool")
    return "The tool list changed."


@server.tool
async def test_trigger_prompt_change() -> str:
    """Changes the list of prompts."""
    present["prompt"] = not present["prompt"]
    if present["prompt"]:
        server.prompt(dynamic_prompt)
    else:
        server.remove("prompts", "dynamic_prompt")
    return "The prompt list changed."


# Resources.


@server.resource("test://static-text", mime_type="text/plain")
async def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
async def static_binary() -> bytes:
    """An image."""
    return PNG


@server.resource("test://watched-resource", mime_type="text/plain")
async def watched() -> str:
    """A text that clients may subscribe to."""
    return "Watch me."


@server.resource("test://template/{id}/data", mime_type="application/json")
async def template_data(id: str) -> dict[str, Any]:  # noqa: A002 - the template's variable
    """A record for any id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# Prompts.


@server.prompt
async def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt that repeats its arguments.

    Args:
        arg1: The first.
        arg2: The second.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.complete("test_prompt_with_arguments", "arg1")
async def complete_arg1(value: str) -> list[str]:
    return [word for word in ("test", "testing", "tested", "other") if word.startswith(value)]


@server.prompt
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[types.PromptMessage]:  # noqa: N803 - the suite's name
    """A prompt that holds a resource's content."""
    return [
        types.user(embed(resourceUri, "Embedded resource content for testing.", mime_type="text/plain")),
        types.user("Please process the embedded resource above."),
    ]


@server.prompt
async def test_prompt_with_image() -> list[types.PromptMessage]:
    """A prompt that holds an image."""
    return [types.user(image(PNG, "image/png")), types.user("Please analyze the image above.")]


if __name__ == "__main__":
    run(server, port=int(os.environ.get("PORT", "3001")))
