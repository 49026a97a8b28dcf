"""The protocol's requirements and the cases of the field as data, and which test upholds which.

`tests/requirements/ledger.json` lists every requirement (`HH-12`), and `tests/requirements/status.json` says of each id one of

    {"tests": ["tests/unit/test_x.py::test_name", ...]}    upheld by these tests
    {"not_applicable": "reason"}                           nothing that Callboard does could uphold or break it
    {"gap": "reason"}                                      open, and known to be

`tests/requirements/cases.json` lists what went wrong in other servers (`A20`) and what attackers send (`SA07`), each with its status. Of a case
that holds of more than is built, "tests" and "gap" may stand together.

A test cites an id by writing it in its body, its docstring, its decorators or the comment right above it: `# HH-12`. A transcript of
`tests/vectors/modern.json` cites the ids of its key `cites`, for the test that replays it.

    python tools/requirements.py            what is open, and cited ids whose status does not name the citing test
    python tools/requirements.py --fill [REASON ...]    write the citing tests into status.json and cases.json: in place of the tests that stand
                                                        there, and of gaps that begin with a REASON ("test to be named" by default)
"""

import ast
import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
LEDGER = TESTS / "requirements" / "ledger.json"
STATUS = TESTS / "requirements" / "status.json"
CASES = TESTS / "requirements" / "cases.json"
TRANSCRIPTS = TESTS / "vectors" / "modern.json"
REPLAY = "tests/matrix/test_transcripts.py::test_the_server_answers_as_written"
UNNAMED = "test to be named"

Row = dict[str, str | list[str]]
Status = dict[str, Row]
CASE = re.compile(r"\bS?A\d\d\b")


class Requirement(NamedTuple):
    """One row of the ledger.

    Attributes:
        id: Area and number, such as `HH-12`.
        era: Protocol revisions it holds for (`M` = 2026-07-28, `L` = the 2025 revisions, `ALL`, or an extension's tag).
        who: Whose duty it is.
        level: The specification's keyword; empty for a plain fact.
        title: What it asks, in short.
    """

    id: str
    era: str
    who: str
    level: str
    title: str


class Case(NamedTuple):
    """Something that went wrong in a server of this kind, or that somebody sends to make it go wrong.

    Attributes:
        id: `A20` for cases of the field, `SA07` for hostile input.
        kind: What it is about, such as `stdio-framing` or `header`.
        title: What comes in, and what the right answer is, in short.
        status: As in status.json; "tests" and "gap" together: upheld as far as it is built.
    """

    id: str
    kind: str
    title: str
    status: Row


def cases() -> dict[str, Case]:
    """Id -> case; an id that stands twice is an error."""
    rows = [Case(**row) for row in json.loads(CASES.read_text(encoding="utf-8"))]
    repeated = [key for key, times in Counter(row.id for row in rows).items() if times > 1]
    if repeated:
        message = f"{CASES.name} names these twice: {repeated}"
        raise ValueError(message)
    return {row.id: row for row in rows}


def ledger() -> dict[str, Requirement]:
    """Id -> requirement."""
    rows = [Requirement(**row) for row in json.loads(LEDGER.read_text(encoding="utf-8"))]
    return {row.id: row for row in rows}


def statuses() -> Status:
    """Id -> status, as the file has it; an id that stands twice is an error."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        repeated = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
        if repeated:
            message = f"{STATUS.name} names these twice: {repeated}"
            raise ValueError(message)
        return dict(pairs)

    loaded: Status = json.loads(STATUS.read_text(encoding="utf-8"), object_pairs_hook=unique)
    return loaded


def write_cases(status: Status) -> None:
    """Writes cases.json, one case a line, each with its new status."""
    rows = [json.dumps(row._replace(status=status[key])._asdict(), ensure_ascii=False) for key, row in cases().items()]
    CASES.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def write(status: Status) -> None:
    """Writes status.json, one id a line in the ledger's order."""
    rows = [f"  {json.dumps(key)}: {json.dumps(status[key], ensure_ascii=False)}" for key in ledger()]
    STATUS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


@cache
def citation() -> re.Pattern[str]:
    """What an id looks like: an area of the ledger, a dash, two digits; or a case's letters and two digits."""
    areas = sorted({key.split("-")[0] for key in ledger()})
    return re.compile(rf"\b(?:{'|'.join(areas)})-\d\d\b|{CASE.pattern}")


@cache
def existing_tests() -> dict[str, str]:
    """Name as pytest selects it, without parameters -> the test's source with its decorators and the comment above it."""
    return {
        f"{path.relative_to(ROOT)}::{name}": source
        for path in sorted(TESTS.rglob("test_*.py"))
        for name, source in functions_in(path.read_text(encoding="utf-8")).items()
    } | {f"{REPLAY}[{each['name']}]": each["cites"] for each in json.loads(TRANSCRIPTS.read_text(encoding="utf-8"))["transcripts"]}


def functions_in(source: str) -> dict[str, str]:
    """Test functions of a file's text, those of its test classes too, each with its source."""
    lines = source.splitlines()
    body = ast.parse(source).body
    inside = [(f"{node.name}::", inner) for node in body if isinstance(node, ast.ClassDef) for inner in node.body]
    return {
        prefix + node.name: "\n".join(lines[first_line(node, lines) : node.end_lineno])
        for prefix, node in [*(("", node) for node in body), *inside]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Index of the line where a function begins, decorators and the comment right above included."""
    start = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start


def cited() -> dict[str, list[str]]:
    """Id -> tests that cite it, known ids and unknown ones."""
    found: dict[str, list[str]] = {}
    for name, source in existing_tests().items():
        for key in citations(source):
            found.setdefault(key, []).append(name)
    return found


def citations(source: str) -> list[str]:
    """Ids that a test's source names."""
    return sorted(set(citation().findall(source)))


def unlisted(status: Status, citing: dict[str, list[str]]) -> dict[str, list[str]]:
    """Id -> tests that cite it and that its status does not name."""
    loose = {key: [name for name in names if name not in status.get(key, {}).get("tests", ())] for key, names in citing.items()}
    return {key: names for key, names in loose.items() if names}


def fill(status: Status, citing: dict[str, list[str]], reasons: tuple[str, ...]) -> Status:
    """Status with the citing tests written in: in place of what tests there were, and of gaps for one of the reasons.

    An id whose tests are gone and that no test cites any more becomes a gap. A gap beside tests stays.
    """
    filled = dict(status)
    for key, row in status.items():
        names = citing.get(key)
        if "tests" in row:
            filled[key] = {**row, "tests": list(names)} if names else {"gap": row.get("gap", UNNAMED)}
        elif names and str(row.get("gap", "")).startswith(reasons):
            filled[key] = {"tests": list(names)}
    return filled


def report(status: Status, titles: dict[str, str]) -> str:
    """What is covered, what is open and why, and which citing tests are not listed."""
    kinds = Counter(" and ".join(row) for row in status.values())
    gaps = Counter(str(row["gap"]) for row in status.values() if "gap" in row)
    unnamed = [f"  {key} {titles[key]}" for key, row in status.items() if row.get("gap") == UNNAMED]
    loose = [f"  {key}: {', '.join(names)}" for key, names in unlisted(status, cited()).items() if key in status]
    return "\n".join(
        [
            ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
            *(f"  {count:3} {reason}" for reason, count in gaps.most_common()),
            f"without a named test ({len(unnamed)}):",
            *unnamed,
            f"cited, not listed ({len(loose)}):",
            *loose,
        ]
    )


def main() -> None:
    """Prints the report, or fills in what the tests cite."""
    rows, of_cases = statuses(), {key: row.status for key, row in cases().items()}
    if sys.argv[1:2] == ["--fill"]:
        reasons = tuple(sys.argv[2:]) or (UNNAMED,)
        rows, of_cases = fill(rows, cited(), reasons), fill(of_cases, cited(), reasons)
        write(rows)
        write_cases(of_cases)
    print(report(rows, {key: f"{row.level}: {row.title}" for key, row in ledger().items()}))
    print(report(of_cases, {key: f"{row.kind}: {row.title}" for key, row in cases().items()}))


if __name__ == "__main__":
    main()
