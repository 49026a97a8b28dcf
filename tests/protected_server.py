"""An MCP server that takes the tokens of an `AuthorizationServer` alone, in front of Callboard's own endpoint."""

import contextlib
import json
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from authorization_server import AuthorizationServer, Token
from jwt_oracle import Nonces, TokenError, prove
from recording_app import Answer, Receive, Recorded, RecordingApp, Scope, Send, json_answer, serving

from callboard import Server, asgi

WELL_KNOWN = "/.well-known/oauth-protected-resource"
CUSTOM = "/custom/metadata/of/the/desk.json"

Authorized: TypeAlias = tuple[Token, str]


def make_server() -> Server:
    """A server with one tool."""
    server = Server("protected")

    @server.tool(name="test-tool")
    async def test_tool() -> str:
        return "the play goes on"

    return server


class UnauthorizedError(Exception):
    """Why a request is refused."""

    def __init__(self, status: int, error: str, why: str, scope: str | None = None) -> None:
        super().__init__(f"{status} {error}: {why}")
        self.status, self.error, self.scope = status, error, scope


@dataclass
class ProtectedServer(RecordingApp):
    """The server; every field may change while it runs.

    Attributes:
        authorization: Whose tokens it takes, and whom its metadata name.
        place: Where its metadata are: `path`, `root`, `custom`, or `none`.
        announce: Whether challenges name the place; a text: what they name instead.
        prm_changes: Put over the metadata; a value of None takes a field out.
        challenge_scope: `scope` of a 401; None for none.
        needs: Scopes that a JSON-RPC method needs; `*` is for all others.
        refuse: Whether every authorized request gets 403 insufficient_scope all the same.
        nonces: What DPoP proofs must carry; None: nothing.
        mcp_path: Path of the endpoint.
    """

    authorization: AuthorizationServer
    place: str = "path"
    announce: bool | str = True
    prm_changes: dict[str, Any] = field(default_factory=dict)
    challenge_scope: str | None = None
    needs: dict[str, frozenset[str]] = field(default_factory=dict)
    refuse: bool = False
    nonces: Nonces | None = None
    mcp_path: str = "/mcp"

    def __post_init__(self) -> None:
        super().__init__()
        self._app: Any = asgi(make_server(), path=self.mcp_path)
        self._seen: set[str] = set()
        self.accepted: list[Recorded] = []

    @property
    def url(self) -> str:
        """The endpoint."""
        return self.origin + self.mcp_path

    def _metadata_path(self) -> str | None:
        places = {"path": WELL_KNOWN + self.mcp_path, "root": WELL_KNOWN, "custom": CUSTOM, "none": None}
        return places[self.place]

    def metadata(self) -> dict[str, Any]:
        """RFC 9728."""
        document = {
            "resource": self.url,
            "authorization_servers": [self.authorization.issuer],
            "bearer_methods_supported": ["header"],
            **self.prm_changes,
        }
        return {name: value for name, value in document.items() if value is not None}

    def kind(self, request: Recorded) -> str:
        """`mcp`, `prm` or `other`."""
        if request.path == self.mcp_path:
            return "mcp"
        return "prm" if request.path.startswith(WELL_KNOWN) or request.path == CUSTOM else "other"

    async def reply(self, request: Recorded) -> Answer | None:
        """Refuses, or leaves it to the endpoint."""
        if request.kind == "prm":
            return json_answer(200, self.metadata()) if request.path == self._metadata_path() else Answer(404)
        if request.kind == "other":
            return Answer(404)
        try:
            self._check(request)
        except UnauthorizedError as refused:
            if refused.error:
                self.violations.append(str(refused))
            return self._challenge(refused)
        self.accepted.append(request)
        return None

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To Callboard's endpoint."""
        await self._app(scope, receive, self.with_nonce(send))

    def with_nonce(self, send: Send) -> Send:
        """What sends answers that name the next nonce."""

        async def named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and self.nonces:
                message["headers"] = [*message["headers"], (b"dpop-nonce", self.nonces.current.encode())]
            await send(message)

        return named

    def _check(self, request: Recorded) -> None:
        if "access_token" in request.query:
            raise UnauthorizedError(400, "invalid_request", "a token in the URL")  # AC-01
        scheme, _, word = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            raise UnauthorizedError(401, "", "no token", self.challenge_scope)
        token = self.authorization.tokens.get(word)
        if token is None or token.revoked or token.end <= self.authorization.clock() or token.resource != self.url:
            raise UnauthorizedError(401, "invalid_token", "unknown, over, or for another server", self.challenge_scope)
        if (scheme == "DPoP") != (token.thumbprint is not None):
            raise UnauthorizedError(401, "invalid_token", f"the token can't come as {scheme}")
        if token.thumbprint is not None:
            self._check_proof(request, word, token.thumbprint)
        method = json.loads(request.body).get("method", "") if request.body else ""
        needed = self.needs.get(method, self.needs.get("*", frozenset()))
        if self.refuse or not needed <= token.scopes:
            raise UnauthorizedError(403, "insufficient_scope", f"{method} needs more", " ".join(sorted(needed)) or "mcp:admin")

    def _check_proof(self, request: Recorded, token: str, thumbprint: str) -> None:
        try:
            found, nonce = prove(
                request.headers.get("dpop", ""),
                request.method,
                self.origin + request.path,
                self.authorization.clock(),
                seen=self._seen,
                access_token=token,
            )
        except TokenError as error:
            raise UnauthorizedError(401, "invalid_dpop_proof", str(error)) from error
        if found != thumbprint:
            raise UnauthorizedError(401, "invalid_token", "the token is another key's")
        if self.nonces and not self.nonces.take(nonce):
            raise UnauthorizedError(401, "use_dpop_nonce", "a nonce is needed")

    def _challenge(self, refused: UnauthorizedError) -> Answer:
        if refused.status == 400:
            return json_answer(400, {"error": refused.error})
        words = []
        if refused.error:
            words.append(f'error="{refused.error}"')
        if refused.scope is not None:
            words.append(f'scope="{refused.scope}"')
        if isinstance(self.announce, str):
            words.append(f'resource_metadata="{self.announce}"')
        elif self.announce and self.place != "none":
            words.append(f'resource_metadata="{self.origin}{self._metadata_path()}"')
        scheme = "DPoP" if "dpop" in refused.error else "Bearer"
        headers = {"www-authenticate": f"{scheme} {', '.join(words)}".strip()}
        if self.nonces:
            headers["dpop-nonce"] = self.nonces.current
        return Answer(refused.status, headers=headers)


@contextlib.asynccontextmanager
async def guarded(
    authorization: AuthorizationServer | None = None, **options: Any
) -> AsyncIterator[tuple[AuthorizationServer, ProtectedServer]]:
    """An authorization server and an MCP server that trusts it, both running; tokens are for the MCP server alone."""
    trusted = authorization or AuthorizationServer()
    protected = ProtectedServer(trusted, **options)
    async with serving(trusted, protected):
        trusted.resources.add(protected.url)
        yield trusted, protected
