"""The bridge to what stands in front: a middleware or a proxy has found out already who sends a request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from callboard.auth.principal import Principal
from callboard.auth.verifier import Grant, Refusal, Scope, Verifier
from callboard.errors import RegistrationError

__all__ = ["Upstream"]


class Upstream(Verifier):
    """Takes the identity that an ASGI middleware in front has put into the scope. It is read anew with every request.

        auth=Upstream(lambda scope: scope.get("state", {}).get("user"))

    Only what the middleware sets itself may be read: headers of the request are the client's word, unless a proxy in front replaces them without
    exception, and nobody can reach the server past that proxy.

    Args:
        read: Finds who sends a request in its ASGI scope; None or an empty text for nobody. What it raises answers the request with an internal
            error: a broken bridge lets nobody in.
        issuers: Authorization servers that clients get credentials from, for the metadata of the resource.

    Raises:
        RegistrationError: An option can't work.
    """

    def __init__(self, read: Callable[[Scope], Principal | str | None], issuers: tuple[str, ...] | list[str] = ()) -> None:
        if not callable(read) or inspect.iscoroutinefunction(read):
            raise RegistrationError(f"Upstream: read is a plain function from the ASGI scope to a Principal, not {read!r}.")
        if isinstance(issuers, str) or not all(isinstance(issuer, str) for issuer in issuers):
            raise RegistrationError(f"Upstream: issuers is a list of URLs, not {issuers!r}.")
        self._read = read
        self.issuers = tuple(issuers)

    def __repr__(self) -> str:
        """Who reads."""
        return f"<Upstream {getattr(self._read, '__qualname__', 'function')}>"

    def facts(self) -> dict[str, Any]:
        """What reads the scope."""
        return {"reads": getattr(self._read, "__qualname__", type(self._read).__name__)}

    def find(self, headers: Mapping[bytes, bytes], scope: Scope) -> str | Refusal:  # noqa: ARG002 - headers are the client's word
        """Who sends a request.

        Raises:
            TypeError: `read` gave something else than a Principal, a str or None.
        """
        found = self._read(scope)
        if found is None:
            return Refusal("missing")
        if not isinstance(found, str):
            raise TypeError(f"{self!r}: read gave {type(found).__name__}, and neither a Principal, nor a str, nor None.")
        return found or Refusal("missing")

    async def verify(self, credential: str) -> Grant | Refusal:
        """Nothing is left to verify.

        Args:
            credential: The Principal that `find` found.
        """
        return Grant(credential if isinstance(credential, Principal) else Principal(credential))
