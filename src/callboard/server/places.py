"""Room for so many of something in all, and for so many of one principal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from callboard.errors import Fail, Reason
from callboard.server.limits import Limits
from callboard.server.shared_places import SharedPlaces, Verdict
from callboard.stores.scripted import can_count

__all__ = ["Load", "Places"]


_LISTEN = "subscriptions/listen"
# Bytes of a body that are not worth counting as somebody's.
SMALL = 4096


class Places:
    """Counts who has taken places. Those without a principal share only the room that there is in all.

    Where the processes of a server share a store they count together.

    Args:
        what: What takes a place, in the plural, for the refusal.
        option: Name of the option that says how many there may be; `<option>_per_principal` is the other one.
        sweep: Gives back places that nobody needs any more; called where room gets short, with the principal who wants some, and
            `is_full`: whether there is none in all.

    Attributes:
        taken: How many are, in this process.
        per_principal: By whom, as far as they have a principal.
    """

    __slots__ = ("_option", "_shared", "_sweep", "_what", "per_principal", "taken")

    def __init__(self, what: str, option: str, sweep: Callable[..., None]) -> None:
        self._what = what
        self._option = option
        self._sweep = sweep
        self._shared: SharedPlaces | None = None
        self.per_principal: Counter[str] = Counter()
        self.taken = 0

    def take(self, principal: str | None, total: int, per_principal: int, store: Any = None) -> Awaitable[None] | None:
        """Take one.

        Args:
            principal: Who takes it.
            total: How many there may be.
            per_principal: How many one principal may have.
            store: The server's store; None where each process counts for itself.

        Returns:
            None when it is taken. Where processes count together, what is to be awaited until it is; it fails in the same way, and then
            nothing is taken.

        Raises:
            Fail: There is no room (OVERLOADED); the text names the option.
        """
        if self.taken >= total or self._has(principal, per_principal):
            self._sweep(principal, is_full=self.taken >= total)
        if self.taken >= total:
            raise self._refuse(Verdict.FULL, total, per_principal)
        if self._has(principal, per_principal):
            raise self._refuse(Verdict.OWN_FULL, total, per_principal)
        self.taken += 1
        if principal is not None:
            self.per_principal[principal] += 1
        if store is None or not store.shared or not can_count(store):
            return None
        if self._shared is None or self._shared.store is not store:
            self._shared = SharedPlaces(store, self._option, self)
        return self._confirm(self._shared, principal, total, per_principal)

    def give_back(self, principal: str | None) -> None:
        """Give one back."""
        self.taken -= 1
        if principal is not None:
            self.per_principal[principal] -= 1
            if self.per_principal[principal] <= 0:
                del self.per_principal[principal]
        if self._shared is not None:
            self._shared.note(principal)

    async def _confirm(self, shared: SharedPlaces, principal: str | None, total: int, per_principal: int) -> None:
        """See that a place that was taken here is there in all processes.

        Raises:
            Fail: It is not.
        """
        verdict = Verdict.UNKNOWN
        try:
            verdict = await shared.confirm(principal, total, per_principal)
            if verdict is not Verdict.FREE:
                before = self.taken
                self._sweep(principal, is_full=verdict is Verdict.FULL)
                if self.taken < before:
                    verdict = await shared.confirm(principal, total, per_principal)
        finally:
            if verdict is not Verdict.FREE:
                self.give_back(principal)
        if verdict is not Verdict.FREE:
            raise self._refuse(verdict, total, per_principal)

    def _refuse(self, verdict: Verdict, total: int, per_principal: int) -> Fail:
        if verdict is Verdict.FULL:
            return Fail(Reason.OVERLOADED, f"There are {total} {self._what} already ({self._option}): try again later.")
        text = f"You have {per_principal} {self._what} already ({self._option}_per_principal): wait until one has ended."
        return Fail(Reason.OVERLOADED, text)

    def _has(self, principal: str | None, many: int) -> bool:
        return principal is not None and self.per_principal[principal] >= many


class Load:
    """What requests take at once, of all that go through one transport: plain numbers, on one event loop.

    Args:
        limits: How much there may be.

    Attributes:
        limits: As given.
        in_flight: Requests that are worked on; listen streams are none.
        buffered: Bytes of request bodies.
        unread: Bytes that wait on streams to be read, as of a moment ago.
        streams: Streams that stay open until somebody closes them.
    """

    __slots__ = ("_bytes_of", "_of", "buffered", "in_flight", "limits", "streams", "unread")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.in_flight = 0
        self.buffered = 0
        self.unread = 0
        self.streams = Places("open streams", "max_streams", _keep_all)
        self._of: dict[str, int] = {}
        self._bytes_of: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether so many bytes are held that nothing more should be read."""
        return self.buffered + self.unread > self.limits.max_buffered

    def refuse_bytes(self) -> Fail:
        """Why nothing more is read."""
        return Fail(
            Reason.OVERLOADED, f"Requests and answers of {self.limits.max_buffered} bytes are held (max_buffered): try again later."
        )

    def take_share(self, principal: str | None, size: int) -> Fail | None:
        """Count a body, which is counted in all already, as its principal's; why it can't be worked on where theirs are too many.

        Others must get in, whatever one principal sends: theirs are at most three quarters of all. Counted in either case.

        Args:
            principal: Who sent it; None for nobody, who has no share.
            size: Its bytes; what is small is not worth counting.
        """
        if principal is None or size <= SMALL:
            return None
        own = self._bytes_of[principal] = self._bytes_of.get(principal, 0) + size
        if own <= self.limits.max_buffered * 3 // 4 or own == size:
            return None
        text = f"Requests of yours hold three quarters of {self.limits.max_buffered} bytes (max_buffered): wait until one has ended."
        return Fail(Reason.OVERLOADED, text)

    def give_back_share(self, principal: str | None, size: int) -> None:
        """Count a body out; see `take_share`."""
        if principal is None or size <= SMALL:
            return
        left = self._bytes_of[principal] - size
        if left:
            self._bytes_of[principal] = left
        else:
            del self._bytes_of[principal]

    def refuse_result(self, size: int) -> Fail:
        """What a call comes to whose answer nobody would want to hold."""
        return Fail(Reason.INTERNAL, f"The answer has {size} bytes, more than the {self.limits.max_result} that one may have (max_result).")

    def enter(self, principal: str | None, method: str) -> Fail | None:
        """Count a request in; why it can't be worked on where there are too many."""
        if method == _LISTEN:
            return None
        limits = self.limits
        if self.in_flight >= limits.max_in_flight:
            text = f"{limits.max_in_flight} requests are being worked on (max_in_flight): try again later."
            return Fail(Reason.OVERLOADED, text)
        if principal is not None:
            own = self._of.get(principal, 0)
            if own >= limits.max_in_flight_per_principal:
                text = f"{own} requests of yours are being worked on (max_in_flight_per_principal): wait until one has ended."
                return Fail(Reason.OVERLOADED, text)
            self._of[principal] = own + 1
        self.in_flight += 1
        return None

    def leave(self, principal: str | None, method: str) -> None:
        """Count a request out."""
        if method == _LISTEN:
            return
        self.in_flight -= 1
        if principal is not None:
            own = self._of[principal] - 1
            if own:
                self._of[principal] = own
            else:
                del self._of[principal]


def _keep_all(principal: str | None, *, is_full: bool) -> None:
    """Nothing that has a place is of no use."""
