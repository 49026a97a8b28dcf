"""Begins what the selected tests will look at before the first of them waits for it."""

from collections.abc import Iterator

import pytest
from interop.playing import begin, pool


@pytest.fixture(scope="session", autouse=True)
def ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test module says in AHEAD which play each of its parametrized fixtures gives."""
    for item in request.session.items:
        plays = getattr(getattr(item, "module", None), "AHEAD", {})
        for name, parameter in getattr(getattr(item, "callspec", None), "params", {}).items():
            if name in plays:
                begin(plays[name], parameter)
    yield
    pool.shutdown(cancel_futures=True)
