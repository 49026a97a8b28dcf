"""Every requirement of the protocol and every case of the field has a status, and every status is true of the tests that exist."""

from source_tree import ROOT, python_files

from tools.requirements import TRANSCRIPTS, Status, cases, citations, cited, existing_tests, fill, functions_in, ledger, statuses

KINDS = {"tests", "not_applicable", "gap"}
# What a server can show by itself, in one process.
SHOWN = {
    *("parse", "encode", "size", "header", "http", "origin", "version", "method", "uri", "stdio"),
    *("schema-output", "arg-coercion", "id-coercion", "progress-routing", "progress-hang", "mount-lifespan", "lifespan-scope"),
    *("session", "session-leak", "session-principal", "cross-client-leak", "stale-identity", "lifecycle-hook", "cancel", "cancel-race"),
    *("dead-stream", "stream-keepalive", "slow", "error-codes", "shutdown", "leak", "loop-blocking", "cors", "pagination"),
    *("stdio-orphan", "stdio-framing", "stdio-parse-error", "stdio-pollution", "stdio-client", "context-state", "context-injection"),
}


def of_cases() -> Status:
    """Id -> status of every case."""
    return {key: case.status for key, case in cases().items()}


def test_every_requirement_has_a_status() -> None:
    assert list(statuses()) == list(ledger()), "status.json lists the ledger's ids, in its order"


def test_the_ledger_is_whole() -> None:
    rows = ledger()
    assert len(rows) == 458
    assert all(row.title and row.era and row.who for row in rows.values())


def test_the_cases_are_whole() -> None:
    assert list(cases()) == [f"A{number:02}" for number in range(1, 62)] + [f"SA{number:02}" for number in range(1, 42)]
    assert all(case.kind and case.title for case in cases().values())


def test_a_status_is_one_of_three_kinds() -> None:
    wrong = [key for key, row in statuses().items() if len(row) != 1 or not KINDS & row.keys() or not all(row.values())]
    assert not wrong, f'a status is one of {{"tests": [...]}}, {{"not_applicable": reason}}, {{"gap": reason}}: {wrong}'


def test_a_cases_status_may_be_tests_as_far_as_it_is_built() -> None:
    kinds = [*({kind} for kind in KINDS), {"tests", "gap"}]
    wrong = [key for key, row in of_cases().items() if row.keys() not in kinds or not all(row.values())]
    assert not wrong, f'a case\'s status is one of three kinds, or "tests" and "gap" together: {wrong}'


def test_what_a_server_can_show_by_itself_has_tests() -> None:
    assert {case.kind for case in cases().values()} >= SHOWN
    missing = [key for key, case in cases().items() if case.kind in SHOWN and "tests" not in case.status]
    assert not missing, f"these cases need a test now: {missing}"


def test_named_tests_exist() -> None:
    existing = existing_tests()
    missing = {key: name for key, row in {**statuses(), **of_cases()}.items() for name in row.get("tests", []) if name not in existing}
    assert not missing, f"status.json or cases.json names tests that do not exist: {missing}"


def test_cited_ids_exist() -> None:
    known = {**ledger(), **cases()}
    files = [*python_files(), *TRANSCRIPTS.parent.glob("*.json")]
    found = {key: str(path.relative_to(ROOT)) for path in files for key in citations(path.read_text(encoding="utf-8"))}
    unknown = {key: place for key, place in {**found, **cited()}.items() if key not in known}
    assert not unknown, f"neither a requirement nor a case: {unknown}"


def test_a_citation_is_found_wherever_a_test_names_it() -> None:
    first, second, third = list(ledger())[:3]
    field, *_, attack = cases()
    source = f"""
# {first}
@mark("{second}", id="{attack} length")
def test_one(): pass

class TestTwo:
    def test_two(self):
        "{third}, {field}; A5 and {attack}1 are none"

def helper():
    "{third}"
"""
    found = {name: citations(text) for name, text in functions_in(source).items()}
    assert found == {"test_one": [first, second, attack], "TestTwo::test_two": [field, third]}


def test_what_is_filled_in() -> None:
    citing = {"gap": ["t1"], "other gap": ["t2"], "tests": ["t3"], "reason": ["t4"], "in part": ["t5"]}
    status: Status = {
        "gap": {"gap": "test to be named"},
        "other gap": {"gap": "issue 5"},
        "tests": {"tests": ["t0"]},
        "gone": {"tests": ["t0"]},
        "reason": {"not_applicable": "because"},
        "in part": {"tests": ["t0"], "gap": "issue 6"},
        "in part no more": {"tests": ["t0"], "gap": "issue 6"},
    }
    assert fill(status, citing, ("test to be",)) == {
        "gap": {"tests": ["t1"]},
        "other gap": {"gap": "issue 5"},
        "tests": {"tests": ["t3"]},
        "gone": {"gap": "test to be named"},
        "reason": {"not_applicable": "because"},
        "in part": {"tests": ["t5"], "gap": "issue 6"},
        "in part no more": {"gap": "issue 6"},
    }
