"""The bounds of a server: `asgi(server, limits=Limits(max_body=1 << 20, address_rate=PER_ADDRESS))`. The table is docs/limits.md."""

from __future__ import annotations

from callboard.server.limits import PER_ADDRESS, PER_PRINCIPAL, Limits, Rate

__all__ = ["PER_ADDRESS", "PER_PRINCIPAL", "Limits", "Rate"]
