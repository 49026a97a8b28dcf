"""A server whose sessions are counted on: what `test_fleet.py` runs with several workers."""

import asyncio
import os

import msgspec

from callboard import Server


class Cart(msgspec.Struct):
    """The state of a session: what was added, in order."""

    items: list[int] = []


server = Server("fleet", state=Cart, channels=["news"])


@server.tool
async def add(item: int, cart: Cart) -> list[int]:
    """Adds, and takes a moment, so that a death may come in between."""
    await asyncio.sleep(0.005)
    cart.items.append(item)
    return [os.getpid(), *cart.items]


@server.tool
async def tell(number: int) -> int:
    """Tells all sessions; what was told is on its way when this is answered."""
    server.broadcast("news", {"method": "notifications/message", "params": {"level": "info", "data": number}})
    await asyncio.sleep(0.1)
    return os.getpid()
