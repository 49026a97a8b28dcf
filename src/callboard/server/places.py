"""Room for so many of something in all, and for so many of one principal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from callboard.errors import Fail, Reason

__all__ = ["Places"]


class Places:
    """Counts who has taken places. Those without a principal share only the room that there is in all.

    Args:
        what: What takes a place, in the plural, for the refusal.
        option: Name of the option that says how many there may be; `<option>_per_principal` is the other one.
        sweep: Gives back places that nobody needs any more; called where room gets short, with the principal who wants some.

    Attributes:
        taken: How many are.
        per_principal: By whom, as far as they have a principal.
    """

    __slots__ = ("_option", "_sweep", "_what", "per_principal", "taken")

    def __init__(self, what: str, option: str, sweep: Callable[[str | None], None]) -> None:
        self._what = what
        self._option = option
        self._sweep = sweep
        self.per_principal: Counter[str] = Counter()
        self.taken = 0

    def take(self, principal: str | None, total: int, per_principal: int) -> None:
        """Take one.

        Raises:
            Fail: There is no room (OVERLOADED); the text names the option.
        """
        if self.taken >= total or self._has(principal, per_principal):
            self._sweep(principal)
        if self.taken >= total:
            raise Fail(Reason.OVERLOADED, f"There are {total} {self._what} already ({self._option}): try again later.")
        if self._has(principal, per_principal):
            text = f"You have {per_principal} {self._what} already ({self._option}_per_principal): wait until one has ended."
            raise Fail(Reason.OVERLOADED, text)
        self.taken += 1
        if principal is not None:
            self.per_principal[principal] += 1

    def give_back(self, principal: str | None) -> None:
        """Give one back."""
        self.taken -= 1
        if principal is not None:
            self.per_principal[principal] -= 1
            if self.per_principal[principal] <= 0:
                del self.per_principal[principal]

    def _has(self, principal: str | None, many: int) -> bool:
        return principal is not None and self.per_principal[principal] >= many
