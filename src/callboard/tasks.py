"""Where calls that became tasks are kept: `Server(tasks=MemoryTasks(ttl=600))`."""

from __future__ import annotations

from callboard.server.task_table import MemoryTasks, Tasks

__all__ = ["MemoryTasks", "Tasks"]
