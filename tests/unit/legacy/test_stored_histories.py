"""Sessions that workers share in memory: every history is as the model says."""

import asyncio
import os
from typing import Final

import pytest
from hypothesis import given, settings
from session_fleet import MemoryFleet
from session_histories import KEEP, Act, histories, walk
from session_lives import Lives
from virtual_time import run

HISTORIES: Final = int(os.environ.get("HISTORIES", "300"))


@settings(max_examples=HISTORIES)
@given(histories)
def test_a_store_in_memory_is_the_model(history: list[Act]) -> None:
    """Turns in order, no state lost and none of a ticket that was evicted, events without hole or double, one end."""
    asyncio.run(walk(MemoryFleet(KEEP), history, "s"))


@pytest.mark.parametrize("seed", range(30))
def test_workers_die_and_nothing_is_lost_in_memory(seed: int) -> None:
    """No state is lost, none is a ghost's, and nobody waits for the dead."""
    run(Lives(MemoryFleet(keep=256), seed, patience=1.0).run)
