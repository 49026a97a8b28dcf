"""Which protocol version a client and a server speak: a plan of steps, without input or output (ledger area VN).

Rules, in this order:

- what is newest comes first, unless it is remembered of this server that another way worked (VN-12, VN-13, VN-16);
- a server that lists versions is believed: the best common one is tried, the same one once more if need be (VN-06);
- an error that only servers of the current protocol know means such a server, whatever it says (VN-14, VN-16);
- everything else, silence too, means an older server: `initialize` (VN-14, VN-17), then the transport of 2024-11-05 (HL-26);
- what no other words can mend ends it at once: no connection, credentials that are missing, or none that a server can read (AR-05).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias

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
from callboard.client.oauth.challenge import parse
from callboard.errors import REASONS, Reason
from callboard.wire.versions import LEGACY, MODERN

__all__ = [
    "OLDEST",
    "VERSIONS",
    "Discover",
    "Initialize",
    "OldTransport",
    "Outcome",
    "Remembered",
    "Settled",
    "Step",
    "add_doubt",
    "check_versions",
    "means_lost",
    "negotiate",
]

OLDEST = "2024-11-05"
"""The version before Streamable HTTP: over HTTP it has a transport of its own."""
VERSIONS: tuple[str, ...] = (*MODERN, *LEGACY, OLDEST)
"""What a client speaks, newest first."""

# What no server of an older protocol sends.
_MODERN_ONLY = frozenset(REASONS[reason].code for reason in (Reason.VERSION, Reason.HEADER_MISMATCH, Reason.MISSING_CAPABILITY))
# HTTP statuses that other words can't mend: credentials, names that are not served, and servers that want to be left alone.
_NOT_THE_VERSION = frozenset({401, 403, 421, 429, 503})
_BAD_REQUEST, _NOT_FOUND, _BROKEN = 400, 404, 500
# Servers made after the examples of the TypeScript SDK answer 400 to a session that they don't know; codes as in those, or no JSON-RPC.
_NO_SESSION = re.compile(
    r"session.?id\b|(unknown|invalid|expired) session|session (was |is |has )?(not found|unknown|expired|invalid)", re.IGNORECASE
)
_NO_SESSION_CODES = (None, REASONS[Reason.INVALID_REQUEST].code, -32000, -32001)
# How servers of 2025 refuse a request without a session: by no JSON-RPC at all, or with one of these codes.
_SESSION_MISSING = (None, REASONS[Reason.INVALID_REQUEST].code, -32000)
# How often one way is tried with what the server said it speaks.
_TRIES = 3


class Discover(NamedTuple):
    """Ask `server/discover` in this version."""

    version: str


class Initialize(NamedTuple):
    """Open a session with `initialize`, offering this version."""

    version: str


class OldTransport(NamedTuple):
    """Connect by HTTP+SSE, and open a session there."""

    version: str = OLDEST


Step: TypeAlias = Discover | Initialize | OldTransport
Outcome: TypeAlias = "Sequence[str] | ClientError"
"""Versions that the server named, the one to use first; or why there was no answer."""


class Settled(NamedTuple):
    """What came of it.

    Attributes:
        version: The version both speak.
        way: The step that succeeded.
    """

    version: str
    way: Step


class Remembered:
    """Which way worked with a server, by its URL without the query, for an hour (VN-12): servers learn new versions."""

    LIMIT = 1000
    LIFETIME = 3600.0

    def __init__(self) -> None:
        self._ways: OrderedDict[str, tuple[type[Step], float]] = OrderedDict()

    def recall(self, place: str, now: float) -> type[Step] | None:
        """The way that worked; None when that is not known.

        Args:
            place: The server.
            now: Monotonic seconds.
        """
        way, until = self._ways.get(place, (None, 0.0))
        return way if now < until else None

    def note(self, place: str, way: type[Step], now: float) -> None:
        """Take note of a way that worked."""
        self._ways[place] = way, now + self.LIFETIME
        self._ways.move_to_end(place)
        if len(self._ways) > self.LIMIT:
            self._ways.popitem(last=False)


def check_versions(versions: str | Sequence[str] | None) -> tuple[str, ...]:
    """Read the option `versions`.

    Returns:
        The versions, newest first.

    Raises:
        ValueError: There is one that no client speaks, or none at all.
    """
    wanted = VERSIONS if versions is None else (versions,) if isinstance(versions, str) else tuple(versions)
    if strange := [version for version in wanted if version not in VERSIONS]:
        raise ValueError(f"versions: {strange[0]!r} is not spoken here; these are: {', '.join(VERSIONS)}")
    if not wanted:
        raise ValueError("versions: give at least one, or None for all")
    return tuple(version for version in VERSIONS if version in wanted)


def negotiate(
    spoken: Sequence[str], remembered: type[Step] | None, origin: Origin, *, over_http: bool
) -> Generator[Step, Outcome, Settled]:
    """Find the version to speak; see the module for the rules.

    Args:
        spoken: What the client speaks, newest first.
        remembered: The way that worked last time; None when it is not known.
        origin: Names the server in errors.
        over_http: Whether 2024-11-05 has a transport of its own here.

    Yields:
        What to try next; it is sent what came of it.

    Returns:
        The version, and the way to it.

    Raises:
        ClientError: There is none.
    """
    modern = [version for version in spoken if version in MODERN]
    old = [version for version in spoken if version not in MODERN and not (over_http and version == OLDEST)]
    ways: list[tuple[type[Step], list[str]]] = [(Discover, modern), (Initialize, old)]
    if over_http and OLDEST in spoken:
        ways.append((OldTransport, [OLDEST]))
    ways = [way for way in ways if way[1]]
    ways.sort(key=lambda way: way[0] is not remembered)  # stable: the others stay in their order
    failures: list[tuple[Step, ClientError]] = []
    while ways:
        kind, versions = ways.pop(0)
        if kind is OldTransport and not _may_be_old(failures):
            continue
        settled = yield from _go(kind, versions, failures, origin)
        if settled is not None:
            return settled
        if kind is Initialize and not ways and _common(modern, named_versions(failures[-1][1])):
            ways.append((Discover, modern))  # it was silent, perhaps because it had just started
    raise _conclude(spoken, failures, origin)


def _go(
    kind: type[Step], versions: list[str], failures: list[tuple[Step, ClientError]], origin: Origin
) -> Generator[Step, Outcome, Settled | None]:
    """Go one way, in the versions that the server names; None when it leads nowhere."""
    version = versions[0]
    for _ in range(_TRIES):
        step = kind(version)
        outcome = yield step
        if not isinstance(outcome, ClientError):
            if chosen := _common(versions, outcome):
                return Settled(chosen, step)
            failures.append((step, ClientError(f"it speaks {', '.join(outcome) or 'no version'}", origin)))  # VN-21
            return None
        if _is_final(outcome):
            raise outcome
        failures.append((step, outcome))
        named = named_versions(outcome)
        if common := _common(versions, named):
            version = common  # VN-06; the very same, if a server says so
        elif kind is Discover and not named and isinstance(outcome, ServerError) and outcome.code in _MODERN_ONLY:
            return Settled(version, step)  # VN-14, VN-16
        else:
            return None
    return None


def _common(ours: Sequence[str], theirs: Sequence[str]) -> str | None:
    return next((version for version in ours if version in theirs), None)


def _is_final(error: ClientError) -> bool:
    if isinstance(error, HttpError | ServerError):
        return error.status in _NOT_THE_VERSION or _means_credentials(error)
    return isinstance(error, ConnectionFailed | AuthorizationFailed)


def _means_credentials(error: HttpError | ServerError) -> bool:
    """Whether a 400 is about the credentials: RFC 6750 has one for those that can't be read, and says so in a challenge."""
    if error.status != _BAD_REQUEST:
        return False
    return any(challenge.values.get("error") for header in error.challenges for challenge in parse(header))


def named_versions(error: ClientError) -> Sequence[str]:
    """Versions that an error lists (EC-07, LC-13)."""
    data = error.data if isinstance(error, ServerError) else None
    named = data.get("supported") if isinstance(data, dict) else None
    return [version for version in named if isinstance(version, str)] if isinstance(named, list) else []


def add_doubt(error: ClientError, version: str) -> None:
    """Say what may be behind the refusal of a client that speaks the current protocol alone, and has had no answer yet.

    Args:
        error: The refusal; its text is changed if it is the kind of answer that a server of an older protocol gives.
        version: The version that was spoken.
    """
    if not isinstance(error, HttpError | ServerError) or _means_credentials(error):
        return
    if error.status == _BAD_REQUEST and getattr(error, "code", None) in _SESSION_MISSING:
        error.text += f" (perhaps the server does not speak {version}, and this client may speak nothing else: see versions=)"


def means_lost(error: HttpError | ServerError) -> bool:
    """Whether a refusal says that there is no such session (any more): HL-23, HL-24."""
    if error.status != _BAD_REQUEST:
        return error.status == _NOT_FOUND
    said = error.message if isinstance(error, ServerError) else error.snippet
    return getattr(error, "code", None) in _NO_SESSION_CODES and _NO_SESSION.search(said) is not None


def _may_be_old(failures: list[tuple[Step, ClientError]]) -> bool:
    """HL-26: whether the endpoint took no POST of an `initialize`."""
    if not failures:
        return True
    last = failures[-1][1]  # of `initialize`, where that was tried
    return isinstance(last, HttpError | ServerError) and last.status in range(400, 500)


def _conclude(spoken: Sequence[str], failures: list[tuple[Step, ClientError]], origin: Origin) -> ClientError:
    """Of many failures make one error; what every way ended in says it best, and what every way was told."""
    last = failures[-1][1]
    told = {type(step): error for step, error in failures if not isinstance(step, OldTransport)}
    status = getattr(last, "status", None) or 0
    if len(told) > 1 and len({error.text for error in told.values()}) == 1 and (status == _NOT_FOUND or status >= _BROKEN):
        return told[Discover]  # not a matter of versions
    alike = {(type(error), getattr(error, "status", None)) for _, error in failures}
    if len(alike) == 1 and isinstance(last, HttpError | RequestTimeout | InvalidAnswer):
        return last
    said = "; ".join(f"{_TITLES[type(step)]}: {error.text}" for step, error in failures)
    return ConnectionFailed(f"no protocol version in common: this client speaks {', '.join(spoken)}. {said}", origin)


_TITLES: dict[type[Step], str] = {Discover: "server/discover", Initialize: "initialize", OldTransport: "HTTP+SSE"}
