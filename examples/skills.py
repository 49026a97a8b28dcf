"""Skills: folders of instructions for agents, served beside the tools they speak of, with a digest for every file."""

import asyncio
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from callboard import Client, Server
from callboard.skills import Skills

REPORT = """\
---
name: weekly-report
description: Write the weekly report of a team; use it when somebody asks what happened this week.
license: MIT
---
1. Call `finished` for each day of the week.
2. Fill in [the template](templates/report.md).
"""
FILES = {
    "release-notes/SKILL.md": "---\nname: release-notes\ndescription: Write release notes; use it when a version goes out.\n---\n",
    "weekly-report/SKILL.md": REPORT,
    "weekly-report/templates/report.md": "## Week {number}\n\n- Done:\n- Next:\n",
}


def finished(day: str) -> list[str]:
    """What was finished on a day."""
    return [f"{day}: nothing"]


def make_server(folder: Path) -> Server:
    """Yours would have the files beside it: `Skills(Path(__file__).parent / "skills")`."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    server = Server("team", version="1.0.0", instructions="skill://weekly-report/SKILL.md says how to report.")
    server.add(finished)
    server.extend(Skills(folder, directory_read=True))
    return server


async def main() -> None:
    with TemporaryDirectory() as folder:
        server = make_server(Path(folder))
    async with Client(server) as client:  # what was read at the start is served
        capabilities = (await client.discover()).capabilities
        assert capabilities.extensions == {"io.modelcontextprotocol/skills": {"directoryRead": True}}

        notes, report = (await client.request("skills/list"))["skills"]
        assert notes["frontmatter"]["name"] == "release-notes"
        assert report["frontmatter"]["license"] == "MIT"
        assert [file["uri"] for file in report["resources"]] == [
            "skill://weekly-report/SKILL.md",
            "skill://weekly-report/templates/report.md",
        ]
        assert (await client.request("skills/get", {"uri": report["uri"]}))["skill"] == report

        for file in report["resources"]:  # what a host does before it believes a file
            (contents,) = (await client.read_resource(file["uri"])).contents
            data = str(contents.text).encode()
            assert (len(data), f"sha256:{sha256(data).hexdigest()}") == (file["size"], file["digest"])

        listing = await client.request("resources/directory/read", {"uri": "skill://weekly-report"})
        assert [child["mimeType"] for child in listing["resources"]] == ["text/markdown", "inode/directory"]
        assert [resource.name for resource in await client.list_resources()] == ["release-notes", "weekly-report"]
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
