"""Which version is spoken: plans walked step by step, without a server."""

from collections.abc import Sequence

import pytest

from callboard.client.errors import (
    AuthorizationFailed,
    ClientError,
    ConnectionFailed,
    HttpError,
    InvalidAnswer,
    Origin,
    RequestTimeout,
    ServerError,
)
from callboard.client.negotiate import (
    OLDEST,
    VERSIONS,
    Discover,
    Initialize,
    OldTransport,
    Outcome,
    Remembered,
    Settled,
    Step,
    check_versions,
    negotiate,
)

NEW, OLD = VERSIONS[0], VERSIONS[1]
AT = Origin("http://peer")
ALL_OLD = list(VERSIONS[1:])


def refused(code: int, supported: Sequence[str] | None = None, status: int | None = 400) -> ServerError:
    return ServerError(code, "no", None if supported is None else {"supported": list(supported)}, status, AT)


def missing(status: int) -> HttpError:
    return HttpError(status, "", AT)


SILENT = RequestTimeout(1, AT)
UNREADABLE = InvalidAnswer("what is this", AT)


def walk(
    outcomes: Sequence[Outcome], spoken: Sequence[str] = VERSIONS, remembered: type[Step] | None = None, *, over_http: bool = True
) -> tuple[list[Step], Settled]:
    """Walk a plan; gives the steps it took and where it ended."""
    plan = negotiate(spoken, remembered, AT, over_http=over_http)
    left = list(outcomes)
    steps = [next(plan)]
    try:
        while True:
            steps.append(plan.send(left.pop(0)))
    except StopIteration as stop:
        assert not left
        return steps, stop.value


@pytest.mark.parametrize(
    ("outcomes", "steps", "version"),
    [
        ([[NEW]], [Discover(NEW)], NEW),
        # VN-06: the very version that was refused, because the server says that it speaks it
        ([refused(-32022, [NEW]), [NEW]], [Discover(NEW), Discover(NEW)], NEW),
        ([refused(-32022, [OLD]), [OLD]], [Discover(NEW), Initialize(OLD)], OLD),
        # VN-14, VN-16: only servers of the current protocol send these
        ([refused(-32021)], [Discover(NEW)], NEW),
        ([refused(-32020)], [Discover(NEW)], NEW),
        # VN-14, VN-17: anything else means an older server
        ([refused(-32601, status=404), [OLD]], [Discover(NEW), Initialize(OLD)], OLD),
        ([refused(-32000), [OLD]], [Discover(NEW), Initialize(OLD)], OLD),
        ([missing(400), [OLD]], [Discover(NEW), Initialize(OLD)], OLD),
        ([missing(500), [OLD]], [Discover(NEW), Initialize(OLD)], OLD),
        ([SILENT, [OLD]], [Discover(NEW), Initialize(OLD)], OLD),
        ([UNREADABLE, [OLD]], [Discover(NEW), Initialize(OLD)], OLD),
        # VN-20: the server chooses another one
        ([missing(400), ["2025-03-26"]], [Discover(NEW), Initialize(OLD)], "2025-03-26"),
        # LC-13
        (
            [missing(400), refused(-32602, ["2025-06-18"]), ["2025-06-18"]],
            [Discover(NEW), Initialize(OLD), Initialize("2025-06-18")],
            "2025-06-18",
        ),
        # HL-26: an endpoint that takes no POST
        ([missing(405), missing(405), [OLDEST]], [Discover(NEW), Initialize(OLD), OldTransport()], OLDEST),
        ([missing(404), missing(404), [OLDEST]], [Discover(NEW), Initialize(OLD), OldTransport()], OLDEST),
        # it had just started when it was asked first
        ([SILENT, refused(-32022, [NEW]), [NEW]], [Discover(NEW), Initialize(OLD), Discover(NEW)], NEW),
    ],
)
def test_what_a_server_says_decides_what_is_spoken(outcomes: list[Outcome], steps: list[Step], version: str) -> None:
    """VN-06, VN-13, VN-14, VN-16, VN-17, VN-19, HL-26."""
    over_http = any(isinstance(step, OldTransport) for step in steps)
    taken, settled = walk(outcomes, over_http=over_http)
    assert taken == steps
    assert settled == Settled(version, steps[-1])


@pytest.mark.parametrize(
    "error",
    [
        missing(401),
        missing(403),
        missing(421),
        missing(429),
        missing(503),
        refused(-32600, status=421),
        ServerError(400, "no token", None, 400, AT, challenges=('Bearer error="invalid_request"',)),  # AR-05
        HttpError(400, "", AT, challenges=("Basic", 'ApiKey header="x-key", error="invalid_request"')),
        ConnectionFailed("gone", AT),
        AuthorizationFailed("no", AT),
    ],
)
def test_what_no_other_words_can_mend_ends_it_at_once(error: ClientError) -> None:
    with pytest.raises(type(error)) as caught:
        walk([error])
    assert caught.value is error


def test_a_challenge_that_names_no_error_says_nothing_about_a_400() -> None:
    """VN-14: some proxies send it with every answer."""
    outcome = ServerError(-32600, "no session", None, 400, AT, challenges=("Bearer",))
    assert walk([outcome, [OLD]]) == ([Discover(NEW), Initialize(OLD)], Settled(OLD, Initialize(OLD)))


@pytest.mark.parametrize("remembered", [Initialize, OldTransport])
def test_what_worked_last_time_is_tried_first(remembered: type[Step]) -> None:
    """VN-12: and when the assumption fails, the other ways."""
    version = OLD if remembered is Initialize else OLDEST
    assert walk([[version]], remembered=remembered)[0] == [remembered(version)]
    assert walk([missing(404), [NEW]], remembered=remembered)[0] == [remembered(version), Discover(NEW)]


@pytest.mark.parametrize("pinned", ALL_OLD[:-1])
def test_a_pinned_version_is_the_only_one_that_is_tried(pinned: str) -> None:
    assert walk([[pinned]], [pinned]) == ([Initialize(pinned)], Settled(pinned, Initialize(pinned)))
    with pytest.raises(ConnectionFailed, match=rf"this client speaks {pinned}\. initialize: it speaks 1999-01-01"):
        walk([["1999-01-01"]], [pinned])  # VN-21


def test_over_a_pipe_the_oldest_version_has_no_transport_of_its_own() -> None:
    assert walk([[OLDEST]], [OLDEST], over_http=False)[0] == [Initialize(OLDEST)]
    assert walk([[OLDEST]], [OLDEST])[0] == [OldTransport()]


def test_what_every_way_ended_in_says_it_best() -> None:
    with pytest.raises(HttpError) as caught:
        walk([missing(404), missing(404), missing(404)])
    assert caught.value.status == 404
    with pytest.raises(RequestTimeout):
        walk([SILENT, SILENT], over_http=False)
    with pytest.raises(ConnectionFailed, match=r"server/discover: no .*; initialize: HTTP 500"):
        walk([refused(-32601), missing(500)])


def test_what_has_nothing_to_do_with_versions_is_told_as_it_is() -> None:
    broken = ServerError(-32603, "Internal error", None, 500, AT)
    with pytest.raises(ServerError) as caught:
        walk([broken, ServerError(-32603, "Internal error", None, 500, AT)])
    assert caught.value is broken
    elsewhere = ServerError(-32600, "It is at /mcp", None, 404, AT)
    with pytest.raises(ServerError, match="It is at /mcp"):
        walk([elsewhere, elsewhere, missing(404)])


def test_a_server_that_always_says_the_same_is_given_up() -> None:
    with pytest.raises(ConnectionFailed):
        walk([refused(-32022, [NEW])] * 3, [NEW])


def test_versions_are_checked() -> None:
    assert check_versions(None) == VERSIONS
    assert check_versions(["2025-03-26", NEW]) == (NEW, "2025-03-26")
    assert check_versions(OLD) == (OLD,)
    with pytest.raises(ValueError, match=r"'2025-1-1' is not spoken here; these are: 2026-07-28"):
        check_versions(["2025-1-1"])
    with pytest.raises(ValueError, match="at least one"):
        check_versions([])


def test_what_is_remembered_is_bounded_in_time_and_number() -> None:
    known = Remembered()
    known.note("a", Initialize, now=0)
    assert known.recall("a", now=3599) is Initialize
    assert known.recall("a", now=3600) is None
    for number in range(Remembered.LIMIT):
        known.note(str(number), Discover, now=0)
    assert known.recall("a", now=1) is None
    assert known.recall("0", now=1) is Discover
