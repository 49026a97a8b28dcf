"""How much work a schema makes of a value: both may come from somebody who wants a client to do nothing else any more.

Validation is linear in a value as long as every part of it meets a schema in one way. Alternatives that lead into the same part twice do so
again in that part: the work doubles with every level. It is counted here, before it is done (JS-05).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from callboard.server.judge import Judge
from callboard.server.subschemas import children, walk

__all__ = ["Effort"]

MAX_EFFORT: Final = 5_000_000
"""How many subschemas one value may meet in all, by default: less than a second."""
MAX_IN_PLACE: Final = 10_000
"""How many subschemas one part may meet through one schema."""
CHEAP: Final = 64
"""A schema in which a part meets no more than this needs no count."""
BACKTRACKING: Final = 1_000
"""What a pattern costs that may go back and try again."""
MAX_KNOWN: Final = 1_000
"""How many places of values are remembered."""
MAX_LEVELS: Final = 2_000
"""How many schemas may be applied inside each other: what fits a stack of 1 MiB twice."""
PER_ENTRY: Final = 32
"""So many entries of a keyword cost as much as a subschema."""

_BRANCHES: Final = ("allOf", "anyOf", "oneOf")
_CONDITIONS: Final = ("not", "if", "then", "else")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_INTO: Final = (
    "properties",
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
)
_ANY_ITEM: Final = -1
_ALSO_INTO: Final = ("contains", "propertyNames")


class _Met:
    """What a part of a value meets.

    Attributes:
        counts: How often each schema, by its identity.
        cost: What that costs in all.
        names: Fields that these schemas say something of; of all others they say the same.
        prefix: How many items they say something of by place.
        next: What the parts meet, by name or place; fields of which nothing of their own is said are under None, such items under -1.
    """

    __slots__ = ("cost", "counts", "names", "next", "prefix")

    def __init__(self, counts: Counter[int], cost: int, nodes: list[dict[str, Any]]) -> None:
        self.counts = counts
        self.cost = cost
        self.names = {name for node in nodes for name in _mapping(node, "properties")}
        self.prefix = max((len(prefix) for node in nodes for prefix in _prefixes(node)), default=0)
        self.next: dict[str | int | None, _Met] = {}


class Effort:
    """The work that validating by a schema is.

    Args:
        judge: The schema's; it knows what references lead to.
        backtracks: Whether patterns may go back and try again.

    Attributes:
        linear: Whether it is in proportion to any value, so that nothing needs to be counted.
    """

    __slots__ = ("_backtracks", "_closures", "_judge", "_known", "_levels", "_nodes", "_shallow", "_weights", "linear")

    def __init__(self, judge: Judge, *, backtracks: bool) -> None:
        self._judge = judge
        self._backtracks = backtracks
        self._nodes: dict[int, dict[str, Any]] = {}
        self._closures: dict[int, Counter[int]] = {}
        self._weights: dict[int, int] = {}
        self._known: dict[frozenset[tuple[int, int]], _Met] = {}
        everything = [node for _, node in walk(judge.schema)]
        self.linear = all(self._is_plain(node) for node in everything)
        # A circle in place is cut by the validator, after each schema in it had its turn.
        self._levels = _longest(everything, self._in_place) or len(everything)
        longest = _longest(everything, lambda node: (*self._in_place(node), *(inner for _, inner in children(node))))
        self._shallow = longest is not None and longest <= MAX_LEVELS

    def bears(self, value: Any) -> bool:
        """Whether a validator has the stack for a JSON value: it goes one level deeper for each schema inside another, and ends in a crash."""
        if self._shallow:
            return True
        depth, level = 0, [value]
        while level:
            depth += 1
            if depth * self._levels > MAX_LEVELS:
                return False
            level = [
                inner for part in level if isinstance(part, dict | list) for inner in (part.values() if isinstance(part, dict) else part)
            ]
        return True

    def within(self, value: Any, limit: int = MAX_EFFORT) -> bool:
        """Whether a JSON value makes no more work than that."""
        spent = 0
        root = self._meet(self._closure(self._judge.schema))
        # What a part meets is found when its turn comes: whoever has nothing left to spend must not look at all that is left.
        waiting: list[tuple[Any, _Met | None, str | int]] = [(value, None, "")]
        while waiting:
            part, above, step = waiting.pop()
            met = root if above is None else self._next(above, step)
            spent += met.cost
            if spent > limit:
                return False
            if isinstance(part, dict):
                waiting += [(inner, met, name) for name, inner in part.items()]
            elif isinstance(part, list):
                waiting += [(inner, met, at) for at, inner in enumerate(part)]
        return True

    def _next(self, above: _Met, step: str | int) -> _Met:
        """What the part at a step meets, given what the whole meets."""
        named = step in above.names if isinstance(step, str) else step < above.prefix
        key = step if named else None if isinstance(step, str) else _ANY_ITEM
        if (met := above.next.get(key)) is None:
            found: Counter[int] = Counter()
            for one, times in above.counts.items():
                for inner in _at(self._nodes[one], step):
                    if isinstance(inner, dict):
                        for other, more in self._closure(inner).items():
                            found[other] += times * more
            met = above.next[key] = self._meet(found)
        return met

    def _meet(self, counts: Counter[int]) -> _Met:
        """The same for the same counts: what holds itself comes to an end, and what is remembered has bounds."""
        key = frozenset(counts.items())
        if (met := self._known.get(key)) is None:
            if len(self._known) >= MAX_KNOWN:
                for old in self._known.values():
                    old.next.clear()
                self._known.clear()
            cost = sum(times * self._weights[one] for one, times in counts.items())
            met = self._known[key] = _Met(counts, cost, [self._nodes[one] for one in counts])
        return met

    def _closure(self, schema: dict[str, Any]) -> Counter[int]:
        """A schema and those that hold for the same value because of it, and how often each."""
        known = self._closures.get(id(schema))
        if known is None:
            known, whole = self._reach(schema, MAX_IN_PLACE)
            if not whole:
                known[id(schema)] = MAX_EFFORT + 1
            self._closures[id(schema)] = known
        return known

    def _reach(self, schema: dict[str, Any], limit: int) -> tuple[Counter[int], bool]:
        """The same as far as the limit goes, and whether that is all: a circle has no end."""
        found: Counter[int] = Counter()
        waiting = [schema]
        while waiting and limit:
            node = waiting.pop()
            limit -= 1
            if id(node) not in self._weights:
                self._nodes[id(node)] = node
                self._weights[id(node)] = self._weigh(node)
            found[id(node)] += 1
            waiting += [inner for inner in self._in_place(node) if isinstance(inner, dict)]
        return found, not waiting

    def _in_place(self, node: dict[str, Any]) -> Iterator[Any]:
        for keyword in _REFERENCES:
            if keyword in node:
                yield self._judge.target(node[keyword])
        for keyword in _BRANCHES:
            if isinstance(branches := node.get(keyword), list):
                yield from branches
        for keyword in _CONDITIONS:
            yield node.get(keyword)
        for keyword in ("dependentSchemas", "dependencies"):
            yield from _mapping(node, keyword).values()

    def _weigh(self, node: dict[str, Any]) -> int:
        entries = sum(len(held) for held in node.values() if isinstance(held, list | dict))
        tries = BACKTRACKING if self._backtracks and not node.keys().isdisjoint({"pattern", "patternProperties"}) else 0
        return 1 + tries + entries // PER_ENTRY

    def _is_plain(self, schema: dict[str, Any]) -> bool:
        """Whether a part of a value meets little through it, and parts of that part meet what they meet once."""
        met, whole = self._reach(schema, CHEAP)
        if not whole or sum(times * self._weights[key] for key, times in met.items()) > CHEAP:
            return False
        return sum(times * _ways_in(self._nodes[key]) for key, times in met.items()) <= 1


def _ways_in(node: dict[str, Any]) -> int:
    """How many schemas a part of a value may meet because of one schema."""
    more = sum(1 for keyword in _ALSO_INTO if keyword in node) + len(_mapping(node, "patternProperties"))
    return more + (1 if any(keyword in node for keyword in _INTO) else 0)


def _longest(nodes: list[dict[str, Any]], edges: Callable[[dict[str, Any]], Iterable[Any]]) -> int | None:
    """How many schemas the longest way from one to another has; None where a way has no end."""
    lengths: dict[int, int] = {}
    for start in nodes:
        way: list[tuple[dict[str, Any], Iterator[Any]]] = [(start, iter(edges(start)))] if id(start) not in lengths else []
        on_way = {id(start)}
        while way:
            node, left = way[-1]
            inner = next((one for one in left if isinstance(one, dict) and id(one) not in lengths), None)
            if inner is None:
                lengths[id(node)] = 1 + max((lengths[id(one)] for one in edges(node) if isinstance(one, dict)), default=0)
                on_way.discard(id(node))
                way.pop()
            elif id(inner) in on_way:
                return None
            else:
                on_way.add(id(inner))
                way.append((inner, iter(edges(inner))))
    return max(lengths.values(), default=1)


def _mapping(node: dict[str, Any], keyword: str) -> dict[str, Any]:
    held = node.get(keyword)
    return held if isinstance(held, dict) else {}


def _prefixes(node: dict[str, Any]) -> Iterator[list[Any]]:
    yield from (held for keyword in ("prefixItems", "items") if isinstance(held := node.get(keyword), list))


def _at(node: dict[str, Any], step: str | int) -> Iterator[Any]:
    """The schemas for the part at a step; which patterns a name matches isn't looked at."""
    if isinstance(step, str):
        yield from _mapping(node, "patternProperties").values()
        yield _mapping(node, "properties").get(step, node.get("additionalProperties"))
        yield from (node.get("propertyNames"), node.get("unevaluatedProperties"))
        return
    prefix = next(_prefixes(node), [])
    rest = node.get("additionalItems" if isinstance(node.get("items"), list) else "items")
    yield prefix[step] if step < len(prefix) else rest
    yield from (node.get("contains"), node.get("unevaluatedItems"))
