"""Prompts that people pick in their client, and suggestions while they fill in the arguments."""

import asyncio

from callboard import Client, Server, embed, text
from callboard.types import PromptMessage, PromptReference, ResourceTemplateReference, assistant, user

server = Server("writing", version="1.0.0")
DRAFTS = {"fiction": ["dune", "emma"], "essays": ["walden"]}


@server.prompt
def review(genre: str, title: str, tone: str = "kind") -> str:
    """Review a draft.

    Args:
        genre: The shelf it is on.
        title: Which one.
        tone: How to say it.
    """
    return f"Review my draft {title} ({genre}). Be {tone}."


@server.prompt(title="Interview")
def interview(rounds: int) -> list[PromptMessage]:
    """Arguments are strings on the wire and convert to the annotations; messages can hold any content."""
    notes = embed("writing://notes", "Never interrupt.", mime_type="text/plain")
    return [user(f"Ask me {rounds} questions."), user(notes), assistant("What are you working on?")]


@server.resource("writing://drafts/{genre}/{title}")
def draft(genre: str, title: str) -> str:
    """A draft."""
    return f"{genre}: {title}"


@server.complete("review", "genre")
@server.complete("writing://drafts/{genre}/{title}", "genre")
def genres(prefix: str) -> list[str]:
    return [genre for genre in DRAFTS if genre.startswith(prefix)]


@server.complete("review", "title")
def titles(prefix: str, arguments: dict[str, str]) -> list[str]:
    """What is settled already narrows what comes next."""
    return [title for title in DRAFTS.get(arguments.get("genre", ""), []) if title.startswith(prefix)]


async def main() -> None:
    async with Client(server) as client:
        listed = {prompt.name: prompt for prompt in await client.list_prompts()}
        assert listed["interview"].title == "Interview"
        assert isinstance(listed["review"].arguments, list)
        assert [argument.name for argument in listed["review"].arguments if argument.required is True] == ["genre", "title"]

        review_me = await client.get_prompt("review", {"genre": "fiction", "title": "emma"})
        assert review_me.messages == [user("Review my draft emma (fiction). Be kind.")]
        first, _, last = (await client.get_prompt("interview", {"rounds": "3"})).messages
        assert first.content == text("Ask me 3 questions.")
        assert last.role == "assistant"

        ref = PromptReference(name="review")
        assert (await client.complete(ref, "genre", "f")).values == ["fiction"]
        assert (await client.complete(ref, "title", "", arguments={"genre": "fiction"})).values == ["dune", "emma"]
        template = ResourceTemplateReference(uri="writing://drafts/{genre}/{title}")
        assert (await client.complete(template, "genre", "")).values == ["fiction", "essays"]
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
