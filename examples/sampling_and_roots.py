"""The client's model and folders: a tool loop in sampling, several questions that go out together, a function that does without."""

import asyncio

from callboard import Client, Context, Fail, Server, types

server = Server("writer", version="1.0.0")
COUNT = types.Tool(name="count", description="Count letters.", input_schema={"type": "object", "properties": {"word": {"type": "string"}}})


@server.tool
async def measure(word: str, ctx: Context) -> str:
    """Let the client's model say how long a word is; it may use our tool for that."""
    conversation = [types.SamplingMessage(role="user", content=types.TextContent(text=f"How long is {word}?"))]
    for _ in range(5):  # a model may go on for ever
        said = await ctx.sample(conversation, max_tokens=200, tools=[COUNT])
        blocks = said.content if isinstance(said.content, list) else [said.content]
        results: list[types.SamplingMessageContentBlock] = [
            types.ToolResultContent(tool_use_id=block.id, content=[types.TextContent(text=str(len(str(block.input["word"]))))])
            for block in blocks
            if isinstance(block, types.ToolUseContent)
        ]
        if not results:
            return said.text
        conversation += [types.SamplingMessage(role="assistant", content=blocks), types.SamplingMessage(role="user", content=results)]
    return "no idea"


@server.tool
async def introduce(ctx: Context) -> str:
    """Ask for two things at once: they go out together, and are answered in one round."""
    roots, name = await asyncio.gather(ctx.roots(), ctx.elicit("Your name?", str))
    return f"{name.value} works in {', '.join(root.uri for root in roots)}"


@server.tool
async def greet(ctx: Context) -> str:
    """Ask those who can be asked."""
    try:
        return f"Hello, {(await ctx.elicit('Your name?', str)).value}!"
    except Fail:  # the client can't ask anybody (Reason.MISSING_CAPABILITY)
        return "Hello, whoever you are!"


def think(asked: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    last = asked.messages[-1].content
    if isinstance(last, list) and isinstance(last[0], types.ToolResultContent):
        answer: types.SamplingMessageContentBlock = types.TextContent(text="It has 9 letters.")
        assert last[0].content == [types.TextContent(text="9")]
    else:
        answer = types.ToolUseContent(id="1", name="count", input={"word": "callboard"})
    return types.CreateMessageResult(role="assistant", content=[answer], model="example")


async def main() -> None:
    rounds: list[str] = []

    def give_name(asked: types.ElicitRequestFormParams | types.ElicitRequestURLParams) -> dict[str, str]:
        rounds.append(asked.message)
        return {"value": "Ada"}

    async with Client(server, on_sample=think, on_elicit=give_name, on_roots=lambda: [types.Root(uri="file:///home")]) as client:
        assert (await client.call_tool("measure", {"word": "callboard"})).content == [types.TextContent(text="It has 9 letters.")]
        assert (await client.call_tool("introduce")).content == [types.TextContent(text="Ada works in file:///home")]
        assert rounds == ["Your name?"]
        assert (await client.call_tool("greet")).content == [types.TextContent(text="Hello, Ada!")]
    async with Client(server) as client:
        assert (await client.call_tool("greet")).content == [types.TextContent(text="Hello, whoever you are!")]
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
