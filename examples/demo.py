"""`make demo`: serve examples/docs_server.py over HTTP, and show what a client does with it.

PORT=9000 make demo     # another port than 8000
ONCE=1 make demo        # end after the showing, instead of serving until Ctrl-C
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from callboard import Client, types
from callboard.client.errors import ClientError, ConnectionFailed, ServerError
from callboard.transport.ports import refuse_port

SERVER = Path(__file__).with_name("docs_server.py")
HOST = "127.0.0.1"
START_SECONDS = 20


def step(number: int, title: str) -> None:
    print(f"\n{number}. {title}")


def show(label: str, value: object) -> None:
    lines = str(value).strip().splitlines() or [""]
    more = f"\n{' ' * 19}... {len(lines) - 4} more lines" if len(lines) > 5 else ""
    print(f"   {label:15} " + f"\n{' ' * 19}".join(line[:110] for line in lines[: 4 if more else 5]) + more)


def text_of(block: types.Content) -> str:
    assert isinstance(block, types.TextContent)
    return block.text


async def connect(stack: AsyncExitStack, url: str, server: subprocess.Popen[bytes]) -> Client:
    """Try until the server answers; give up when it has ended."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                return await stack.enter_async_context(Client(url))
            except ConnectionFailed:
                if server.poll() is not None:
                    raise
                await asyncio.sleep(0.1)


async def show_all(client: Client) -> None:
    step(1, "discover: what is this server?")
    found = await client.discover()
    info: dict[str, Any] = (found.meta or {})["io.modelcontextprotocol/serverInfo"]
    show("server", f"{info['name']} {info['version']}, protocol {', '.join(found.supported_versions)}")
    show("instructions", found.instructions)

    step(2, "list: what does it offer?")
    resources = await client.list_resources()
    show("tools", ", ".join(tool.name for tool in await client.list_tools()))
    show("resources", f"{len(resources)}: {', '.join(resource.uri for resource in resources[:4])}, ...")
    show("templates", ", ".join(template.uri_template for template in await client.list_resource_templates()))
    show("prompts", ", ".join(prompt.name for prompt in await client.list_prompts()))

    step(3, "call: search(query='progress'), with a structured result")
    hits = (await client.call_tool("search", {"query": "progress", "limit": 3})).data
    assert hits, "the documentation speaks of progress"
    show("hits", "\n".join(f"{hit['uri']}: {hit['title']}" for hit in hits))

    step(4, "call with progress: count_words()")
    steps: list[float] = []

    def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)
        show(f"progress {progress:g}/{total or 0:g}", message or "")

    counts = (await client.call_tool("count_words", on_progress=on_progress)).structured_content
    assert steps, "the server reported progress"
    show("result", f"{sum(counts.values())} words on {len(counts)} pages")

    step(5, f"read: {resources[0].uri}")
    (page,) = (await client.read_resource(resources[0].uri)).contents
    show("text", page.text)

    typed = resources[-1].name[:4]
    step(6, f"prompt: summarize, after completing its argument from {typed!r}")
    path = (await client.complete(types.PromptReference(name="summarize"), "path", typed)).values[0]
    show("completion", path)
    (message,) = (await client.get_prompt("summarize", {"path": path})).messages
    show(message.role, text_of(message.content))

    step(7, "bad calls: arguments that don't fit, and a tool that isn't there")
    refused = await client.call_tool("search", {"limit": 100})
    assert refused.is_error
    show("to the model", text_of(refused.content[0]))
    try:
        await client.call_tool("no_such_tool")
    except ServerError as error:
        show("to the program", error)
    else:
        raise AssertionError("the server ran a tool that isn't there")


async def demonstrate(url: str, server: subprocess.Popen[bytes]) -> None:
    async with AsyncExitStack() as stack:
        await show_all(await connect(stack, url, server))


def serve_on(url: str, server: subprocess.Popen[bytes]) -> None:
    print(f"\nServing {url} until Ctrl-C. Try it from another terminal:\n")
    print(f"    .venv/bin/callboard list {url}\n    .venv/bin/callboard call {url} search query=progress\n", flush=True)
    server.wait()


def main() -> None:
    port = os.environ.get("PORT", "8000")
    if not port.isdigit() or not 0 < int(port) < 65536:
        sys.exit(f"demo: PORT={port} is no port; use one from 1024 to 65535, as in PORT=9000 make demo")
    if complaint := refuse_port(HOST, int(port)):
        sys.exit(f"demo: {complaint}, as in PORT=9000 make demo")
    url = f"http://{HOST}:{port}/mcp"
    print(f"Starting examples/{SERVER.name} at {url}", flush=True)
    command = [sys.executable, "-m", "callboard", "run", str(SERVER), "--host", HOST, "--port", port, "--log-level", "warning"]
    environment = {**os.environ, "DOCS_DIR": str(SERVER.parent.parent / "docs")}
    server = subprocess.Popen(command, env=environment)  # noqa: S603 - the words above
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        asyncio.run(demonstrate(url, server))
        if os.environ.get("ONCE") == "1":
            print("\nDone.")
        else:
            serve_on(url, server)
    except KeyboardInterrupt:
        print("\nStopped.")
    except ClientError as error:
        sys.exit(f"demo: {error}")
    except TimeoutError:
        sys.exit(f"demo: the server did not answer within {START_SECONDS} s")
    finally:
        server.terminate()
        with suppress(KeyboardInterrupt):
            server.wait(5)


if __name__ == "__main__":
    main()
