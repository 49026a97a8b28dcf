"""What holds for the whole run."""

import gc


def pytest_collection_finish() -> None:
    """What the imports of all tests left behind is of no interest to those that look for garbage, and takes them a second each time."""
    gc.collect()
    gc.freeze()
