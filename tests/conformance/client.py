"""The client under test of the official conformance suite: `python tests/conformance/client.py URL`.

The suite names the scenario, its data and the protocol version in the environment (MCP_CONFORMANCE_SCENARIO, _CONTEXT, _PROTOCOL_VERSION)
and serves what the scenario needs at URL. What a person would do at a screen is done here: forms are accepted as they are, the page of the
authorization server is "visited" by following its one redirect. docs/conformance.md says how to run it.
"""
# ruff: noqa: T201 - a command that reports

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

from callboard import Client, oauth, types
from callboard.client.auth import Auth
from callboard.client.errors import ClientError

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION")

CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"
REDIRECT = "http://127.0.0.1:33418/callback"  # nobody listens there, and nobody needs to

Play = Callable[[Client], Awaitable[None]]


def accept(_: Any) -> dict[str, Any]:
    """Send a form back as it came: with its defaults."""
    return {}


def confirm(_: Any) -> dict[str, Any]:
    return {"confirmed": True}


def write_message(_: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(text="Paris"), model="none")


def list_roots() -> list[types.Root]:
    return [types.Root(uri="file:///srv/project")]


async def visit(url: str) -> str:
    """What a browser does with the page of an authorization server that asks nobody anything; gives where it leads."""
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as response:
        return response.headers["Location"]


async def call_each(client: Client, calls: list[tuple[str, dict[str, Any]]]) -> None:
    for name, arguments in calls:
        await client.call_tool(name, arguments)


async def list_only(client: Client) -> None:
    await client.list_tools()


async def add(client: Client) -> None:
    await client.list_tools()
    result = await client.call_tool("add_numbers", {"a": 5, "b": 3})
    assert not result.is_error


async def fill_in_defaults(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("test_client_elicitation_defaults", {})


async def reconnect(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("test_reconnection", {})


async def say_who_asks(client: Client) -> None:
    for tool in (await client.list_tools())[:1]:
        await client.call_tool(tool.name, {})


async def keep_states_apart(client: Client) -> None:
    await client.list_tools()
    names = ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type")
    await call_each(client, [(name, {}) for name in names])


async def use_everything(client: Client) -> None:
    for tool in await client.list_tools():
        await client.call_tool(tool.name, {})
    for resource in await client.list_resources():
        await client.read_resource(resource.uri)
    for prompt in await client.list_prompts():
        await client.get_prompt(prompt.name, {})


async def replay_calls(client: Client) -> None:
    await client.list_tools()
    await call_each(client, [(call["name"], call["arguments"]) for call in CONTEXT["toolCalls"]])


async def call_whatever_is_listed(client: Client) -> None:
    await call_each(client, [(tool.name, {"region": "north"}) for tool in await client.list_tools()])


async def echo_a_schema(client: Client) -> None:
    tools = {tool.name: tool for tool in await client.list_tools()}
    await client.call_tool("json_schema_echo", {"schema": tools["json_schema_2020_12_tool"].input_schema})


async def call_the_first(client: Client) -> None:
    for tool in (await client.list_tools())[:1]:
        await client.call_tool(tool.name, {})


async def call_twice(client: Client) -> None:
    await call_the_first(client)
    await call_the_first(client)


async def list_skills(client: Client) -> None:
    await client.request("skills/list")


async def verify_a_skill(client: Client) -> None:
    """Reads a skill's first file and holds it to what its entry says; what differs is not to be trusted any further."""
    listed = await client.request("skills/list")
    for skill in listed["skills"]:
        content = (await client.read_resource(skill["uri"])).contents[0]
        text = content.text or ""
        written = text.encode()
        entry = next(each for each in skill["resources"] if each["uri"] == skill["uri"])
        front = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
        if (
            entry["digest"] != f"sha256:{sha256(written).hexdigest()}"
            or entry["size"] != len(written)
            or front is None
            or yaml.safe_load(front[1]) != skill["frontmatter"]
        ):
            return
        for each in skill["resources"]:
            if each["uri"] != skill["uri"]:
                await client.read_resource(each["uri"])


PLAYS: dict[str, Play] = {
    "initialize": list_only,
    "tools_call": add,
    "elicitation-sep1034-client-defaults": fill_in_defaults,
    "sse-retry": reconnect,
    "request-metadata": say_who_asks,
    "sep-2322-client-request-state": keep_states_apart,
    "http-standard-headers": use_everything,
    "http-custom-headers": replay_calls,
    "http-invalid-tool-headers": call_whatever_is_listed,
    "json-schema-ref-no-deref": list_only,
    "json-schema-2020-12-preservation": echo_a_schema,
    "sep-2640-client-no-prefetch": list_skills,
    "sep-2640-client-verify-digest": verify_a_skill,
    "sep-2640-client-verify-size": verify_a_skill,
    "sep-2640-client-verify-frontmatter": verify_a_skill,
    "auth/authorization-server-migration": call_twice,
}
# The scenario wants to see that the client goes no further: how that ends is not its business.
MAY_FAIL = {
    "auth/scope-retry-limit",
    "auth/resource-mismatch",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
    "auth/metadata-issuer-mismatch",
}


def credentials() -> Auth | None:
    """What the scenario gives the client to know itself by."""
    match SCENARIO:
        case "auth/client-credentials-basic":
            return oauth.ClientCredentials(CONTEXT["client_id"], CONTEXT["client_secret"])
        case "auth/client-credentials-jwt":
            return oauth.ClientCredentials(CONTEXT["client_id"], private_key=CONTEXT["private_key_pem"])
        case "auth/enterprise-managed-authorization" | "auth/cross-app-access-complete-flow":
            return oauth.EnterpriseManaged(
                CONTEXT["client_id"],
                CONTEXT["client_secret"],
                idp_token_endpoint=CONTEXT["idp_token_endpoint"],
                idp_client_id=CONTEXT["idp_client_id"],
                subject_token=CONTEXT["idp_id_token"],
            )
        case "auth/wif-jwt-bearer":
            return oauth.WorkloadIdentity(CONTEXT["valid_jwt"], client_id=CONTEXT["client_id"])
        case _:
            return oauth.OAuth(
                client_id=CONTEXT.get("client_id"),
                client_secret=CONTEXT.get("client_secret"),
                issuer=CONTEXT.get("issuer"),
                client_metadata_url=CLIENT_METADATA,
                client_name="callboard conformance client",
                redirect_uri=REDIRECT,
                browse=visit,
            )


async def main(url: str) -> int:
    client = Client(
        url,
        versions=VERSION,
        auth=credentials() if SCENARIO.startswith("auth/") else None,
        on_elicit=confirm if SCENARIO == "sep-2322-client-request-state" else accept,
        on_sample=write_message,
        on_roots=list_roots,
        client_info=types.Implementation(name="callboard-conformance-client", version="1.0.0"),
        timeout=15,
    )
    try:
        async with client:
            await PLAYS.get(SCENARIO, call_the_first)(client)
    except ClientError as error:
        if SCENARIO not in MAY_FAIL:
            raise
        print(f"{urlsplit(url).netloc} was given up, as it should be: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
