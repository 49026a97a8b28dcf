"""Asking the client: what an ask is known by, what is remembered of a call between its rounds, what a client must have declared. Sans-IO.

Rules of a `Log`, one run of one call:
    1. An ask has a key: the author's, else a digest of its content and how often the run has asked just that.
    2. A key of the author's names one ask of a run. Equal asks without keys may follow each other, not wait together: nobody could
       tell which answer is whose.
    3. An answer belongs to the question that it was given to: it is taken only where the digest of what is asked now is that of what
       was asked then. Answers to anything else are nobody's (MR-10).
    4. Without a memory there is no question to compare with: then the key alone counts, and an answer that does not fit the question
       is none.
    5. What was answered stays answered, whether this run gets as far as to ask for it or not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET

from callboard.errors import Fail, Reason

__all__ = ["MAX_ROUNDS", "Ask", "AskTwiceError", "Log", "Memory", "digest_request", "find_missing", "read_responses"]

# MR-09 leaves the number of rounds open; a call that asks this often has gone round in circles.
MAX_ROUNDS = 64
_KINDS = {"elicitation/create": "elicit", "sampling/createMessage": "sample", "roots/list": "roots"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTEXTS = frozenset({"thisServer", "allServers"})
_encode = msgspec.json.Encoder(order="deterministic").encode


class AskTwiceError(RuntimeError):
    """Two asks of one call can't be told apart."""


class Ask(msgspec.Struct, frozen=True):
    """A question to the client.

    Attributes:
        key: What it is known by.
        method: `elicitation/create`, `sampling/createMessage` or `roots/list`.
        params: Its parameters, in the words of the current protocol.
        digest: Of method and parameters.
    """

    key: str
    method: str
    params: dict[str, Any]
    digest: bytes

    @property
    def request(self) -> dict[str, Any]:
        """As an input request (MR-04)."""
        return {"method": self.method, "params": self.params}


class Memory(msgspec.Struct, array_like=True):
    """What is remembered of a call between its rounds.

    Attributes:
        chain: Identifies the call in all its rounds.
        rounds: Times that its client was asked.
        answers: Results by key, each with the digest of its question.
        pending: Digests of the questions that the client has been asked last.
        saved: JSON of values that the author keeps, by key.
        state: The author's own, in the manual form.
        by_hand: Keys of what was asked last in the manual form; None where nothing was.
    """

    chain: str
    rounds: int = 0
    answers: dict[str, tuple[bytes, dict[str, Any]]] = {}
    pending: dict[str, bytes] = {}
    saved: dict[str, msgspec.Raw] = {}
    state: Any = None
    by_hand: list[str] | None = None


class Log:
    """What one run of a call has asked.

    Args:
        memory: Of earlier rounds; rounds are 0 where there is none.
        responses: What the client answers now, by key.

    Attributes:
        memory: As given; answers and saved values come in as the run goes on.
        responses: As given.
        pending: Asks of this run that wait for an answer, by key.
    """

    __slots__ = ("_asked", "_counts", "_is_first", "memory", "pending", "responses")

    def __init__(self, memory: Memory, responses: Mapping[str, dict[str, Any]]) -> None:
        self.memory = memory
        self.responses = responses
        self.pending: dict[str, Ask] = {}
        self._asked: set[str] = set()
        self._counts: Counter[bytes] = Counter()
        self._is_first = memory.rounds == 0
        for key, digest in memory.pending.items():
            if key in responses:
                memory.answers[key] = (digest, responses[key])

    def identify(self, method: str, params: dict[str, Any], key: str | None) -> Ask:
        """Give an ask its key.

        Args:
            method: The method.
            params: Its parameters.
            key: The author's; None for none.

        Raises:
            AskTwiceError: Nobody could tell it from another one (rule 2).
            TypeError: `params` have no JSON form, or the key is no text.
        """
        if key is not None and (not isinstance(key, str) or _SURROGATE.search(key)):
            raise TypeError(f"key= is a text that JSON can say, not {key!r}.")
        digest = digest_request(method, params)
        if key is not None:
            if key in self._asked:
                raise AskTwiceError(
                    f"key={key!r} names an ask that this call has made already; in a loop, number them: key=f'{key}-{{n}}'."
                )
        else:
            if any(ask.digest == digest for ask in self.pending.values()):
                raise AskTwiceError(f"Two equal asks ({method}) wait for an answer together; give each a key= of its own.")
            self._counts[digest] += 1
            key = f"{_KINDS[method]}-{digest.hex()[:12]}"
            if self._counts[digest] > 1:
                key = f"{key}-{self._counts[digest]}"
        self._asked.add(key)
        return Ask(key, method, params, digest)

    def recall(self, ask: Ask) -> dict[str, Any] | None:
        """The result that answers an ask; None where there is none."""
        known = self.memory.answers.get(ask.key)
        if known is not None and known[0] == ask.digest:
            return known[1]
        if self._is_first and ask.key in self.responses:
            return self.responses[ask.key]
        return None

    def refuse(self, ask: Ask) -> bool:
        """Take back an answer that does not fit its question; whether that is all there is to it (rule 4), and the client is asked again."""
        return self.memory.answers.pop(ask.key, None) is None and self._is_first

    def accept(self, ask: Ask, result: dict[str, Any]) -> None:
        """Remember an answer that fits its question."""
        self.pending.pop(ask.key, None)
        self.memory.answers[ask.key] = (ask.digest, result)

    def next_memory(self, pending: Mapping[str, bytes], state: Any = UNSET) -> Memory:
        """What to remember when the client is asked.

        Args:
            pending: Digests of what it is asked.
            state: The author's own, where it is asked in the manual form: then older answers under the same keys count no more. Else what
                was asked so before stays known, since the function runs from its top.

        Raises:
            Fail: It has been asked too often.
        """
        memory = self.memory
        if memory.rounds >= MAX_ROUNDS:
            raise Fail(Reason.INTERNAL, f"This call has asked its client {MAX_ROUNDS} times and still has no end; it is given up.")
        answers, by_hand = memory.answers, memory.by_hand
        if state is UNSET:
            state = memory.state
        else:
            answers, by_hand = {key: answer for key, answer in answers.items() if key not in pending}, list(pending)
        return Memory(memory.chain, memory.rounds + 1, answers, dict(pending), memory.saved, state, by_hand)


def read_responses(responses: Mapping[str, msgspec.Raw]) -> dict[str, dict[str, Any]]:
    """Read `inputResponses` (MR-10, MR-11).

    Raises:
        Fail: One is no object.
    """
    read: dict[str, dict[str, Any]] = {}
    for key, raw in responses.items():
        try:
            read[key] = msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.DecodeError:
            raise Fail(Reason.INVALID_PARAMS, f"params.inputResponses[{key[:100]!r}] must be the result object of that request.") from None
    return read


def digest_request(method: str, params: Any) -> bytes:
    """What an input request is compared by."""
    return sha256(_encode([method, params])).digest()[:16]


def find_missing(method: str, params: Mapping[str, Any], capabilities: Mapping[str, Any]) -> dict[str, Any] | None:
    """The capabilities that a client lacks to be asked this (MR-05, EL-01, EL-02, SM-02, SM-08); None when it lacks nothing.

    Args:
        method: The method of the ask.
        params: Its parameters, in the words of the current protocol.
        capabilities: What the client declared.
    """
    if method == "elicitation/create":
        return _find_missing_mode(params.get("mode", "form"), capabilities.get("elicitation"))
    if method == "sampling/createMessage":
        sampling = capabilities.get("sampling")
        needed = {"tools"} if "tools" in params or "toolChoice" in params else set()
        if params.get("includeContext") in _CONTEXTS:
            needed.add("context")
        if isinstance(sampling, Mapping) and all(isinstance(sampling.get(part), Mapping) for part in needed):
            return None
        return {"sampling": {part: {} for part in sorted(needed)}}
    return None if isinstance(capabilities.get("roots"), Mapping) else {"roots": {}}


def _find_missing_mode(mode: str, declared: Any) -> dict[str, Any] | None:
    if not isinstance(declared, Mapping):
        return {"elicitation": {"url": {}} if mode == "url" else {}}
    if isinstance(declared.get(mode), Mapping) or (mode == "form" and not isinstance(declared.get("url"), Mapping)):
        return None  # EL-01: an empty object means forms
    return {"elicitation": {mode: {}}}
