"""Skills, from a client's side: over HTTP and in memory on the current protocol, and what a 2025 client sees of them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from asgi_driver import Client as Http
from asgi_driver import make_request
from legacy_driver import V03, V06, V11, Legacy

from callboard import CacheHint, Client, RegistrationError, Server, asgi
from callboard.client.errors import ServerError
from callboard.skills import Skills

ID = "io.modelcontextprotocol/skills"
ONE = b"---\nname: refunds\ndescription: How to pay back.\nlicense: MIT\n---\nSee `mails/`.\n"
FILES = {
    "refunds/SKILL.md": ONE,
    "refunds/mails/a b.txt": b"Dear customer",
    "refunds/mails/logo.png": b"\x89PNG\r\n\x1a\n",
    "refunds/mails/de/gruß.txt": "Grüße".encode(),
    "team/triage/SKILL.md": b"---\nname: triage\ndescription: What comes first.\n---\n",
    "team/triage/inner/SKILL.md": b"---\nname: inner\ndescription: Inside.\n---\n",
}
ASK = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three skills, one inside another."""
    for path, data in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    (tmp_path / "refunds/empty").mkdir()
    return tmp_path


def make_server(folder: Path, *, page_size: int = 50, **options: Any) -> Server:
    """A server of these skills, and of a tool."""
    server = Server("office", page_size=page_size)
    server.extend(Skills(folder, **options))

    @server.tool
    async def greet() -> str:
        return "hello"

    return server


class RefusedError(Exception):
    """An error answer, by its code."""

    def __init__(self, code: int, data: Any) -> None:
        super().__init__(code)
        self.code = code
        self.data = data


@pytest.fixture(params=["http", "memory"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[Server], Awaitable[ASK]]]:
    """Asks a server over HTTP, or in memory."""
    clients: list[Client] = []

    async def over_http(server: Server) -> ASK:
        client = Http(asgi(server))

        async def ask(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
            answer = await client.request(method, params or {})
            if "error" in answer.message:
                raise RefusedError(answer.error["code"], answer.error.get("data"))
            return answer.result

        return ask

    async def in_memory(server: Server) -> ASK:
        client = Client(server)
        clients.append(await client.__aenter__())

        async def ask(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
            try:
                return await client.request(method, params)
            except ServerError as error:
                raise RefusedError(error.code, error.data) from None

        return ask

    yield over_http if request.param == "http" else in_memory
    for client in clients:
        await client.close()


Connect = Callable[[Server], Awaitable[ASK]]


async def walk(ask: ASK, method: str, key: str, params: Mapping[str, Any] | None = None) -> list[list[dict[str, Any]]]:
    """Every page of a list."""
    pages, given = [], dict(params or {})
    while True:
        result = await ask(method, given)
        pages.append(result[key])
        if "nextCursor" not in result:
            return pages
        given["cursor"] = result["nextCursor"]


async def test_the_settings_stand_in_the_capabilities(folder: Path, connect: Connect) -> None:
    # SK-01, EX-01
    ask = await connect(make_server(folder))
    capabilities = (await ask("server/discover"))["capabilities"]
    assert capabilities["extensions"] == {ID: {}}
    assert "resources" in capabilities
    ask = await connect(make_server(folder, directory_read=True))
    assert (await ask("server/discover"))["capabilities"]["extensions"] == {ID: {"directoryRead": True}}


async def test_a_list_says_all_of_each_skill(folder: Path, connect: Connect) -> None:
    # SK-02, CA-10
    ask = await connect(make_server(folder, cache=CacheHint(300_000, "public")))
    result = await ask("skills/list")
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 300_000, "public")
    first = result["skills"][0]
    assert first["uri"] == "skill://refunds/SKILL.md"
    assert first["frontmatter"] == {"name": "refunds", "description": "How to pay back.", "license": "MIT"}
    assert first["resources"][0] == {"uri": first["uri"], "digest": f"sha256:{sha256(ONE).hexdigest()}", "size": len(ONE)}
    assert [skill["uri"] for skill in result["skills"]] == [
        "skill://refunds/SKILL.md",
        "skill://team/triage/SKILL.md",
        "skill://team/triage/inner/SKILL.md",
    ]
    assert [resource["uri"] for resource in result["skills"][1]["resources"]] == [skill["uri"] for skill in result["skills"][1:]]


async def test_every_file_reads_as_its_entry_says(folder: Path, connect: Connect) -> None:
    # SK-02, SK-05
    ask = await connect(make_server(folder))
    (folder / "refunds/SKILL.md").write_text("changed after the start")
    (folder / "refunds/mails/a b.txt").unlink()
    seen = set()
    for skill in (await ask("skills/list"))["skills"]:
        for resource in skill["resources"]:
            (contents,) = (await ask("resources/read", {"uri": resource["uri"]}))["contents"]
            data = contents["text"].encode() if "text" in contents else b64decode(contents["blob"])
            assert (f"sha256:{sha256(data).hexdigest()}", len(data)) == (resource["digest"], resource["size"])
            assert contents["uri"] == resource["uri"]
            seen.add(data)
    assert seen == set(FILES.values())


async def test_pages_never_split_a_skill(folder: Path, connect: Connect) -> None:
    # SK-03, PG-01
    ask = await connect(make_server(folder, page_size=2))
    pages = await walk(ask, "skills/list", "skills")
    assert [len(page) for page in pages] == [2, 1]
    whole = await connect(make_server(folder))
    assert [skill for page in pages for skill in page] == (await whole("skills/list"))["skills"]


@pytest.mark.parametrize("cursor", ["", "nonsense", "dG9vbHM6Mg=="])
async def test_a_cursor_of_another_list_is_refused(folder: Path, connect: Connect, cursor: str) -> None:
    # PG-05
    ask = await connect(make_server(folder, page_size=2, directory_read=True))
    for method, params in (("skills/list", {}), ("resources/directory/read", {"uri": "skill://refunds"})):
        with pytest.raises(RefusedError) as refused:
            await ask(method, {**params, "cursor": cursor})
        assert refused.value.code == -32602


async def test_one_skill_by_its_uri(folder: Path, connect: Connect) -> None:
    # SK-03, CA-10
    ask = await connect(make_server(folder, page_size=1))
    for page in await walk(ask, "skills/list", "skills"):
        result = await ask("skills/get", {"uri": page[0]["uri"]})
        assert result["skill"] == page[0]
        assert (result["ttlMs"], result["cacheScope"], "nextCursor" in result) == (0, "private", False)


@pytest.mark.parametrize(
    "uri", ["skill://none/SKILL.md", "skill://refunds", "skill://refunds/mails/a%20b.txt", "", "skill://team/SKILL.md"]
)
async def test_what_is_no_skill_is_invalid_params(folder: Path, connect: Connect, uri: str) -> None:
    # SK-03
    ask = await connect(make_server(folder))
    with pytest.raises(RefusedError) as refused:
        await ask("skills/get", {"uri": uri})
    assert (refused.value.code, refused.value.data) == (-32602, {"uri": uri})


async def test_skills_are_in_the_list_of_resources(folder: Path, connect: Connect) -> None:
    # SK-02, RS-01
    ask = await connect(make_server(folder))
    listed = (await ask("resources/list"))["resources"]
    assert listed[0] == {
        "uri": "skill://refunds/SKILL.md",
        "name": "refunds",
        "description": "How to pay back.",
        "mimeType": "text/markdown",
        "size": len(ONE),
    }
    assert [resource["name"] for resource in listed] == ["refunds", "triage", "inner"]
    (template,) = (await ask("resources/templates/list"))["resourceTemplates"]
    assert template["uriTemplate"] == "skill://{+path}"


@pytest.mark.parametrize(
    "uri",
    [
        "skill://refunds/../team/triage/SKILL.md",
        "skill://refunds/%2e%2e/team/triage/SKILL.md",
        "skill://refunds/..%2f..%2fetc/passwd",
        "skill:///etc/passwd",
        "skill://refunds/SKILL.md%00.txt",
        "skill://refunds/%5c..%5cx",
        "skill://refunds/mails",
        "skill://refunds/mails/.env",
        "skill://refunds",
        "skill://none/SKILL.md",
    ],
)
async def test_nothing_else_can_be_read(folder: Path, connect: Connect, uri: str) -> None:
    # SA32, SK-03
    (folder / "refunds/mails/.env").write_text("SECRET")
    ask = await connect(make_server(folder, directory_read=True))
    with pytest.raises(RefusedError) as refused:
        await ask("resources/read", {"uri": uri})
    assert refused.value.code == -32602


async def test_a_directory_lists_its_children(folder: Path, connect: Connect) -> None:
    # SK-01
    ask = await connect(make_server(folder, directory_read=True))
    root = (await ask("resources/directory/read", {"uri": "skill://refunds"}))["resources"]
    assert root == [
        (await ask("resources/list"))["resources"][0],
        {"uri": "skill://refunds/empty", "name": "empty", "mimeType": "inode/directory"},
        {"uri": "skill://refunds/mails", "name": "mails", "mimeType": "inode/directory"},
    ]
    assert (await ask("resources/directory/read", {"uri": "skill://refunds/empty"}))["resources"] == []
    mails = (await ask("resources/directory/read", {"uri": "skill://refunds/mails"}))["resources"]
    assert [(child["name"], child["mimeType"]) for child in mails] == [
        ("a b.txt", "text/plain"),
        ("de", "inode/directory"),
        ("logo.png", "image/png"),
    ]
    (team,) = (await ask("resources/directory/read", {"uri": "skill://team"}))["resources"]
    assert team == {"uri": "skill://team/triage", "name": "triage", "mimeType": "inode/directory"}


async def test_directories_come_in_pages(folder: Path, connect: Connect) -> None:
    # SK-01, PG-01
    ask = await connect(make_server(folder, page_size=2, directory_read=True))
    pages = await walk(ask, "resources/directory/read", "resources", {"uri": "skill://refunds/mails"})
    assert [[child["name"] for child in page] for page in pages] == [["a b.txt", "de"], ["logo.png"]]
    cursor = (await ask("resources/directory/read", {"uri": "skill://refunds/mails"}))["nextCursor"]
    with pytest.raises(RefusedError):
        await ask("resources/directory/read", {"uri": "skill://refunds", "cursor": cursor})


@pytest.mark.parametrize(
    "uri", ["skill://refunds/SKILL.md", "skill://refunds/", "skill://none", "skill://", "", "skill://refunds/mails/.."]
)
async def test_what_is_no_directory_is_invalid_params(folder: Path, connect: Connect, uri: str) -> None:
    # SK-03
    ask = await connect(make_server(folder, directory_read=True))
    with pytest.raises(RefusedError) as refused:
        await ask("resources/directory/read", {"uri": uri})
    assert refused.value.code == -32602


async def test_without_the_setting_directories_are_no_method(folder: Path, connect: Connect) -> None:
    # SK-01
    ask = await connect(make_server(folder))
    with pytest.raises(RefusedError) as refused:
        await ask("resources/directory/read", {"uri": "skill://refunds"})
    assert refused.value.code == -32601


async def test_without_the_extension_there_are_no_skills(connect: Connect) -> None:
    # EX-03
    ask = await connect(Server("plain"))
    with pytest.raises(RefusedError) as refused:
        await ask("skills/list")
    assert refused.value.code == -32601


async def test_params_of_the_wrong_type_are_invalid_params(folder: Path) -> None:
    # HH-04: Mcp-Name mirrors no param of these methods
    client = Http(asgi(make_server(folder)))
    for params in ({}, {"uri": 1}, {"uri": None}):
        answer = await client.post(make_request("skills/get", params))
        assert (answer.status, answer.error["code"]) == (400, -32602)


def test_it_is_added_once(folder: Path) -> None:
    server = make_server(folder)
    with pytest.raises(RegistrationError, match="is there already"):
        server.extend(Skills(folder))


@pytest.mark.parametrize("version", [V11, V06, V03])
async def test_a_2025_client_has_the_files_and_not_the_methods(folder: Path, version: str) -> None:
    # EX-05, SK-01: the extension is one of the current protocol; to others its files are resources like any
    session = await Legacy(asgi(make_server(folder, directory_read=True)), version).connect()
    assert "extensions" not in session.opening["capabilities"]
    assert "resources" in session.opening["capabilities"]
    listed = (await session.request("resources/list")).result["resources"]
    assert [resource["name"] for resource in listed] == ["refunds", "triage", "inner"]
    answer = await session.request("resources/read", {"uri": "skill://refunds/mails/de/gru%C3%9F.txt"})
    (contents,) = answer.result["contents"]
    assert (contents["text"], contents["mimeType"]) == ("Grüße", "text/plain")
    for method in ("skills/list", "skills/get", "resources/directory/read"):
        refused = await session.request(method, {"uri": "skill://refunds"})
        assert refused.error["code"] == -32601
