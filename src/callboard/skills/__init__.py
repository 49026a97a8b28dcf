"""Agent skills: `server.extend(Skills("skills"))`."""

from __future__ import annotations

from callboard.skills.extension import Skills

__all__ = ["Skills"]
