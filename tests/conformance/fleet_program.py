"""The server of `server.py`, as one of several workers: it says which one it is, to who asks and in its log."""

import logging
import os

from conformance.server import server

__all__ = ["server"]


@server.tool
async def which_worker() -> str:
    """Says which worker was asked."""
    return str(os.getpid())


class Worker(logging.Filter):
    """Adds the worker to a record's fields."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add it; all records go on."""
        record.__dict__["callboard"]["worker"] = os.getpid()
        return True


logging.getLogger("callboard.requests").addFilter(Worker())
