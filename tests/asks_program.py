"""Functions that ask their client, written once; e2e/test_asks_everywhere.py and interop/test_asks.py hold every client there is to the same results.

`app` is for ASGI servers; `python asks_program.py` serves stdio.
"""

import asyncio
from collections import Counter
from typing import Literal

from msgspec import Struct

from callboard import Context, Server, asgi, run
from callboard.tasks import MemoryTasks

LOOK = 0.01  # seconds that looking at the shelf takes: by then a task is one, and asks as one

server = Server("asks", version="1.0.0", tasks=MemoryTasks(poll=0.02))
book: Counter[str] = Counter()

SEEN = {  # what a client must see that has tea with two lumps, knows a rhyme and is sure
    "choose": "tea with 2",
    "rhyme": "fun, sun",
    "order": "entry 1 of 1: tea, sure",  # the book was written into once
    "later": "tea with 2",
    "asked": [
        "What would you like?",
        "A rhyme to fun?",
        "What would you like?",
        "Entry 1: tea. Sure?",
        "What would you like?",
    ],
}


class Drink(Struct):
    """A drink.

    Attributes:
        kind: What it is.
        sugar: How many lumps.
    """

    kind: Literal["tea", "coffee"]
    sugar: int = 1


async def choose(ctx: Context) -> str:
    """Ask for a drink."""
    await asyncio.sleep(LOOK)
    answer = await ctx.elicit("What would you like?", Drink)
    return f"{answer.value.kind} with {answer.value.sugar}"


server.tool(name="choose")(choose)
server.tool(name="choose_later", task="always")(choose)


@server.tool
async def rhyme(word: str, ctx: Context) -> str:
    """Let the client's model find a rhyme."""
    said = await ctx.sample(f"A rhyme to {word}?", max_tokens=20)
    return f"{word}, {said.text}"


@server.tool
async def order(buyer: str, ctx: Context) -> str:
    """Ask twice, and write into the book once in between."""

    async def enter() -> int:
        book[buyer] += 1
        return book[buyer]

    drink = await ctx.elicit("What would you like?", Drink)
    number = await ctx.once("entry", enter)
    sure = await ctx.elicit(f"Entry {number}: {drink.value.kind}. Sure?", bool)
    return f"entry {number} of {book[buyer]}: {drink.value.kind}, {'sure' if sure.value else 'unsure'}"


# The same functions once more, as tasks: asks that come at once are rounds before there is a task, those after it are the task's.
server.tool(name="rhyme_later", task="always")(rhyme)
server.tool(name="order_later", task="always")(order)

app = asgi(server)

if __name__ == "__main__":
    run(server, transport="stdio")
