"""What holds for the whole run."""

import gc

from hypothesis import settings
from redis_server import redis_server  # noqa: F401 - the fixture, for all tests

# How long an example takes says more about who else is at work on this machine than about the example.
settings.register_profile("ours", deadline=None)
settings.load_profile("ours")


def pytest_collection_finish() -> None:
    """What the imports of all tests left behind is of no interest to those that look for garbage, and takes them a second each time."""
    gc.collect()
    gc.freeze()
