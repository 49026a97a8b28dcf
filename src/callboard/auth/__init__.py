"""Who asks, and what they may: verifiers for `asgi(auth=...)`. Each is loaded when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callboard.auth.introspection import Introspection as Introspection
    from callboard.auth.jwt import JWT as JWT
    from callboard.auth.principal import Principal as Principal
    from callboard.auth.static import ApiKeys as ApiKeys
    from callboard.auth.static import BearerTokens as BearerTokens
    from callboard.auth.upstream import Upstream as Upstream
    from callboard.auth.verifier import Grant as Grant
    from callboard.auth.verifier import Refusal as Refusal
    from callboard.auth.verifier import Verifier as Verifier

_HOMES = {
    "JWT": "jwt",
    "ApiKeys": "static",
    "BearerTokens": "static",
    "Grant": "verifier",
    "Introspection": "introspection",
    "Principal": "principal",
    "Refusal": "verifier",
    "Upstream": "upstream",
    "Verifier": "verifier",
}
__all__ = ["JWT", "ApiKeys", "BearerTokens", "Grant", "Introspection", "Principal", "Refusal", "Upstream", "Verifier"]


def __getattr__(name: str) -> Any:
    """Load a name's module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
