"""The official clients log in at the demo authorization server of examples/, step up, renew, and go on when keys change.

PyPI's `mcp` 1.30 and 2.3 and npm's `@modelcontextprotocol/sdk` 1.32 and `client` 2.4 in each mode they have, registered and by a metadata
document, as e2e/test_login.py has it of ours. peers.py installs them; where that can't be done these tests skip and say why, or fail when
REQUIRE_PEERS=1 (as in CI).
"""

import asyncio

import pytest
from interop.playing import Steps, client_command, look, play
from login_stage import CIMD, Stage, staged

CLIENTS = {
    "login-python1": ("legacy",),
    "login-python2": ("legacy", "modern"),
    "login-node1": ("legacy",),
    "login-node2": ("legacy", "modern"),
}
READ, BOTH = ["ada", "notes:read"], ["ada", "notes:read", "notes:write"]
LOGINS = ["notes:read", "notes:read notes:write"]
SEEN = {
    "login": {"seen": READ, "pages": LOGINS[:1]},
    "step-up": {"written": 1, "seen": BOTH, "pages": LOGINS},
    "renewed": {"seen": BOTH},
    "last key": {"seen": BOTH},
    "new key": {"seen": BOTH, "written": 2, "pages": LOGINS},
    "end": {},
}


def log_in(what: str) -> tuple[Steps, set[str]]:
    """What a client saw, and as whom it was known: `client mode who`."""
    client, mode, who = what.split()
    command = client_command(client)

    async def show() -> tuple[Steps, Stage]:
        async with staged() as stage:
            return await asyncio.to_thread(play, [*command, stage.url, mode, who]), stage

    seen, stage = asyncio.run(show())
    return seen, {login.client_id for _, login in stage.authorization.logins.rows.values()}


AHEAD = {"what": log_in}


@pytest.mark.parametrize(
    "what", [f"{client} {mode} {who}" for client, modes in CLIENTS.items() for mode in modes for who in ("register", CIMD)]
)
def test_official_clients_log_in_and_step_up(what: str) -> None:
    """AR-03, AR-04, AR-05, AR-06, AR-07, AR-08: what the clients need for it is there, and right."""
    seen, clients = look(log_in, what)
    assert seen == SEEN
    assert len(clients) == 1
    assert clients == {CIMD} or what.endswith("register")
