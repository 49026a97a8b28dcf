"""The server that the official conformance suite tests: a tool, prompt or resource for each of its scenarios.

It is also a tour of what a Callboard server can hold. By hand: `PORT=3001 python tests/conformance/server.py`, endpoint /mcp.
"""

import asyncio
import os
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from callboard import Context, Fail, NeedInput, Server, ToolError, audio, embed, image, run, text, types
from callboard.errors import Reason
from callboard.skills import Skills

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
    return (await ctx.sample("Say that you are here.", max_tokens=10)).text


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Asks; a client of the current protocol reads the question in an answer, never in a request."""
    return (await ctx.elicit("Go on?", bool)).action


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


# What asks the client. A key names the question for clients of the current protocol.


@dataclass
class Name:
    name: str


@dataclass
class Color:
    color: str


@dataclass
class Confirm:
    confirm: bool


@dataclass
class Contact:
    username: str
    email: str


@dataclass
class Defaults:
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


TITLES = [{"const": f"value{n}", "title": f"Value {n}"} for n in (1, 2, 3)]
CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": TITLES},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLES}},
    },
}


@server.tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    return f"LLM response: {(await ctx.sample(prompt, max_tokens=100)).text}"


@server.tool
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user who they are."""
    answer = await ctx.elicit(message, Contact)
    return f"User response: {answer.action}, {answer.value if answer.accepted else None}"


@server.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a default for each kind of field."""
    answer = await ctx.elicit("Please check these values.", Defaults)
    return f"Elicitation completed: {answer.action}, {answer.value if answer.accepted else None}"


@server.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with every kind of choice; the schema is given as it is."""
    answer = await ctx.elicit("Please choose.", CHOICES)
    return f"Elicitation completed: {answer.action}, {answer.value if answer.accepted else None}"


@server.tool
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Asks for a name."""
    return f"Hello, {(await ctx.elicit('What is your name?', Name, key='user_name')).value.name}!"


@server.tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Asks the client's model."""
    return (await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")).text


@server.tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Asks for the client's roots."""
    return ", ".join(root.uri for root in await ctx.roots(key="client_roots"))


CONFIRM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Please confirm",
        "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
}


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str | NeedInput:
    """Asks by hand: what the client sends back is in `ctx.input`."""
    if ctx.input is None or "confirm" not in ctx.input.responses:
        return NeedInput({"confirm": CONFIRM}, state={"asked": "confirm"})
    return f"state-{'ok' if ctx.input.state == {'asked': 'confirm'} else 'lost'}"


@server.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str | NeedInput:
    """Asks by hand; a state that the client changed never gets here."""
    if ctx.input is None or "confirm" not in ctx.input.responses:
        return NeedInput({"confirm": CONFIRM}, state=["step", 1])
    return f"Confirmed with {ctx.input.state}."


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Asks three things at once."""
    name, greeting, roots = await asyncio.gather(
        ctx.elicit("What is your name?", Name, key="user_name"),
        ctx.sample("Generate a greeting", max_tokens=50, key="greeting"),
        ctx.roots(key="client_roots"),
    )
    return f"{name.value.name}: {greeting.text} ({len(roots)} roots)"


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Asks one thing after another."""
    name = (await ctx.elicit("Step 1: What is your name?", Name, key="step1")).value.name
    color = (await ctx.elicit("Step 2: What is your favorite color?", Color, key="step2")).value.color
    return f"{name} likes {color}."


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Asks only what the client said that it can answer."""
    if "elicitation" in ctx.client_capabilities:
        return (await ctx.elicit("What is your name?", Name)).action
    return (await ctx.sample("Generate a greeting", max_tokens=50)).text


# Tasks. What is asked before anything else is awaited is asked before there is a task.


@server.tool(task="allowed")
async def slow_compute(seconds: float, label: str = "") -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return f"Computed {label!r} in {seconds} s."


@server.tool(task="always")
async def failing_job() -> str:
    """Fails in band, as a task."""
    await asyncio.sleep(STEP)
    raise ToolError("This job always fails.")


@server.tool(task="always")
async def protocol_error_job() -> str:
    """Fails with a protocol error, as a task."""
    await asyncio.sleep(STEP)
    raise Fail(Reason.INTERNAL, text="This job ends with a protocol error.")


@server.tool(task="always")
async def confirm_delete(filename: str, ctx: Context) -> str:
    """Asks while it is a task already."""
    await asyncio.sleep(STEP)
    answer = await ctx.elicit(f"Delete {filename}?", Confirm)
    return f"{'Deleted' if answer.accepted and answer.value.confirm else 'Kept'} {filename}."


@server.tool(task="always")
async def multi_input(ctx: Context) -> str:
    """Asks two things at once while it is a task."""
    await asyncio.sleep(STEP)
    name, sure = await asyncio.gather(ctx.elicit("Your name?", Name), ctx.elicit("Are you sure?", Confirm))
    return f"{name.value.name}: {sure.value.confirm}"


@server.tool(task="always")
async def test_tool_with_task(ctx: Context) -> str:
    """Asks first and is a task then."""
    name = (await ctx.elicit("What is your name?", Name, key="user_name")).value.name
    await asyncio.sleep(STEP)
    return f"Done, {name}."


server.extend(Skills(Path(__file__).parent / "skills", directory_read=True))


# Lists that change while clients listen, and change back: what is added while a server runs is added in one of its processes.


async def dynamic_tool() -> str:
    """Is there for a moment in each call of test_trigger_tool_change."""
    return "I am new here."


async def dynamic_prompt() -> str:
    """Is there for a moment in each call of test_trigger_prompt_change."""
    return "I am new here."


@server.tool
async def test_trigger_tool_change() -> str:
    """Changes the list of tools."""
    server.tool(dynamic_tool)
    server.remove("tools", "dynamic_tool")
    return "The tool list changed, and changed back."


@server.tool
async def test_trigger_prompt_change() -> str:
    """Changes the list of prompts."""
    server.prompt(dynamic_prompt)
    server.remove("prompts", "dynamic_prompt")
    return "The prompt list changed, and changed back."


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


@dataclass
class UserContext:
    context: str


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks before it answers."""
    return f"Use this context: {(await ctx.elicit('What context?', UserContext, key='user_context')).value.context}"


if __name__ == "__main__":
    run(server, port=int(os.environ.get("PORT", "3001")))
