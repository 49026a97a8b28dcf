"""Every requirement of the protocol has a status, and every status is true of the tests that exist."""

from tools.requirements import cases_in, citations, cited, existing_tests, fill, ledger, statuses

KINDS = {"tests", "not_applicable", "gap"}


def test_every_requirement_has_a_status() -> None:
    assert list(statuses()) == list(ledger()), "status.json lists the ledger's ids, in its order"


def test_the_ledger_is_whole() -> None:
    rows = ledger()
    assert len(rows) == 458
    assert all(row.title and row.era and row.who for row in rows.values())


def test_a_status_is_one_of_three_kinds() -> None:
    wrong = [key for key, row in statuses().items() if len(row) != 1 or not KINDS & row.keys() or not all(row.values())]
    assert not wrong, f'a status is one of {{"tests": [...]}}, {{"not_applicable": reason}}, {{"gap": reason}}: {wrong}'


def test_named_tests_exist() -> None:
    existing = existing_tests()
    missing = {key: name for key, row in statuses().items() for name in row.get("tests", []) if name not in existing}
    assert not missing, f"status.json names tests that do not exist: {missing}"


def test_cited_requirements_exist() -> None:
    unknown = {key: names for key, names in cited().items() if key not in ledger()}
    assert not unknown, f"tests cite requirements that are not in the ledger: {unknown}"


def test_a_citation_is_found_wherever_a_test_names_it() -> None:
    first, second, third = list(ledger())[:3]
    source = f"""
# {first}
@mark("{second}")
def test_one(): pass

class TestTwo:
    def test_two(self):
        "{third}"

def helper():
    "{third}"
"""
    found = cases_in(source)
    assert {name: citations(text) for name, text in found.items()} == {"test_one": [first, second], "TestTwo::test_two": [third]}


def test_what_is_filled_in() -> None:
    citing = {"gap": ["t1"], "other gap": ["t2"], "tests": ["t3"], "reason": ["t4"]}
    status: dict[str, dict[str, str | list[str]]] = {
        "gap": {"gap": "test to be named"},
        "other gap": {"gap": "issue 5"},
        "tests": {"tests": ["t0"]},
        "gone": {"tests": ["t0"]},
        "reason": {"not_applicable": "because"},
    }
    assert fill(status, citing, ("test to be",)) == {
        "gap": {"tests": ["t1"]},
        "other gap": {"gap": "issue 5"},
        "tests": {"tests": ["t3"]},
        "gone": {"gap": "test to be named"},
        "reason": {"not_applicable": "because"},
    }
