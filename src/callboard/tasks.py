"""Where calls that became tasks are kept, and run: `Server(tasks=MemoryTasks(ttl=600))`, `Server(tasks=DocketTasks())`."""

from __future__ import annotations

from callboard.server.task_contract import Tasks
from callboard.server.task_queue import DocketTasks
from callboard.server.task_table import MemoryTasks

__all__ = ["DocketTasks", "MemoryTasks", "Tasks"]
