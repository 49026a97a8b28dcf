"""Agent skills: `server.extend(Skills("skills"))`."""

from __future__ import annotations

from callboard.extensions.skills import Skills

__all__ = ["Skills"]
