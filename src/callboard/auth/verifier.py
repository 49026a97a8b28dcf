"""What finds out who sends an HTTP request: the contract of every verifier, the shipped ones and yours."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, NamedTuple, TypeAlias

from callboard.auth.principal import Principal

__all__ = ["Grant", "Refusal", "Scope", "Verifier", "read_bearer"]

Scope: TypeAlias = MutableMapping[str, Any]


class Grant(NamedTuple):
    """Who sends a request.

    Attributes:
        principal: Who it is.
        until: Unix time, in seconds, until which the same header may be taken for theirs without `find` or `verify` being asked again: not for a
            verifier that looks at anything else. None for not at all. What is not found in the header as it stands is never remembered.
    """

    principal: Principal
    until: float | None = None


class Refusal(NamedTuple):
    """Why a request has no principal.

    Attributes:
        kind: `missing`: it has no credential. `malformed`: it has something that can't be one (400, AR-05). `invalid`: a credential that is
            not, or no more, good here. `unavailable`: nobody can tell right now (503).
        detail: One sentence for the client, printable ASCII without quotes; it holds nothing of the credential.
        retry_after: Seconds after which to ask again, for `unavailable`.
        note: What the server's own log says besides, at DEBUG; printable, and nothing that must not stand there.
    """

    kind: Literal["missing", "malformed", "invalid", "unavailable"]
    detail: str = ""
    retry_after: int = 1
    note: str = ""


class Verifier:
    """Finds out who sends a request. Subclasses say how, in `verify`.

    Attributes:
        header: Name, in lower case, of the header that carries the credential.
        issuers: Authorization servers that clients get credentials from; empty where there is none.
        generation: Counts up whenever what was granted before may not hold any more: then nothing that is remembered counts.
    """

    header: bytes = b"authorization"
    issuers: tuple[str, ...] = ()
    generation: int = 0

    def bind(self, resource: str | None) -> None:
        """Learn what the server is called, once, when it is put before an application.

        Args:
            resource: The server's identifier (RFC 8707); None where it has none.

        Raises:
            RegistrationError: The verifier can't work there.
        """

    def facts(self) -> dict[str, Any]:
        """What it holds callers to, for people who look at a deployment: nothing of it is secret, or leads to a secret.

        Returns:
            JSON values by name, such as `audience`, `algorithms`, `keys` (where they come from) or `secrets` (how many).
        """
        return {}

    async def close(self) -> None:
        """Give back what `verify` took on the running event loop."""

    def find(self, headers: Mapping[bytes, bytes], scope: Scope) -> str | Refusal:  # noqa: ARG002 - of interest to those that read the scope
        """The credential of a request. Never from the query string (AR-10)."""
        return read_bearer(headers.get(self.header))

    async def verify(self, credential: str) -> Grant | Refusal:
        """Say whose a credential is.

        Args:
            credential: What `find` found.
        """
        raise NotImplementedError


def read_bearer(value: bytes | None) -> str | Refusal:
    """The token of an `Authorization` header: RFC 6750 section 2.1, with the scheme in any case.

    Args:
        value: The header; None where there is none.
    """
    if value is None:
        return Refusal("missing")
    scheme, _, token = value.partition(b" ")
    if scheme.lower() != b"bearer":
        return Refusal("missing")
    token = token.strip(b" ")
    core = token.rstrip(b"=")
    if not core or core.translate(None, _TOKEN_BYTES):
        return Refusal("malformed", "The Authorization header holds no bearer token.")
    return token.decode("ascii")


# b64token, RFC 6750 section 2.1; padding comes last.
_TOKEN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/"
