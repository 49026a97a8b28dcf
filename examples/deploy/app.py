"""The server that the recipes of this folder serve: `callboard run app.py --workers 2 --store redis://127.0.0.1:6379/0`.

What differs from place to place comes from the environment:

PUBLIC_HOST     the name that clients use
ISSUER          the authorization server whose tokens are taken; without one: the file of the next line
CREDENTIALS     folder with the file `tokens`, of lines `SHA-256-of-a-token who`; systemd and Docker have places for such files
"""

import os
from pathlib import Path

from msgspec import Struct

import callboard
from callboard import Context, Server
from callboard.auth import JWT, BearerTokens, Verifier
from callboard.limits import PER_PRINCIPAL, Limits

HOST = os.environ.get("PUBLIC_HOST", "notes.example.com")


class Notes(Struct):
    """What a session of a 2025 client has written down; it lives in the store, so that any worker has it."""

    lines: list[str] = []


server = Server("notes", version="1.0.0", state=Notes)


@server.tool(timeout=30)
async def note(line: str, notes: Notes) -> int:
    """Write a line down; answers how many there are."""
    notes.lines.append(line)
    return len(notes.lines)


@server.tool(timeout=60)
async def count(to: int, ctx: Context) -> str:
    """Count, with progress."""
    import asyncio

    for number in range(1, min(to, 100) + 1):
        ctx.progress(number, to)
        await asyncio.sleep(0.1)
    return "done"


def read_verifier() -> Verifier:
    """Who may call: whoever has a token of the issuer, else one of those whose digests are in the file."""
    if issuer := os.environ.get("ISSUER"):
        return JWT(issuer)
    folder = os.environ.get("CREDENTIALS") or os.environ.get("CREDENTIALS_DIRECTORY") or "/run/secrets"
    tokens = Path(folder) / "tokens"
    if not tokens.is_file():
        raise SystemExit(f"There is no file {tokens}: say CREDENTIALS, the folder that has it, or ISSUER.")
    lines = tokens.read_text(encoding="utf-8").split("\n")
    return BearerTokens(digests={digest: who for digest, _, who in (line.strip().partition(" ") for line in lines) if who})


app = callboard.asgi(
    server,
    auth=read_verifier(),
    resource=f"https://{HOST}/mcp",
    hosts=[HOST],
    allow_remote=True,  # the proxy tells who connects: mostly others than this machine
    limits=Limits(message_rate=PER_PRINCIPAL),
)
