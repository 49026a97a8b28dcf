"""Tasks that run in processes of their own, on any machine that reaches the Redis.

pip install 'callboard[tasks]'
callboard run tasks_on_workers.py --store redis://127.0.0.1:6379/0
callboard worker tasks_on_workers.py --store redis://127.0.0.1:6379/0
callboard call http://127.0.0.1:8000/mcp print_book title='Moby Dick' copies=5
"""

import asyncio
import secrets

from callboard import Context, Server
from callboard.tasks import DocketTasks

server = Server("press", version="1.0.0", tasks=DocketTasks(max_age=3600))


async def order_paper() -> str:
    """Order the paper, which must not be ordered twice."""
    return f"order {secrets.token_hex(4)}"


@server.tool(task="allowed", idempotent=True)
async def print_book(ctx: Context, title: str, copies: int = 1) -> str:
    """Print a book; a worker that dies leaves it to another one, which begins at the top, but orders no paper."""
    order = await ctx.once("paper", order_paper)
    for number in range(copies):
        ctx.progress(number, copies, f"copy {number + 1} of {copies}, on paper of {order}")
        await asyncio.sleep(0.01)
    return f"{copies} copies of {title}, on paper of {order}"


@server.tool(task="always")
async def pay(ctx: Context, cents: int) -> str:
    """Pay the printer. This must not happen twice: where the worker dies, the task fails, and somebody has to look."""
    agreed = await ctx.elicit(f"Pay {cents / 100:.2f}?", bool)
    return "paid" if agreed.value else "kept"
