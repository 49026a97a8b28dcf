"""Notes that belong to who wrote them: a server that takes the tokens of one authorization server, and asks more of one tool.

python examples/authorization_server.py      # in another terminal; DEMO ONLY
python examples/protected.py [--port 8000] [--issuer http://127.0.0.1:9000]
callboard login http://127.0.0.1:8000/mcp     # or examples/login.py
"""

import argparse
from collections import defaultdict

import callboard
from callboard import Context, Server
from callboard.auth import JWT, Principal

server = Server("notes", version="1.0.0")
notes: dict[str, list[str]] = defaultdict(list)  # a principal -> theirs


def caller(ctx: Context) -> Principal:
    """Who asks: over HTTP the verifier has found out, or nobody gets in."""
    assert isinstance(ctx.principal, Principal)
    return ctx.principal


@server.tool
def whoami(ctx: Context) -> list[str]:
    """Who you are, and what you may do: the subject, then the scopes."""
    return [caller(ctx).subject, *sorted(ctx.scopes)]


@server.tool
def read(ctx: Context) -> list[str]:
    """Read your notes."""
    return notes[caller(ctx)]


@server.tool(scopes={"notes:write"})  # who lacks it is told so, by 403: a client asks its user then (step-up)
def write(text: str, ctx: Context) -> int:
    """Write a note."""
    notes[caller(ctx)].append(text)
    return len(notes[caller(ctx)])


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=8000)
    options.add_argument("--issuer", default="http://127.0.0.1:9000")
    chosen = options.parse_args()
    callboard.run(
        server,
        port=chosen.port,
        log_level="warning",
        auth=JWT(
            issuer=chosen.issuer
        ),  # its keys are looked for there; audience: the resource, so that a token for another server is none here
        resource=f"http://127.0.0.1:{chosen.port}/mcp",  # what clients know it as; they find the issuer by the 401 that names its metadata
        scopes={"notes:read"},  # what every request needs
        implies={"notes:write": {"notes:read"}},  # who may write may read
    )
